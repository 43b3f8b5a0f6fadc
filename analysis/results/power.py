"""How many seeds settle a question, averaged over what a pilot leaves open of the spread.

The variance of a paired difference is moderated by the other variants' (as in empirical Bayes for few
replicates); power is averaged over it. So a plan keeps its 80 % on average, and single plans more or
less (see docs/decisions). It never rests on the pilot's own mean, which would chase chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from analysis.results.stats import ALPHA

POWER = 0.8
MOST = 1000  # seeds; beyond, no plan is made
_GRID = (np.arange(100) + 0.5) / 100  # quantiles over which the unknown spread is averaged
# A difference below so many standard errors of the queries is not settled by more seeds: with twice as
# many the power for new queries of the same kind is 48 %, with 2.8 about 76 %.
QUERY_ERRORS = 2.8


@dataclass(frozen=True)
class Spread:
    """The variance of a paired difference between seeds, as known from a pilot."""

    variance: float
    freedom: float

    def likely(self) -> np.ndarray:
        """Standard deviations [100] that the pilot leaves open, equally likely."""
        return np.sqrt(
            self.variance * self.freedom / (2 * special.gammaincinv(self.freedom / 2, _GRID))
        )


def spread(differences: Sequence[float], scores: np.ndarray) -> Spread:
    """The variance of one variant's paired differences, moderated by all variants.

    Args:
        differences: to the baseline, one a seed; two or more.
        scores: [variants and baseline, seeds] of the runs that all variants have.
    """
    n = len(differences)
    own = float(np.var(differences, ddof=1))
    rows, seeds = scores.shape
    if rows < 3 or seeds < 2:
        return Spread(own, n - 1)
    residual = scores - scores.mean(1, keepdims=True) - scores.mean(0) + scores.mean()
    pooled = 2 * float((residual**2).sum()) / ((rows - 1) * (seeds - 1))
    prior = min(4, (rows - 2) * (seeds - 1))
    return Spread((own * (n - 1) + pooled * prior) / (n - 1 + prior), n - 1 + prior)


Question = Callable[[int, np.ndarray], np.ndarray]  # seeds, standard deviations -> chance of an answer


def starred(difference: float, family: int) -> Question:
    """A true difference gets a star among `family` ones (Holm's first step)."""

    def chance(n: int, sd: np.ndarray) -> np.ndarray:
        t = special.stdtrit(n - 1, 1 - ALPHA / (2 * family))
        shift = np.minimum(abs(difference) * math.sqrt(n) / sd, 1e3)
        found = 1 - special.nctdtr(n - 1, shift, t)
        return np.where(np.isnan(found), shift > t, found)

    return chance


def narrow(half_width: float) -> Question:
    """The 95 % interval of the difference is at most that far to either side."""

    def chance(n: int, sd: np.ndarray) -> np.ndarray:
        largest = half_width * math.sqrt(n) / special.stdtrit(n - 1, 1 - ALPHA / 2)
        return np.asarray(special.gammainc((n - 1) / 2, (largest / sd) ** 2 * (n - 1) / 2))

    return chance


def equivalent(margin: float) -> Question:
    """A variant without an effect is shown to be within the margin (two one-sided tests)."""

    def chance(n: int, sd: np.ndarray) -> np.ndarray:
        observed = np.sqrt(2 * special.gammaincinv((n - 1) / 2, _GRID) / (n - 1))[:, None]
        room = margin * math.sqrt(n) / sd - special.stdtrit(n - 1, 1 - ALPHA) * observed
        return np.asarray(np.maximum(2 * special.ndtr(room) - 1, 0).mean(axis=0))

    return chance


def seeds_needed(question: Question, known: Spread) -> int | None:
    """The fewest seeds that answer with 80 %, averaged over the spread; None beyond `MOST`."""
    sd = known.likely()

    def enough(n: int) -> bool:
        return bool(question(n, sd).mean() >= POWER)

    low, high = 1, 2
    while not enough(high):
        if high >= MOST:
            return None
        low, high = high, min(2 * high, MOST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
