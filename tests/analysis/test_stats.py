"""Statistics equal scipy's where it has them, and are refused where few seeds cannot give them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from analysis.results import stats
from analysis.results.stats import Refusal

VALUES = [0.812, 0.809, 0.123]
A = {0: 0.71, 1: 0.73, 2: 0.70, 3: 0.75}
B = {0: 0.69, 1: 0.70, 2: 0.70, 3: 0.71}


def test_golden_numbers_of_three_seeds():
    s = stats.summary(VALUES)
    assert s.n == 3
    assert s.mean == pytest.approx(0.58133333, abs=1e-8)
    assert s.sd == pytest.approx(0.39693114, abs=1e-8)  # ddof 0 gives 0.32409
    assert (s.interval.low, s.interval.high) == pytest.approx((-0.40469829, 1.56736496), abs=1e-6)
    low, high = scipy_stats.t.interval(0.95, 2, loc=s.mean, scale=scipy_stats.sem(VALUES))
    assert (s.interval.low, s.interval.high) == pytest.approx((low, high), rel=1e-12)


def test_one_seed_has_no_spread():
    s = stats.summary([0.5])
    assert (s.n, s.mean, s.sd, s.interval) == (1, 0.5, None, None)
    assert isinstance(stats.t_interval([0.5]), Refusal)


@pytest.mark.parametrize("values", [[], [0.5, math.nan], [math.inf]])
def test_a_diverged_seed_cannot_enter_a_mean(values):
    with pytest.raises(ValueError, match=r"no values|not finite"):
        stats.summary(values)


def test_the_t_interval_covers_what_it_says_at_three_seeds():
    rng = np.random.default_rng(20240229)
    samples = rng.normal(0.8, 0.02, size=(20_000, 3))
    half = scipy_stats.t.ppf(0.975, 2) * samples.std(axis=1, ddof=1) / np.sqrt(3)
    probe = stats.t_interval(samples[0])
    assert probe.high - probe.low == pytest.approx(2 * half[0])  # the same formula, vectorised
    covered = np.mean(np.abs(samples.mean(axis=1) - 0.8) <= half)
    assert 0.93 < covered < 0.97
    singly = [stats.t_interval(s) for s in samples[:2000]]
    assert 0.93 < np.mean([i.low <= 0.8 <= i.high for i in singly]) < 0.97


def test_paired_differences_equal_scipys_related_t_test():
    result = stats.paired(A, B)
    test = scipy_stats.ttest_rel([A[s] for s in range(4)], [B[s] for s in range(4)])
    low, high = test.confidence_interval()
    assert result.p == pytest.approx(test.pvalue)
    assert (result.interval.low, result.interval.high) == pytest.approx((low, high))
    assert result.mean == pytest.approx(0.0225)


def test_only_seeds_of_both_variants_are_paired():
    assert tuple(stats.paired(A, {2: 0.7, 3: 0.7, 9: 0.0}).by_seed) == (2, 3)
    assert stats.paired({0: 0.5}, {0: 0.25}).refusal == "an interval needs at least 2 paired seeds"
    assert stats.paired({0: 0.5}, {1: 0.25}) == Refusal("no seed is finished in both variants")


def test_equal_differences_give_no_p():
    result = stats.paired({0: 0.5, 1: 0.6}, {0: 0.4, 1: 0.5})
    assert result.p is None and result.interval is None and "same amount" in result.refusal
    same = stats.equivalence({0: 0.5, 1: 0.6}, {0: 0.4, 1: 0.5}, 0.2)
    assert isinstance(same, Refusal) and "same amount" in same.reason
    assert isinstance(stats.t_interval([0.25, 0.25]), Refusal)


def test_runs_whose_seeds_are_not_ours_are_compared_unpaired():
    a, b = [0.7, 0.72, 0.69], [0.6, 0.63]
    found, test = stats.unpaired(a, b), scipy_stats.ttest_ind(a, b, equal_var=False)
    low, high = test.confidence_interval()
    assert (found.n, found.p, found.by_seed) == (2, pytest.approx(test.pvalue), {})
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high))
    assert stats.unpaired([0.5], [0.4, 0.5]).p is None


def test_a_reported_mean_is_an_interval_and_a_draw_of_its_own_runs():
    values = [0.740, 0.742, 0.744]
    sd, n = np.std(values, ddof=1), 3
    for m in (1, 5):
        gap = stats.gap_to_reported(values, 0.73, 0.0005, n=m)
        error = sd * math.sqrt(1 / n + 1 / m)
        assert (gap.mean, gap.error, gap.freedom) == pytest.approx((0.012, error, 2))
        least = 0.012 + 0.0005 + scipy_stats.t.ppf(0.95, 2) * error
        assert gap.within(least + 1e-9) and not gap.within(least - 1e-9)
        assert gap.nonzero is bool(0.012 - 0.0005 - scipy_stats.t.ppf(0.975, 2) * error > 0)


def test_a_reported_spread_is_used_as_welch_does():
    values, other = [0.740, 0.742, 0.744], [0.70, 0.72, 0.71, 0.69]
    gap = stats.gap_to_reported(values, np.mean(other), 0.0, n=4, sd=float(np.std(other, ddof=1)))
    test = scipy_stats.ttest_ind(values, other, equal_var=False)
    assert (gap.mean / gap.error, gap.freedom) == pytest.approx((test.statistic, test.df))
    assert stats.gap_to_reported(values[:2], 0.7, 0.0, n=4, sd=0.01).freedom == 1


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([0.1234, 0.5, 0.9], 1e-4),
        ([81.3 / 100, 57.1 / 100], 1e-3),
        ([3.0, 4.0], 1.0),
        ([float(np.float32(k / 30)) for k in (20, 25)], 4 / 1.5 * 2**-24 * float(np.float32(25 / 30))),
        ([1 / 3, 0.7123456], 0.0),
        ([], 1.0),
    ],
)
def test_the_unit_of_written_values(values, unit):
    assert stats.resolution(values) == pytest.approx(unit)


@pytest.mark.parametrize(
    "written", [lambda k: float(np.float32(k) / np.float32(30)), lambda k: round(k / 30, 4)]
)
def test_differences_that_only_rounding_tells_apart_are_not_tested(written):
    a, b = ({0: written(k), 1: written(k + 1)} for k in (22, 21))
    unit = stats.resolution([*a.values(), *b.values()])
    assert stats.paired(a, b).p is not None  # as if seeds had a spread
    found = stats.paired(a, b, unit)
    assert found.p is None and found.interval is None and "same amount" in found.refusal
    assert isinstance(stats.equivalence(a, b, 0.1, unit=unit), stats.Refusal)


@pytest.mark.parametrize(
    ("differences", "holds", "why"),
    [
        ([1.0, 1.1, 0.9], True, ""),
        ([-1.0, -1.1, -0.9], False, ""),
        ([1.0, -1.1, 0.9], None, "holds 0"),
        ([1.0, 1.0], None, "no spread"),
        ([5.0], None, "at least 2"),
        ([], None, "no seed"),
        ([math.inf, math.inf], True, ""),
        ([-math.inf, -1.0], False, ""),
        ([math.inf, -1.0], None, "diverged"),
        ([math.nan, 1.0], None, "no value"),
    ],
)
def test_a_statement_is_decided_by_its_interval(differences, holds, why):
    decision = stats.decide(differences)
    assert decision.holds is holds and why in decision.why


@pytest.mark.parametrize(
    ("differences", "holds"),
    [
        ([0.1, -0.1, 0.05], True),
        ([3.0, 3.1, 2.9], False),
        ([0.5, 1.5, 1.0], None),
        ([math.inf, math.inf], False),
        ([math.inf, 0.0], None),
    ],
)
def test_being_near_is_decided_by_two_one_sided_tests(differences, holds):
    assert stats.decide(differences, 1.0).holds is holds


def test_holm_by_hand():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # One without a p (its seeds diverged) would have been starred too, and counts.
    assert stats.holm([0.01, None, 0.04]) == pytest.approx([0.03, None, 0.08])
    assert stats.holm([0.0135, None, None, None, None])[0] == pytest.approx(0.0675)
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]


def test_sign_flips_equal_scipys_permutation_test():
    values = [0.02, 0.03, -0.01, 0.04, 0.05, 0.01]
    ours = stats.sign_flip_test(values)
    theirs = scipy_stats.permutation_test(
        (np.array(values), np.zeros(6)),
        lambda x, y: np.mean(x - y),
        permutation_type="samples",
        n_resamples=np.inf,
    )
    assert ours == pytest.approx(theirs.pvalue)


def test_a_test_that_cannot_reach_its_level_is_refused_with_the_number_of_seeds_needed():
    answer = stats.sign_flip_test([0.1, 0.2, 0.3])
    assert answer.reason == (
        "with 3 paired seeds the smallest possible p is 0.25, above 0.05: at least 6 seeds are needed"
    )
    assert isinstance(stats.sign_flip_test([0.1] * 6), float)


def test_many_differences_are_drawn_with_the_given_seed_only():
    values = np.random.default_rng(1).normal(0.2, 1.0, size=30)
    np.random.seed(0)
    first = stats.sign_flip_test(values, seed=3)
    np.random.seed(1)
    assert stats.sign_flip_test(values, seed=3) == first
    assert first == pytest.approx(scipy_stats.ttest_1samp(values, 0).pvalue, abs=0.02)


def test_probability_of_improvement_is_mann_whitneys_u():
    a, b = [0.3, 0.5, 0.7, 0.5], [0.4, 0.5, 0.2]
    u = scipy_stats.mannwhitneyu(a, b).statistic
    assert stats.probability_of_improvement(a, b) == pytest.approx(u / 12)
    assert stats.probability_of_improvement(a, b, direction="down") == pytest.approx(1 - u / 12)


def test_equivalence_needs_evidence_and_not_just_no_difference():
    near = {s: v + d for (s, v), d in zip(A.items(), (0.001, -0.001, 0.002, 0.0), strict=True)}
    wide = {0: 0.9, 1: 0.5, 2: 0.9, 3: 0.5}
    assert stats.equivalence(near, A, 0.01).equivalent
    answer = stats.equivalence(wide, A, 0.01)
    assert not answer.equivalent and stats.paired(wide, A).p > 0.05
    assert isinstance(stats.equivalence({0: 1.0}, {0: 1.0}, 0.01), Refusal)
    with pytest.raises(ValueError, match="not positive"):
        stats.equivalence(A, B, 0.0)


def test_equivalence_equals_two_one_sided_tests():
    margin = 0.05
    d = np.array([A[s] - B[s] for s in range(4)])
    p = max(
        scipy_stats.ttest_1samp(d, -margin, alternative="greater").pvalue,
        scipy_stats.ttest_1samp(d, margin, alternative="less").pvalue,
    )
    answer = stats.equivalence(A, B, margin)
    assert answer.p == pytest.approx(p)
    inside = -margin < answer.interval.low and answer.interval.high < margin
    assert answer.equivalent == inside


def test_seeds_with_equal_curves_are_found():
    curves = {0: [1.0, 0.5], 1: [1.0, 0.6], 2: [1.0, 0.5], 3: [0.9], 4: [0.9]}
    assert stats.identical_curves(curves) == [(0, 2)]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12))
def test_the_interval_lies_around_the_mean_and_shifts_with_it(values):
    s = stats.summary(values)
    if s.interval is None:
        assert np.ptp(values) <= 1e-12 * max(1.0, max(map(abs, values)))
        return
    assert s.interval.low <= s.mean <= s.interval.high


def test_differences_within_the_rounding_decide_no_claim():
    differences = [0.0333, 0.0334, 0.0333]
    assert stats.decide(differences).holds and stats.decide(differences, 0.1).holds
    for margin in (None, 0.1):
        assert stats.decide(differences, margin, unit=1e-4).holds is None
