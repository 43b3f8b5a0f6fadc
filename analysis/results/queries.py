"""How far a difference holds for new queries."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from analysis.results import stats
from analysis.results.stats import CONFIDENCE, Summary
from sdtps.run.folder import RunFolder
from sdtps.run.queries import values_of

if TYPE_CHECKING:
    from analysis.results.frames import Result, Results
    from analysis.results.outcomes import Outcome


def mean_of(
    outcome: Outcome, metric: str, seeds: Iterable[int]
) -> tuple[np.ndarray, np.ndarray] | None:
    """`values_of`, the mean over some seeds; None where one lacks them or ranked other queries."""
    runs = {run.seed: run for run in outcome.completed}
    found = [values_of(RunFolder(runs[seed].folder).queries(), metric) for seed in seeds]
    kept = [one for one in found if one is not None and np.array_equal(one[1], (found[0] or one)[1])]
    if not kept or len(kept) < len(found):
        return None
    return np.mean([values for values, _ in kept], axis=0), kept[0][1]


@dataclass(frozen=True)
class Queries:
    """A difference of two variants by query, means over seeds.

    Attributes:
        difference: [Q]. identities: [Q]; queries of one identity are alike, so identities are what is
            drawn anew.
        seeds: the same difference over seeds.
    """

    difference: np.ndarray
    identities: np.ndarray
    seeds: Summary

    @property
    def drawn(self) -> int:
        return len(np.unique(self.identities))

    @property
    def error(self) -> float:
        """Standard error of the mean over new queries of the same kind; NaN for a single identity."""
        _, at = np.unique(self.identities, return_inverse=True)
        means = np.bincount(at, self.difference) / np.bincount(at)
        return float(np.std(means, ddof=1)) / math.sqrt(self.drawn) if self.drawn > 1 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the difference for new seeds and new queries; NaN where seeds have none.

        The wider of the seeds' t interval and that of both errors, with Satterthwaite's freedom.
        """
        own = self.seeds
        if math.isnan(own.p) or math.isnan(self.error):
            return math.nan, math.nan
        seeds = (own.high - own.low) / 2 / special.stdtrit(own.freedom, (1 + CONFIDENCE) / 2)
        parts = np.array([seeds**2, self.error**2])
        freedom = parts.sum() ** 2 / (parts**2 / [own.freedom, self.drawn - 1]).sum()
        half = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2) * math.sqrt(parts.sum()))
        return min(own.low, own.mean - half), max(own.high, own.mean + half)


def by_query(found: Results, result: Result) -> Queries | None:
    """A difference to the baseline by query; None where runs kept no queries, or others."""
    base = found.get(found.baseline, result.metric)
    if result.paired:
        seeds = stats.paired(result.values, base.values, result.unit)
    else:
        seeds = stats.unpaired(list(result.values.values()), list(base.values.values()), result.unit)
    ours, theirs = (
        mean_of(found.outcomes[one.variant], one.metric, seeds.by_seed or one.values)
        for one in (result, base)
    )
    if ours is None or theirs is None or not np.array_equal(ours[1], theirs[1]):
        return None
    return Queries(ours[0] - theirs[0], ours[1], seeds)
