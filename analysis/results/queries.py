"""What is known of each query: a metric's values, and how far a difference holds for new queries."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from analysis.results.stats import CONFIDENCE, summary
from sdtps.run.folder import RunFolder

if TYPE_CHECKING:
    from analysis.results.outcomes import Outcome

_HIT = re.compile(r"(?:(i2t|t2i)_r|rank)(\d+)")


def values_of(folder: RunFolder, metric: str) -> tuple[np.ndarray, np.ndarray] | None:
    """A metric's value for each query [Q], whose mean it is, and the identity that each looks for [Q].

    None where the run kept none, or the metric is no mean over queries.
    """
    known = folder.queries()
    name, way, most = ("AP", "", 0) if metric == "mAP" else ("", "", 0)
    if hit := _HIT.fullmatch(metric):
        way = f"{hit[1]}_" if hit[1] else ""
        name, most = f"{way}rank", int(hit[2])
    values, identities = known.get(name), known.get(f"{way}identity")
    if values is None or identities is None or values.shape != identities.shape:
        return None
    return (values <= most).astype(np.float64) if most else values.astype(np.float64), identities


def mean_of(
    outcome: Outcome, metric: str, seeds: Iterable[int]
) -> tuple[np.ndarray, np.ndarray] | None:
    """`values_of`, the mean over some seeds; None where one lacks them or ranked other queries."""
    runs = {run.seed: run for run in outcome.completed}
    found = [values_of(RunFolder(runs[seed].folder), metric) for seed in seeds]
    kept = [one for one in found if one is not None]
    if not kept or len(kept) < len(found):
        return None
    if any(not np.array_equal(kept[0][1], identities) for _, identities in kept):
        return None
    return np.mean([values for values, _ in kept], axis=0), kept[0][1]


@dataclass(frozen=True)
class Queries:
    """A difference of two variants by query, means over seeds.

    Attributes:
        difference: [Q]. identities: [Q]; queries of one identity are alike, so identities are what is
            drawn anew.
    """

    difference: np.ndarray
    identities: np.ndarray

    @property
    def drawn(self) -> int:
        return len(np.unique(self.identities))

    @property
    def error(self) -> float:
        """Standard error of the mean over new queries of the same kind; NaN for a single identity."""
        _, at = np.unique(self.identities, return_inverse=True)
        means = np.bincount(at, self.difference) / np.bincount(at)
        return float(np.std(means, ddof=1)) / math.sqrt(self.drawn) if self.drawn > 1 else math.nan

    def interval(self, by_seed: Sequence[float]) -> tuple[float, float] | None:
        """95 % interval of the difference for new seeds and new queries; None where seeds have none.

        The wider of the seeds' t interval and that of both errors, with Satterthwaite's freedom.
        """
        own = summary(by_seed)
        if math.isnan(own.p) or math.isnan(self.error):
            return None
        parts = np.array([own.sd**2 / own.n, self.error**2])
        freedom = parts.sum() ** 2 / (parts**2 / [own.n - 1, self.drawn - 1]).sum()
        half = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2) * math.sqrt(parts.sum()))
        return min(own.low, own.mean - half), max(own.high, own.mean + half)


def by_query(outcome: Outcome, baseline: Outcome, metric: str, seeds: Iterable[int]) -> Queries | None:
    """The difference of two variants by query; None where runs kept no queries, or others."""
    seeds = list(seeds)
    ours, theirs = mean_of(outcome, metric, seeds), mean_of(baseline, metric, seeds)
    if ours is None or theirs is None or not np.array_equal(ours[1], theirs[1]):
        return None
    return Queries(ours[0] - theirs[0], ours[1])
