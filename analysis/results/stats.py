"""Statistics over seeds: pure functions on small samples, which refuse what few seeds cannot show.

The unit of replication is one run (a variant and a seed), not an image, a query or an epoch. Our seeds
are paired across variants, because a seed fixes initialisation and data order in both; other people's
are not. Functions that draw random numbers take a seed and touch no global generator.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import special
from scipy.stats import ttest_ind

CONFIDENCE = 0.95
ALPHA = 0.05
EQUAL = "all seeds give the same value: no spread to test against"
EXACT_LIMIT = 14  # paired differences whose sign flips are counted one by one (2^14 = 16,384)


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
class Refusal:
    """A statistic that this sample cannot give, and why."""

    reason: str


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """What is printed of n values.

    `sd` is None for n = 1. `interval` is None for n = 1 and where all values are equal.
    """

    n: int
    mean: float
    sd: float | None
    interval: Interval | None


def summary(values: Sequence[float] | np.ndarray) -> Summary:
    """Mean, sample standard deviation (ddof 1) and t interval of the mean.

    Raises:
        ValueError: no value, or one that is not finite (a diverged run is not a value).
    """
    array = _sample(values)
    n = len(array)
    sd = float(np.std(array, ddof=1)) if n > 1 else None
    interval = t_interval(array)
    return Summary(
        n=n,
        mean=float(np.mean(array)),
        sd=sd,
        interval=interval if isinstance(interval, Interval) else None,
    )


def t_interval(
    values: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE
) -> Interval | Refusal:
    """Student's interval of the mean, exact for normal values at every n > 1.

    Refused for a single value, and where all values are equal: a score on few queries takes few values,
    so two equal seeds are common and do not mean that a third one would be the same.
    """
    array = _sample(values)
    n = len(array)
    if n < 2:
        return Refusal("an interval needs at least 2 seeds")
    if _no_spread(array):
        return Refusal(EQUAL)
    mean, error = float(np.mean(array)), float(np.std(array, ddof=1)) / math.sqrt(n)
    half = _t_quantile((1 + confidence) / 2, n - 1) * error
    return Interval(mean - half, mean + half)


@dataclass(frozen=True)
class Difference:
    """Mean difference a - b of two variants.

    `interval` and `p` (two-sided t test of mean 0) are None where the sample cannot give them;
    `refusal` then says why.

    Attributes:
        n: pairs of seeds, or the smaller of both samples where seeds are not paired.
        by_seed: seed to difference; empty where seeds are not paired.
    """

    n: int
    mean: float
    sd: float | None = None
    interval: Interval | None = None
    p: float | None = None
    refusal: str = ""
    by_seed: Mapping[int, float] = field(default_factory=dict)


def paired(a: Mapping[int, float], b: Mapping[int, float], unit: float = 0.0) -> Difference | Refusal:
    """Difference by seed of two variants; seeds that only one of them has do not enter.

    Args:
        unit: in which the values were written (`resolution`). Differences that are equal but for
            rounding are not tested: their spread is not that of seeds.
    """
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        return Refusal("no seed is finished in both variants")
    by_seed = {seed: a[seed] - b[seed] for seed in seeds}
    values = _sample(list(by_seed.values()))
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return Difference(n, mean, refusal="an interval needs at least 2 paired seeds", by_seed=by_seed)
    sd = float(np.std(values, ddof=1))
    interval = t_interval(values)
    if isinstance(interval, Refusal) or _no_spread(values, unit):
        return Difference(n, mean, sd, refusal=_tied(unit), by_seed=by_seed)
    p = 2 * _t_above(abs(mean) / (sd / math.sqrt(n)), n - 1)
    return Difference(n, mean, sd, interval, p, by_seed=by_seed)


def _tied(unit: float) -> str:
    rounding = f" (values are written in units of {unit:.2g})" if unit else ""
    return f"all seeds differ by the same amount{rounding}: no spread to test against"


def unpaired(a: Sequence[float], b: Sequence[float], unit: float = 0.0) -> Difference | Refusal:
    """Difference of two independent samples (Welch): for runs whose seeds mean nothing to ours."""
    if not len(a) or not len(b):
        return Refusal("one of the two has no finished run")
    left, right = _sample(a), _sample(b)
    n, mean = min(len(left), len(right)), float(np.mean(left) - np.mean(right))
    if n < 2:
        return Difference(n, mean, refusal="an interval needs at least 2 runs of each")
    if _no_spread(left, unit) and _no_spread(right, unit):
        return Difference(n, mean, refusal=EQUAL)
    test = ttest_ind(left, right, equal_var=False)
    low, high = test.confidence_interval(CONFIDENCE)
    return Difference(n, mean, None, Interval(float(low), float(high)), float(test.pvalue))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p values, in the given order.

    None (a comparison without a p, such as one whose seeds diverged) stays None and counts: it was
    looked at as the others were, and would have been starred.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        adjusted[index] = largest
    return adjusted


def least_starred(interval: Interval, n: int, family: int) -> float:
    """The smallest mean of n paired differences that would be starred, with this interval's spread.

    That is Holm's first step over `family` differences. Later steps ask for less: beside larger ones a
    smaller one may be starred.
    """
    half = (interval.high - interval.low) / 2
    quantiles = [_t_quantile(1 - share / 2, n - 1) for share in (ALPHA / family, ALPHA)]
    return half * quantiles[0] / quantiles[1]


def sign_flip_test(
    differences: Sequence[float] | np.ndarray,
    *,
    alpha: float = ALPHA,
    draws: int = 20_000,
    seed: int = 0,
) -> float | Refusal:
    """Two-sided p of a paired permutation test of the mean: no distribution assumed.

    Exact up to `EXACT_LIMIT` differences, drawn with `seed` beyond. Refused where even the most
    extreme outcome, 2 of 2^n sign patterns, cannot reach `alpha`.
    """
    array = _sample(differences)
    n = len(array)
    least = 2.0 / 2.0**n
    if least > alpha:
        return Refusal(
            f"with {n} paired seeds the smallest possible p is {least:.3g}, above {alpha:g}: "
            f"at least {int(np.ceil(1 - np.log2(alpha)))} seeds are needed"
        )
    observed = abs(array.mean()) * (1 - 1e-12)
    if n <= EXACT_LIMIT:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=n)))
        return float(np.mean(np.abs(signs @ array) / n >= observed))
    rng = np.random.default_rng(seed)
    signs = rng.choice((-1.0, 1.0), size=(draws, n))
    return float((1 + np.sum(np.abs(signs @ array) / n >= observed)) / (draws + 1))


def probability_of_improvement(
    a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray, *, direction: str = "up"
) -> float:
    """Chance that a random run of `a` is better than one of `b`; ties count half."""
    left, right = _sample(a)[:, None], _sample(b)[None, :]
    better = left > right if direction == "up" else left < right
    return float(np.mean(better + 0.5 * (left == right)))


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests against a margin."""

    equivalent: bool
    p: float
    interval: Interval  # at 1 - 2 alpha: equivalence is this interval lying inside the margin
    margin: float


def equivalence(
    a: Mapping[int, float],
    b: Mapping[int, float],
    margin: float,
    *,
    unit: float = 0.0,
    alpha: float = ALPHA,
) -> Equivalence | Refusal:
    """Whether two variants, paired by seed, differ by less than `margin`.

    "No difference found" is no equivalence.

    Raises:
        ValueError: the margin is not positive.
    """
    seeds = sorted(a.keys() & b.keys())
    if len(seeds) < 2:
        _positive(margin)
        return Refusal("equivalence needs at least 2 paired seeds")
    difference = _sample([a[s] - b[s] for s in seeds])
    if _no_spread(difference, unit):
        return Refusal(_tied(unit))
    return _within(difference, margin, alpha)


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
) -> Gap | Refusal:
    """Our seeds against a reported mean of `n` runs, which is a draw too.

    Without a reported spread ours stands in for theirs: the standard error is s sqrt(1/m + 1/n) with
    our degrees of freedom. With one it is Welch's; at two runs of either with one degree of freedom.

    Args:
        rounding: half a unit of the reported mean's last digit.
        sd: what the reported spread may be at most, its own rounding included; needs n of 2 or more.
        unit: in which our values were written (`resolution`).
    """
    array = _sample(values)
    ours, gap = len(array), float(np.mean(array)) - reported
    if ours < 2:
        return Refusal("a verdict needs at least 2 seeds")
    if _no_spread(array, unit):
        return Refusal(EQUAL)
    variance = float(np.var(array, ddof=1)) / ours
    if sd is None:
        return Gap(gap, rounding, math.sqrt(variance * (1 + ours / n)), ours - 1)
    theirs = sd**2 / n
    total = variance + theirs
    freedom = total**2 / (variance**2 / (ours - 1) + theirs**2 / (n - 1))
    return Gap(gap, rounding, math.sqrt(total), 1 if min(ours, n) == 2 else freedom)


def _within(values: np.ndarray, margin: float, alpha: float = ALPHA) -> Equivalence:
    """Two one-sided tests of |mean| < margin."""
    _positive(margin)
    n, mean = len(values), float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(n)
    half = _t_quantile(1 - alpha, n - 1) * error
    p = max(_t_above((margin + mean) / error, n - 1), _t_above((margin - mean) / error, n - 1))
    return Equivalence(p < alpha, p, Interval(mean - half, mean + half), margin)


def _positive(margin: float) -> None:
    if margin <= 0:
        raise ValueError(f"margin {margin} is not positive")


@dataclass(frozen=True)
class Decision:
    """Whether a statement about a mean holds: True, False, or None where these seeds cannot tell.

    Attributes:
        why: why it is None; empty otherwise.
        interval: 95 % t interval of the mean, where there is one.
    """

    holds: bool | None
    why: str = ""
    interval: Interval | None = None


def decide(differences: Sequence[float], margin: float | None = None, unit: float = 0.0) -> Decision:
    """Whether the mean of differences (one a seed) is above 0, by its 95 % t interval.

    A seed that diverged has an infinite difference: all of one sign decide, others do not.

    Args:
        margin: asks instead whether the mean is nearer to 0 than that. True: shown by two one-sided
            tests at 5 %. False: the 95 % t interval lies outside the margin.
        unit: in which the values were written (`resolution`); equal but for rounding decides nothing.

    Raises:
        ValueError: the margin is not positive.
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
    interval = t_interval(array)
    if isinstance(interval, Refusal) or _no_spread(array, unit):
        return Decision(None, interval.reason if isinstance(interval, Refusal) else _tied(unit))
    if margin is None:
        if interval.low > 0 or interval.high < 0:
            return Decision(bool(interval.low > 0), interval=interval)
        return Decision(None, "the 95 % interval of the difference holds 0", interval)
    if _within(array, margin).equivalent:
        return Decision(True, interval=interval)
    if interval.low >= margin or interval.high <= -margin:
        return Decision(False, interval=interval)
    return Decision(
        None, f"the 95 % interval of the difference crosses the margin {margin:g}", interval
    )


def identical_curves(curves: Mapping[Hashable, Sequence[float] | np.ndarray]) -> list[tuple]:
    """Groups of keys (seeds) whose curves are equal in every value: a seed that changes nothing.

    Curves of fewer than two values are left out: they may agree by chance.
    """
    groups: dict[bytes, list[Hashable]] = {}
    for key, curve in curves.items():
        array = np.asarray(curve, dtype=np.float64)
        if array.size >= 2:
            groups.setdefault(array.tobytes(), []).append(key)
    return [tuple(keys) for keys in groups.values() if len(keys) > 1]


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
