"""Many steps into few points without losing what a reader must see: the mean, and every spike.

Each bin keeps its mean, least and greatest value, so a single step that shoots up is as high in the
picture as in the log. Nothing is interpolated: an empty bin is a gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Grid:
    """Bins of equal width over steps 1..last; at most one step each where there are few."""

    edges: np.ndarray  # (bins + 1,)
    merges: bool = False  # whether a bin may hold several steps

    @property
    def bins(self) -> int:
        return len(self.edges) - 1

    @property
    def width(self) -> float:
        """Steps in a bin."""
        return float(self.edges[1] - self.edges[0])


@dataclass(frozen=True)
class Binned:
    """One seed on a grid, (bins,) each; NaN where it has no finite value.

    `x` is the mean step of a bin's values. `last` is the (step, value) of the last finite one where
    only values follow that are not finite, else None; `broken` are the steps of those that are not
    finite and that finite ones follow.
    """

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    last: tuple[float, float] | None
    broken: np.ndarray


def grid(steps: np.ndarray, limit: int) -> Grid:
    """A grid for all logged steps of a figure, with at most `limit` bins."""
    different = np.unique(steps)
    if len(different) <= limit:
        edges = np.append(different, different[-1:] + 1) if len(different) else np.array([0, 1])
        return Grid(edges.astype(np.float64))
    return Grid(np.linspace(different[0], different[-1] + 1, limit + 1), merges=True)


def binned(steps: np.ndarray, values: np.ndarray, on: Grid) -> Binned:
    """Values of one seed, in order of step, on a grid; those that are not finite are left out.

    A gradient norm that overflowed, for which mixed precision skips the step, ends no curve.
    """
    last = None
    finite = np.isfinite(values)
    end = int(np.flatnonzero(finite)[-1]) + 1 if finite.any() else 0
    if end < len(values):
        last = (float(steps[end - 1]), float(values[end - 1])) if end else (float(on.edges[0]), np.nan)
    broken = steps[:end][~finite[:end]].astype(np.float64)
    steps, values = steps[finite], values[finite]
    place = np.clip(np.searchsorted(on.edges, steps, side="right") - 1, 0, on.bins - 1)
    count = np.bincount(place, minlength=on.bins).astype(np.float64)
    count[count == 0] = np.nan
    mean = np.bincount(place, weights=values, minlength=on.bins) / count
    x = np.bincount(place, weights=steps.astype(np.float64), minlength=on.bins) / count
    low, high = np.full(on.bins, np.nan), np.full(on.bins, np.nan)
    if len(place):
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        low[place[starts]] = np.minimum.reduceat(values, starts)
        high[place[starts]] = np.maximum.reduceat(values, starts)
    return Binned(x, mean, low, high, last, broken)


def smoothed(values: np.ndarray, weight: float) -> np.ndarray:
    """Exponential moving average, corrected for its start, begun anew after a gap (NaN)."""
    if weight == 0.0:
        return values
    out = np.full_like(values, np.nan)
    total, norm = 0.0, 0.0
    for index, value in enumerate(values):
        if np.isnan(value):
            total, norm = 0.0, 0.0
            continue
        total = weight * total + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        out[index] = total / norm
    return out
