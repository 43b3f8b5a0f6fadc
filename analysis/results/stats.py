"""Statistics over seeds: pure functions on small samples, which refuse what few seeds cannot show.

The unit of replication is one run (a variant and a seed), not an image, a query or an epoch. Our seeds
are paired across variants, because a seed fixes initialisation and data order in both; other people's
are not. Functions that draw random numbers take a seed and touch no global generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import special

CONFIDENCE = 0.95
ALPHA = 0.05
TIE = 1.5  # units of the last digit within which differences lie that rounding alone makes


def resolution(values: Iterable[float]) -> float:
    """The unit in which the values of a metric were written: 0.0001 where all have four decimals.

    At most six decimals count as written ones. Otherwise values that are all float32 have the unit of
    the largest; 0 where they are neither.
    """
    array = np.unique(np.fromiter(values, dtype=np.float64))
    largest = float(np.abs(array).max(initial=0.0))
    for digits in range(7):
        if np.abs(array - np.round(array, digits)).max(initial=0.0) <= 1e-12 * max(1.0, largest):
            return 10.0**-digits
    if (array == array.astype(np.float32)).all():
        return 4 / TIE * 2**-24 * largest
    return 0.0


@dataclass(frozen=True)
class Summary:
    """A mean over seeds, of values or of differences; NaN is what the sample cannot give.

    Attributes:
        n: values; of unpaired differences the smaller of both samples.
        freedom: degrees of freedom of the interval.
        sd: sample standard deviation (ddof 1). low, high: Student's 95 % interval of the mean, exact
            for normal values at every n > 1. p: of the two-sided t test of mean 0.
        why: why there is no interval and no p.
        by_seed: seed to difference, where seeds are paired.
    """

    n: int = 0
    mean: float = math.nan
    sd: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    why: str = ""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    freedom: float = math.nan


def summary(values: Sequence[float] | np.ndarray, unit: float = 0.0) -> Summary:
    """What is printed of values, one a seed.

    No interval where all are equal: a score on few queries takes few values, so two equal seeds are
    common and do not mean that a third one would be the same.

    Args:
        unit: in which the values were written (`resolution`). Those that are equal but for rounding are
            not tested: their spread is not that of seeds.

    Raises:
        ValueError: no value, or one that is not finite (a diverged run is not a value).
    """
    array = _sample(values)
    n, mean = len(array), float(np.mean(array))
    if n < 2:
        return Summary(n, mean, why="an interval needs at least 2 seeds")
    sd = float(np.std(array, ddof=1))
    if _no_spread(array, unit):
        return Summary(n, mean, sd, why=_tied(unit))
    error = sd / math.sqrt(n)
    half = _t_quantile((1 + CONFIDENCE) / 2, n - 1) * error
    p = 2 * _t_above(abs(mean) / error, n - 1)
    return Summary(n, mean, sd, mean - half, mean + half, p, freedom=n - 1)


def paired(a: Mapping[int, float], b: Mapping[int, float], unit: float = 0.0) -> Summary:
    """Difference a - b by seed of two variants; seeds that only one of them has do not enter."""
    by_seed = {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}
    if not by_seed:
        return Summary(why="no seed has a value in both variants")
    return replace(summary(list(by_seed.values()), unit), by_seed=by_seed)


def _tied(unit: float) -> str:
    rounding = f" beyond the rounding of values (written in units of {unit:.2g})" if unit else ""
    return f"seeds have no spread{rounding}: there is nothing to test against"


def unpaired(a: Sequence[float], b: Sequence[float], unit: float = 0.0) -> Summary:
    """Difference of two independent samples (Welch): for runs whose seeds mean nothing to ours."""
    if not len(a) or not len(b):
        return Summary(why="one of the two has no finished run")
    left, right = _sample(a), _sample(b)
    n, mean = min(len(left), len(right)), float(np.mean(left) - np.mean(right))
    if n < 2:
        return Summary(n, mean, why="an interval needs at least 2 runs of each")
    if _no_spread(left, unit) and _no_spread(right, unit):
        return Summary(n, mean, why=_tied(unit))
    from scipy.stats import ttest_ind  # half a second, which most verbs do without

    test = ttest_ind(left, right, equal_var=False)
    low, high = map(float, test.confidence_interval(CONFIDENCE))
    return Summary(n, mean, low=low, high=high, p=float(test.pvalue), freedom=float(test.df))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the given order.

    NaN (a comparison without a p, such as one whose seeds diverged) stays NaN and counts: it was looked
    at as the others were, and would have been starred.
    """
    p = np.array(p_values, dtype=np.float64)
    known = np.argsort(p)[: np.isfinite(p).sum()]
    p[known] = np.minimum(np.maximum.accumulate(p[known] * (len(p) - np.arange(len(known)))), 1.0)
    return [float(value) for value in p]


def least_starred(half: float, n: int, family: int) -> float:
    """The smallest mean of n paired differences that would be starred with this half interval.

    That is Holm's first step over `family` differences. Later steps ask for less: beside larger ones a
    smaller one may be starred.
    """
    first, single = (_t_quantile(1 - share / 2, n - 1) for share in (ALPHA / family, ALPHA))
    return half * first / single


@dataclass(frozen=True)
class Test:
    """p of a test, or why there is none."""

    p: float | None
    why: str = ""

    def shows(self, level: float = ALPHA) -> bool:
        return self.p is not None and self.p < level


def sign_flip_test(differences: Sequence[float]) -> Test:
    """Two-sided p of a paired permutation test of the mean: no distribution assumed.

    Exact up to 14 differences, of 20,000 draws with one seed beyond. Refused where even the most
    extreme outcome, 2 of 2^n sign patterns, cannot reach 5 %.
    """
    n = len(differences)
    least = 2.0 / 2.0**n
    if least > ALPHA:
        needed = math.ceil(1 - math.log2(ALPHA))
        return Test(
            None,
            f"with {n} paired seeds the smallest possible p is {least:.3g}, above {ALPHA:g}: "
            f"at least {needed} seeds are needed",
        )
    from scipy.stats import permutation_test  # see above

    how: dict[str, Any] = {"permutation_type": "samples", "n_resamples": 20_000, "random_state": 0}
    found = permutation_test((_sample(differences),), np.mean, vectorized=True, **how)
    return Test(float(found.pvalue))


def equivalence(
    a: Mapping[int, float], b: Mapping[int, float], margin: float, *, unit: float = 0.0
) -> Test:
    """Whether two variants, paired by seed, differ by less than `margin`: two one-sided t tests.

    "No difference found" is no equivalence.

    Args:
        margin: above 0.
    """
    return _within(paired(a, b, unit), margin)


def _within(found: Summary, margin: float) -> Test:
    if math.isnan(found.p):
        return Test(None, found.why)
    error = found.sd / math.sqrt(found.n)
    return Test(_t_above((margin - abs(found.mean)) / error, found.n - 1))


@dataclass(frozen=True)
class Gap:
    """Our mean minus a mean that somebody reports, with what keeps either from the truth.

    Attributes:
        rounding: half a unit of the reported number's last digit.
        error: standard error of the gap; freedom: degrees of freedom of its t quantiles.
    """

    mean: float
    rounding: float
    error: float
    freedom: float

    def within(self, tolerance: float) -> bool:
        """Whether the truths differ by less than `tolerance`: two one-sided tests at 5 %."""
        half = _t_quantile(1 - ALPHA, self.freedom) * self.error
        return abs(self.mean) + self.rounding + half < tolerance

    @property
    def nonzero(self) -> bool:
        """Whether the truths differ: the 95 % interval, widened by the rounding, excludes 0."""
        half = _t_quantile((1 + CONFIDENCE) / 2, self.freedom) * self.error
        return abs(self.mean) - self.rounding - half > 0


def gap_to_reported(
    values: Sequence[float] | np.ndarray,
    reported: float,
    rounding: float,
    *,
    n: int = 1,
    sd: float | None = None,
    unit: float = 0.0,
) -> Gap | None:
    """Our seeds against a reported mean of `n` runs, which is a draw too; None without spread.

    Without a reported spread ours stands in for theirs: the standard error is s sqrt(1/m + 1/n) with
    our degrees of freedom. With one it is Welch's; at two runs of either with one degree of freedom.

    Args:
        rounding: half a unit of the reported mean's last digit.
        sd: what the reported spread may be at most, its own rounding included; needs n of 2 or more.
        unit: in which our values were written (`resolution`).
    """
    found = summary(values, unit)
    if math.isnan(found.p):
        return None
    ours, gap, variance = found.n, found.mean - reported, found.sd**2 / found.n
    if sd is None:
        return Gap(gap, rounding, math.sqrt(variance * (1 + ours / n)), ours - 1)
    theirs = sd**2 / n
    total = variance + theirs
    freedom = total**2 / (variance**2 / (ours - 1) + theirs**2 / (n - 1))
    return Gap(gap, rounding, math.sqrt(total), 1 if min(ours, n) == 2 else freedom)


@dataclass(frozen=True)
class Decision:
    """Whether a statement about a mean holds: True, False, or None where these seeds cannot tell.

    Attributes:
        why: why it is None; empty otherwise.
    """

    holds: bool | None
    why: str = ""


def decide(differences: Sequence[float], margin: float | None = None, unit: float = 0.0) -> Decision:
    """Whether the mean of differences (one a seed) is above 0, by its 95 % t interval.

    A seed that diverged has an infinite difference: all of one sign decide, others do not.

    Args:
        margin: asks instead whether the mean is nearer to 0 than that. True: shown by two one-sided
            tests at 5 %. False: the 95 % t interval lies outside the margin.
        unit: in which the values were written (`resolution`); equal but for rounding decides nothing.
    """
    array = np.asarray(differences, dtype=np.float64)
    if not array.size or np.isnan(array).any():
        return Decision(None, "a seed has no value" if array.size else "no seed has finished")
    if np.isinf(array).any():
        if margin is None and ((array > 0).all() or (array < 0).all()):
            return Decision(bool(array[0] > 0))
        if margin is not None and np.isinf(array).all() and len(set(np.sign(array))) == 1:
            return Decision(False)
        return Decision(None, "some seeds diverged and others say the opposite or did not")
    found = summary(array, unit)
    if math.isnan(found.p):
        return Decision(None, found.why)
    edge = margin or 0.0
    if margin is not None and _within(found, margin).shows():
        return Decision(True)
    if found.low > edge or found.high < -edge:
        return Decision(bool(found.low > 0) if margin is None else False)
    crossed = "holds 0" if margin is None else f"crosses the margin {margin:g}"
    return Decision(None, f"the 95 % interval of the difference {crossed}")


# Student's t without scipy.stats' checks of arguments, which take a hundred times as long.
def _t_quantile(share: float, freedom: float) -> float:
    return float(special.stdtrit(freedom, share))


def _t_above(t: float, freedom: int) -> float:
    """Chance of a value above `t`."""
    return float(special.stdtr(freedom, -t))


def _sample(values: Sequence[float] | np.ndarray) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("no values")
    if not np.isfinite(array).all():
        raise ValueError("a value is not finite: a diverged run is no replicate of a finished one")
    return array


def _no_spread(array: np.ndarray, unit: float = 0.0) -> bool:
    """Whether all values are equal but for rounding, of floating point or to `unit`."""
    return float(np.ptp(array)) <= max(TIE * unit, 1e-12 * max(1.0, float(np.abs(array).max())))
