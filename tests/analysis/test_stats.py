"""Statistics equal scipy's where it has them, and are refused where few seeds cannot give them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from analysis.results import stats

VALUES = [0.812, 0.809, 0.123]
A = {0: 0.71, 1: 0.73, 2: 0.70, 3: 0.75}
B = {0: 0.69, 1: 0.70, 2: 0.70, 3: 0.71}


def test_golden_numbers_of_three_seeds():
    s = stats.summary(VALUES)
    assert (s.n, s.mean) == (3, pytest.approx(0.58133333, abs=1e-8))
    assert s.sd == pytest.approx(0.39693114, abs=1e-8)  # ddof 0 gives 0.32409
    assert (s.low, s.high) == pytest.approx((-0.40469829, 1.56736496), abs=1e-6)


@pytest.mark.parametrize("values", [[], [0.5, math.nan], [math.inf]])
def test_a_diverged_seed_cannot_enter_a_mean(values):
    with pytest.raises(ValueError, match=r"no values|not finite"):
        stats.summary(values)


def test_paired_differences_equal_scipys_related_t_test():
    result = stats.paired(A, B)
    test = scipy_stats.ttest_rel(list(A.values()), list(B.values()))
    assert result.p == pytest.approx(test.pvalue) and result.mean == pytest.approx(0.0225)
    assert (result.low, result.high) == pytest.approx(tuple(test.confidence_interval()))
    assert tuple(stats.paired(A, {2: 0.7, 3: 0.7, 9: 0.0}).by_seed) == (2, 3)


@pytest.mark.parametrize(
    ("a", "b", "n", "why"),
    [
        ({0: 0.5}, {0: 0.25}, 1, "at least 2 seeds"),
        ({0: 0.5}, {1: 0.25}, 0, "no seed has a value in both"),
        ({0: 0.5, 1: 0.6}, {0: 0.4, 1: 0.5}, 2, "no spread"),
    ],
)
def test_what_few_seeds_cannot_give_is_refused_with_the_reason(a, b, n, why):
    found, same = stats.paired(a, b), stats.equivalence(a, b, 0.2)
    assert found.n == n and np.isnan([found.low, found.high, found.p]).all() and why in found.why
    assert same.p is None and not same.shows() and same.why == found.why


def test_runs_whose_seeds_are_not_ours_are_compared_unpaired():
    a, b = [0.7, 0.72, 0.69], [0.6, 0.63]
    found, test = stats.unpaired(a, b), scipy_stats.ttest_ind(a, b, equal_var=False)
    assert (found.n, found.p, found.by_seed) == (2, pytest.approx(test.pvalue), {})
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval()))
    assert math.isnan(stats.unpaired([0.5], [0.4, 0.5]).p)


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
    assert stats.paired(a, b).p >= 0  # as if seeds had a spread
    found = stats.paired(a, b, unit)
    assert math.isnan(found.p) and math.isnan(found.low) and "no spread" in found.why
    assert stats.equivalence(a, b, 0.1, unit=unit).p is None


@pytest.mark.parametrize(
    ("differences", "margin", "unit", "holds", "why"),
    [
        ([1.0, 1.1, 0.9], None, 0.0, True, ""),
        ([-1.0, -1.1, -0.9], None, 0.0, False, ""),
        ([1.0, -1.1, 0.9], None, 0.0, None, "holds 0"),
        ([1.0, 1.0], None, 0.0, None, "no spread"),
        ([5.0], None, 0.0, None, "at least 2"),
        ([], None, 0.0, None, "no seed"),
        ([math.inf, math.inf], None, 0.0, True, ""),
        ([-math.inf, -1.0], None, 0.0, False, ""),
        ([math.inf, -1.0], None, 0.0, None, "diverged"),
        ([math.nan, 1.0], None, 0.0, None, "no value"),
        ([0.1, -0.1, 0.05], 1.0, 0.0, True, ""),
        ([3.0, 3.1, 2.9], 1.0, 0.0, False, ""),
        ([-3.0, -3.1, -2.9], 1.0, 0.0, False, ""),
        ([0.5, 1.5, 1.0], 1.0, 0.0, None, "crosses the margin"),
        ([math.inf, math.inf], 1.0, 0.0, False, ""),
        ([math.inf, 0.0], 1.0, 0.0, None, "diverged"),
        # within the rounding of values
        ([0.0333, 0.0334, 0.0333], None, 0.0, True, ""),
        ([0.0333, 0.0334, 0.0333], 0.1, 0.0, True, ""),
        ([0.0333, 0.0334, 0.0333], None, 1e-4, None, "no spread"),
        ([0.0333, 0.0334, 0.0333], 0.1, 1e-4, None, "no spread"),
    ],
)
def test_a_statement_is_decided_by_its_interval_or_by_two_one_sided_tests(
    differences, margin, unit, holds, why
):
    decision = stats.decide(differences, margin, unit)
    assert decision.holds is holds and why in decision.why


def test_holm_by_hand():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # One without a p (its seeds diverged) would have been starred too, and counts.
    nan = math.nan
    assert stats.holm([0.01, nan, 0.04]) == pytest.approx([0.03, nan, 0.08], nan_ok=True)
    assert stats.holm([0.0135, nan, nan, nan, nan])[0] == pytest.approx(0.0675)
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0] and stats.holm([]) == []


def test_sign_flips_are_counted_and_refused_where_they_cannot_reach_their_level():
    values = [0.02, 0.03, -0.01, 0.04, 0.05, 0.01]
    assert stats.sign_flip_test(values).p == pytest.approx(6 / 2**6)
    assert "0.25, above 0.05: at least 6 seeds" in stats.sign_flip_test([0.1, 0.2, 0.3]).why


def test_many_differences_are_drawn_with_a_seed_of_their_own():
    values = np.random.default_rng(1).normal(0.2, 1.0, size=30)
    np.random.seed(0)
    first = stats.sign_flip_test(values)
    np.random.seed(1)
    assert stats.sign_flip_test(values) == first
    assert first.p == pytest.approx(scipy_stats.ttest_1samp(values, 0).pvalue, abs=0.02)


def test_equivalence_needs_evidence_and_not_just_no_difference():
    near = {s: v + d for (s, v), d in zip(A.items(), (0.001, -0.001, 0.002, 0.0), strict=True)}
    wide = {0: 0.9, 1: 0.5, 2: 0.9, 3: 0.5}
    assert stats.equivalence(near, A, 0.01).shows()
    assert not stats.equivalence(wide, A, 0.01).shows() and stats.paired(wide, A).p > 0.05
    d = np.array([A[s] - B[s] for s in range(4)])
    p = max(
        scipy_stats.ttest_1samp(d, -0.05, alternative="greater").pvalue,
        scipy_stats.ttest_1samp(d, 0.05, alternative="less").pvalue,
    )
    assert stats.equivalence(A, B, 0.05).p == pytest.approx(p)
