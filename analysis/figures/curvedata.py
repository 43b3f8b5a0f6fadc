"""What a curve figure shows, as numbers: each seed on a common grid, mean and band over seeds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats as scipy_stats

from analysis.figures.binning import Binned, Grid, binned, grid, smoothed
from analysis.results import stats
from analysis.results.outcomes import Outcome, outcomes
from analysis.runs.collect import Collected

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import FigureSpec

LINE_WIDTH = 0.01  # of the vertical axis: about a printed line's
POINTS = 400  # bins across a figure; about the printable dots of its width


@dataclass(frozen=True)
class SeedCurve:
    seed: int
    state: str
    line: Binned
    end: tuple[float, float] | None  # where a run that did not complete stopped: (step, value)


@dataclass(frozen=True)
class VariantCurve:
    """A variant's curves; arrays are (bins,) with NaN where there is nothing.

    Attributes:
        x: mean step of each bin. mean: over the seeds that have a value there, in linear space.
        low, high: the band over seeds. whole: where every planned seed has a value.
    """

    variant: str
    outcome: Outcome
    seeds: tuple[SeedCurve, ...]
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    whole: np.ndarray

    @property
    def logged(self) -> bool:
        """Whether any seed has a finite value."""
        return bool(np.isfinite(self.mean).any())

    @property
    def label(self) -> str:
        """The variant's label, with k/N where not every seed completed."""
        done, planned = len(self.outcome.completed), self.outcome.planned
        return self.outcome.label + ("" if done == planned else f" ({done}/{planned})")


@dataclass(frozen=True)
class CurveSet:
    """Everything that one figure draws."""

    metric: str
    kind: str  # train or eval rows
    scale: float  # values were multiplied by it (100 where the metric prints in per cent)
    steps_per_epoch: float | None
    grid: Grid
    curves: tuple[VariantCurve, ...]

    @property
    def finite(self) -> np.ndarray:
        """All finite values that are drawn, spikes included."""
        parts = [a for c in self.curves for s in c.seeds for a in (s.line.low, s.line.high)]
        values = np.concatenate(parts) if parts else np.empty(0)
        return values[np.isfinite(values)]

    @property
    def shown(self) -> tuple[VariantCurve, ...]:
        """The curves with a value, and those of variants without any completed run."""
        return tuple(c for c in self.curves if c.logged or not c.outcome.completed)

    def unlogged(self) -> list[str]:
        """Labels of the variants that completed a run and never logged this metric."""
        return [c.outcome.label for c in self.curves if not c.logged and c.outcome.completed]

    def coinciding(self, log: bool) -> list[list[str]]:
        """Labels of curves that lie on each other: less than a line's width apart wherever they are."""
        values = np.stack([curve.mean for curve in self.curves])
        if log:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.log(np.where(values > 0, values, np.nan))
        if not np.isfinite(values).any():
            return []
        near = LINE_WIDTH * (np.nanmax(values) - np.nanmin(values))
        groups: list[list[int]] = []
        for number in (n for n, curve in enumerate(self.curves) if curve.logged):
            for group in groups:
                first, other = values[group[0]], values[number]
                same = np.isfinite(first) == np.isfinite(other)
                if same.all() and np.nanmax(np.abs(first - other)) <= near:
                    group.append(number)
                    break
            else:
                groups.append([number])
        return [[self.curves[n].outcome.label for n in group] for group in groups if len(group) > 1]

    def by_end(self) -> list[VariantCurve]:
        """What is shown, from the curve that ends highest to the lowest; last those without a value."""

        def height(curve: VariantCurve) -> float:
            values = curve.mean[np.isfinite(curve.mean)]
            return float(values[-1]) if len(values) else -np.inf

        return sorted(self.shown, key=height, reverse=True)

    @property
    def explodes(self) -> bool:
        """Whether a linear axis would hide most of what happens: largest over smallest above 50."""
        values = self.finite
        return bool(len(values) and values.min() > 0 and values.max() / values.min() > 50)


def curve_set(
    collected: Collected,
    study: Study,
    spec: FigureSpec,
    *,
    variants: Sequence[str] | None = None,
    points: int = POINTS,
) -> CurveSet:
    """The curves of a figure, in the manifest's order of variants."""
    found = outcomes(collected, study)
    names = list(variants or spec.variants or found)
    kind, scale = "train", 1.0
    logged = {n: collected.rows_of(study.name, n, "train", spec.metric) for n in names}
    if all(rows.empty for rows in logged.values()):
        kind = "eval"
        logged = {n: collected.rows_of(study.name, n, "eval", spec.metric) for n in names}
    declared = study.metrics.get(spec.metric)
    if kind == "eval" and declared is not None and declared.unit == "%":
        scale = 100.0
    steps = [rows["step"].to_numpy() for rows in logged.values()]
    on = grid(np.concatenate(steps) if steps else np.empty(0, np.int64), points)
    curves = []
    for name in names:
        rows = logged[name]
        seeds = rows["seed"].to_numpy()
        step, value = rows["step"].to_numpy(), rows["value"].to_numpy() * scale
        lines = []
        for run in found[name].runs:
            mine = seeds == run.seed
            line = binned(step[mine], value[mine], on)
            end = line.last
            if end is None and run.state != "completed" and mine.any():
                end = (float(step[mine][-1]), float(value[mine][-1]))
            lines.append(SeedCurve(run.seed, run.state, line, end))
        curves.append(_variant(name, found[name], tuple(lines), spec))
    return CurveSet(
        metric=spec.metric,
        kind=kind,
        scale=scale,
        steps_per_epoch=_steps_per_epoch(collected, study, names),
        grid=on,
        curves=tuple(curves),
    )


def _variant(
    name: str, outcome: Outcome, seeds: tuple[SeedCurve, ...], spec: FigureSpec
) -> VariantCurve:
    table = np.stack([s.line.mean for s in seeds])
    places = np.stack([s.line.x for s in seeds])
    with warnings.catch_warnings():  # a bin in which no seed has a value is a gap, not a fault
        warnings.simplefilter("ignore", RuntimeWarning)
        mean, x = np.nanmean(table, axis=0), np.nanmean(places, axis=0)
        low, high = _band(table, seeds, mean, spec.band)
    return VariantCurve(
        variant=name,
        outcome=outcome,
        seeds=seeds,
        x=x,
        mean=smoothed(mean, spec.smoothing),
        low=low,
        high=high,
        whole=np.isfinite(table).all(axis=0),
    )


def _band(
    table: np.ndarray, seeds: Sequence[SeedCurve], mean: np.ndarray, band: str
) -> tuple[np.ndarray, np.ndarray]:
    """Low and high of the band over seeds at each bin; `minmax` holds every single value."""
    if band == "minmax":
        low = np.nanmin(np.stack([s.line.low for s in seeds]), axis=0)
        return low, np.nanmax(np.stack([s.line.high for s in seeds]), axis=0)
    if band == "none":
        return np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    count = np.isfinite(table).sum(axis=0)
    half = np.nanstd(table, axis=0, ddof=1)
    if band == "t95":
        quantile = scipy_stats.t.ppf((1 + stats.CONFIDENCE) / 2, np.maximum(count - 1, 1))
        half = half * quantile / np.sqrt(np.maximum(count, 1))
    half = np.where(count > 1, half, np.nan)
    return mean - half, mean + half


def _steps_per_epoch(collected: Collected, study: Study, names: Sequence[str]) -> float | None:
    """Steps in an epoch, from the evaluations; None where variants differ or nothing says."""
    rates: set[float] = set()
    for name in names:
        for start, stop in collected.spans.get((study.name, name), []):
            part = collected.rows.iloc[start:stop]
            rows = part[(part["kind"] == "eval") & (part["epoch"] > 0)]
            if len(rows):
                rates.add(round(float(rows["step"].iloc[-1] / rows["epoch"].iloc[-1]), 6))
    return rates.pop() if len(rates) == 1 and min(rates) > 0 else None
