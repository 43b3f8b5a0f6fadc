"""The `curves` frame: each variant's mean over seeds at each step, computed once for all readers.

The PDF's figures, the report and the CSV files read it and compute no mean of their own. Values are as
they were logged (fractions stay fractions). For one metric of one variant:

1. The grid is the union of the steps that the variant's own seeds logged. A seed that has no value at
   such a step, but one before and one after it, is interpolated linearly between them.
2. A seed takes part from its first to its last finite value. Where a seed that takes part has no finite
   value, there is no mean: the line has a gap.
3. Where a seed leaves (it diverged, stopped or is shorter), a new stretch of the mean begins. Stretches
   are never joined, so no line jumps because a seed is gone; `n` says how many seeds are left.
4. Above a number of steps (`POINTS` in figures), each stretch is averaged over windows of equal width.
   Means are taken in linear space, whatever axis shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import special

from analysis.results import stats
from analysis.results.outcomes import Outcome, outcomes
from analysis.runs.collect import Collected
from analysis.runs.rows import TIME, MetricRows

if TYPE_CHECKING:
    from ablations.study.model import Study

POINTS = 400  # of a mean; about the printable dots across a figure
SEED_POINTS = 1200  # of a single seed's line, at most about
GOING_ON = ("running", "queued", "requeued", "unknown")  # nobody knows that it ended


@dataclass(frozen=True)
class Clock:
    """What a step is in another unit (epochs, seconds): linear between known points and beyond them."""

    steps: np.ndarray
    values: np.ndarray

    def at(self, steps: np.ndarray) -> np.ndarray:
        steps = np.asarray(steps, dtype=np.float64)
        found = np.interp(steps, self.steps, self.values)
        if len(self.steps) > 1:
            (s0, s1), (v0, v1) = self.steps[-2:], self.values[-2:]
            beyond = steps > s1
            found[beyond] = v1 + (steps[beyond] - s1) * (v1 - v0) / (s1 - s0)
        return found


@dataclass(frozen=True)
class SeedCurve:
    """What one seed logged.

    Attributes:
        step, value: in order of step, thinned by `kept`; NaN where a value was not finite.
        broken: steps with a value that was not finite and that finite ones follow.
        last: (step, value) of the last finite value; None where there is none.
        end: why its line ends before the others': `diverged`; `stopped` (failed, cancelled, lost);
            `shorter` (it completed with fewer steps); None where it does not, or still runs.
    """

    step: np.ndarray
    value: np.ndarray
    broken: np.ndarray
    last: tuple[float, float] | None
    end: str | None


@dataclass(frozen=True)
class Curve:
    """One metric of one variant: its seeds, and their mean at each point of the variant's own grid.

    Attributes:
        kind: `train` or `eval` rows.
        step: where a point lies; the mean step of a window where steps were merged.
        mean: NaN where there is none. low, high: least and greatest single value of any seed.
        sd: sample standard deviation over seeds (ddof 1). n: seeds in the mean.
        stretch: points of one stretch are means over the same seeds.
        interpolated: whether seeds logged at different steps. merged: steps in a window, or None.
        epochs: steps in epochs; None where no row says.
    """

    study: str
    outcome: Outcome
    kind: str
    metric: str
    seeds: tuple[SeedCurve, ...]
    step: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    sd: np.ndarray
    n: np.ndarray
    stretch: np.ndarray
    interpolated: bool = False
    merged: float | None = None
    epochs: Clock | None = None

    @property
    def variant(self) -> str:
        """The key of its outcome: `NAME (imported)` where a planned variant has the same name."""
        return self.outcome.key

    @property
    def epoch(self) -> np.ndarray:
        """`step` in epochs; NaN where no row says."""
        return np.full(len(self.step), np.nan) if self.epochs is None else self.epochs.at(self.step)

    @property
    def planned(self) -> int:
        return self.outcome.planned

    @property
    def logged(self) -> bool:
        """Whether any seed has a finite value."""
        return any(seed.last is not None for seed in self.seeds)

    @property
    def label(self) -> str:
        """The variant's label, with k/N where not every seed completed."""
        done = len(self.outcome.completed)
        return self.outcome.label + ("" if done == self.planned else f" ({done}/{self.planned})")

    def band(self, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """Low and high of a band over seeds: minmax, sd, t95 or none (NaN)."""
        if kind == "minmax":
            return self.low, self.high
        half = np.full_like(self.mean, np.nan) if kind == "none" else self.sd
        if kind == "t95":
            quantile = special.stdtrit(np.maximum(self.n - 1, 1), (1 + stats.CONFIDENCE) / 2)
            half = half * quantile / np.sqrt(np.maximum(self.n, 1))
        return self.mean - half, self.mean + half

    def pieces(self) -> list[slice]:
        """The mean as unbroken lines: a new one begins after a gap and where a seed leaves."""
        finite = np.isfinite(self.mean)
        cuts = np.flatnonzero((np.diff(self.stretch) != 0) | (np.diff(finite.astype(int)) != 0)) + 1
        ends = [0, *cuts.tolist(), len(self.mean)]
        return [slice(a, b) for a, b in pairwise(ends) if b > a and finite[a]]


def curves(
    collected: Collected,
    study: Study,
    metric: str,
    kind: str | None = None,
    variants: Sequence[str] | None = None,
    *,
    points: tuple[int, int] = (POINTS, SEED_POINTS),
) -> list[Curve]:
    """A metric's curves, one for each variant, in the manifest's order.

    Args:
        kind: `train` or `eval`; None: training rows where any variant has them, else evaluations.
        variants: names; None: all, imported ones last.
        points: of a mean and of a single seed, at most about.
    """
    found = outcomes(collected, study)
    clocks = epoch_clocks(collected, study)
    names = list(found if variants is None else variants)
    if kind is None:
        runs = (run for name in names for run in found[name].runs)
        trained = any(len(run.rows.series("train", metric)[0]) for run in runs)
        kind = "train" if trained else "eval"
    return [curve_of(found[name], kind, metric, clocks.get(name), points) for name in names]


def frame(found: Sequence[Curve]) -> pd.DataFrame:
    """Means as a table: one row a point of a variant's grid; a gap is a row with mean NaN."""
    parts = [
        pd.DataFrame({name: getattr(curve, name) for name in FRAME})
        for curve in found
        if len(curve.step)
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(FRAME))


FRAME = (
    *("study", "variant", "kind", "metric", "step", "epoch"),
    *("mean", "low", "high", "sd", "n", "planned", "stretch"),
)


# -- the mean -----------------------------------------------------------------------------------


def curve_of(
    outcome: Outcome,
    kind: str,
    metric: str,
    clock: Clock | None,
    points: tuple[int, int],
) -> Curve:
    """A variant's curve."""
    mine = [run.rows.series(kind, metric) for run in outcome.runs]
    latest = max((int(step[-1]) for step, _ in mine if len(step)), default=0)
    seeds = tuple(
        _seed(run.state, step, value, latest, points[1])
        for run, (step, value) in zip(outcome.runs, mine, strict=True)
    )
    mean = _mean(mine, seeds, points[0])
    return Curve(outcome.study, outcome, kind, metric, seeds, epochs=clock, **mean)


def _seed(state: str, step: np.ndarray, value: np.ndarray, latest: int, most: int) -> SeedCurve:
    finite = np.flatnonzero(np.isfinite(value))
    last = (float(step[finite[-1]]), float(value[finite[-1]])) if len(finite) else None
    end = None
    if state == "diverged":
        end = "diverged"
    elif state != "completed" and state not in GOING_ON and len(step):
        end = "stopped"
    elif state == "completed" and len(step) and step[-1] + _interval(step) < latest:
        end = "shorter"
    until = finite[-1] if len(finite) else 0
    broken = step[:until][~np.isfinite(value[:until])].astype(np.float64)
    index = kept(value, most)
    shown = np.where(np.isfinite(value[index]), value[index], np.nan)
    return SeedCurve(step[index].astype(np.float64), shown, broken, last, end)


def _interval(step: np.ndarray) -> float:
    """Steps between two logged rows, as a rule."""
    return float(np.median(np.diff(step))) if len(step) > 1 else 0.0


def _mean(
    series: Sequence[tuple[np.ndarray, np.ndarray]], seeds: Sequence[SeedCurve], points: int
) -> dict[str, Any]:
    """The fields of `Curve` that are computed over seeds."""
    present = [
        (s, v, seed) for (s, v), seed in zip(series, seeds, strict=True) if seed.last is not None
    ]
    if not present:
        empty, none = np.empty(0), np.empty(0, np.int64)
        return {
            **dict.fromkeys(("step", "mean", "low", "high", "sd"), empty),
            **{"n": none, "stretch": none},
        }
    grid = np.unique(np.concatenate([step for step, _, _ in present]))
    table = np.full((len(present), len(grid)), np.nan)
    alive = np.zeros(table.shape, dtype=bool)
    interpolated = False
    for row, (step, value, seed) in enumerate(present):
        value = np.where(np.isfinite(value), value, np.nan)
        table[row] = np.interp(grid, step, value, left=np.nan, right=np.nan)
        at = np.searchsorted(grid, step)
        table[row, at] = value
        first, last = grid[at[0]], int(seed.last[0]) if seed.last else 0
        interval = _interval(step)
        if first - interval <= grid[0]:  # it began as the others did, within its own interval
            first = grid[0]
        if seed.end is None and step[-1] == last and last + interval >= grid[-1]:
            last = int(grid[-1])
        alive[row] = (grid >= first) & (grid <= last)
        inside = np.isfinite(table[row]) & alive[row]
        interpolated |= int(inside.sum()) > int(np.isfinite(value[step <= last]).sum())
    seen = np.flatnonzero(alive.any(axis=0))
    span = slice(seen[0], seen[-1] + 1)  # beyond it no value of any seed is finite
    grid, table, alive = grid[span], np.where(alive, table, np.nan)[:, span], alive[:, span]
    sound = alive.any(axis=0) & ~(alive & np.isnan(table)).any(axis=0)
    changes = (alive[:, 1:] != alive[:, :-1]).any(axis=0)
    stretch = np.concatenate([[0], np.cumsum(changes)])
    merged = None
    window = np.arange(len(grid))
    if len(grid) > points:
        merged = (float(grid[-1]) - float(grid[0]) + 1) / points
        window = ((grid - grid[0]) / merged).astype(np.int64)
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(window) != 0) | (np.diff(stretch) != 0)]))
    averaged = _windows(grid, table, alive, sound, starts)
    return {
        **averaged,
        **{"stretch": stretch[starts], "interpolated": interpolated, "merged": merged},
    }


def _windows(
    grid: np.ndarray,
    table: np.ndarray,
    alive: np.ndarray,
    sound: np.ndarray,
    starts: np.ndarray,
) -> dict[str, np.ndarray]:
    """Averages over windows [starts[i], starts[i + 1]) of the columns where every seed has a value."""

    def total(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(np.asarray(values, dtype=np.float64), starts, axis=-1)

    used = total(sound)
    counted = np.where(used > 0, used, np.nan)
    step = np.where(used > 0, total(np.where(sound, grid, 0)) / counted, grid[starts])
    by_seed = total(np.where(sound & ~np.isnan(table), table, 0.0)) / counted
    there = alive[:, starts]  # the same seeds in every column of a window
    n = there.sum(axis=0)
    seeds = np.maximum(n, 1)
    mean = np.where(there, by_seed, 0.0).sum(axis=0) / seeds
    square = (np.where(there, by_seed - mean, 0.0) ** 2).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        sd = np.where(n > 1, np.sqrt(square / np.where(n > 1, n - 1, 1)), np.nan)
    low = np.minimum.reduceat(np.where(np.isnan(table), np.inf, table).min(axis=0), starts)
    high = np.maximum.reduceat(np.where(np.isnan(table), -np.inf, table).max(axis=0), starts)
    gap = used == 0
    for values in (mean, low, high, sd):
        values[gap] = np.nan
    return {"step": step, "mean": mean, "low": low, "high": high, "sd": sd, "n": n}


def kept(y: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most about `most` points of `y` that show its envelope, in order.

    Each of most / 4 windows keeps its first, least, greatest and last value, so a spike of one step
    survives; a gap (not finite) survives as a gap.
    """
    count = len(y)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, max(1, most // 4) + 1).astype(np.int64)
    chosen: set[int] = set()
    for start, end in pairwise(edges.tolist()):
        part = y[start:end]
        chosen |= {start, end - 1}
        finite = np.isfinite(part)
        if finite.any():
            chosen.add(start + int(np.argmin(np.where(finite, part, np.inf))))
            chosen.add(start + int(np.argmax(np.where(finite, part, -np.inf))))
        if not finite.all():
            bad = np.flatnonzero(~finite)
            chosen |= {start + int(bad[0]), start + int(bad[-1])}
    return np.array(sorted(chosen))


# -- steps in epochs and seconds ----------------------------------------------------------------


def epoch_clocks(collected: Collected, study: Study) -> dict[str, Clock]:
    """As `_epoch_clocks`, computed once for each `collected`."""
    found = outcomes(collected, study)
    return collected.once(("epochs", study.name), lambda: _epoch_clocks(found))


def _epoch_clocks(found: Mapping[str, Outcome]) -> dict[str, Clock]:
    """For each variant what its steps are in epochs.

    Evaluations stand at the end of an epoch, so they decide. A variant without any takes the rate that
    all others of the study share, or else the last training row of each of its epochs, the last epoch
    (it may have broken off) taken to be as long as the one before. Nothing says how long an only epoch
    is that no run has completed.
    """
    clocks: dict[str, Clock] = {}
    trained: dict[str, dict[int, int]] = {}
    for name, outcome in found.items():
        ends: dict[str, dict[int, int]] = {"eval": {}, "train": {}}
        for run in outcome.runs:
            for block in (b for b in run.rows.blocks if b.kind in ends):
                into, (_, epochs, steps) = ends[block.kind], block.place.T
                different, inverse = np.unique(epochs[epochs > 0], return_inverse=True)
                latest = np.zeros(len(different), dtype=np.int64)
                np.maximum.at(latest, inverse, steps[epochs > 0])
                for epoch, step in zip(different.tolist(), latest.tolist(), strict=True):
                    into[epoch] = max(into.get(epoch, 0), step)
        if clock := _clock(ends["eval"]):
            clocks[name] = clock
        elif ends["train"]:
            trained[name] = ends["train"]
    rates = {round(float(c.values[-1] / c.steps[-1]), 9) for c in clocks.values()}
    for name, last in trained.items():
        if len(rates) == 1:
            clocks[name] = Clock(np.array([0.0, 1.0]), np.array([0.0, next(iter(rates))]))
            continue
        order = sorted(last)
        if len(order) > 1:
            before = last[order[-3]] if len(order) > 2 else 0
            last[order[-1]] = max(last[order[-1]], 2 * last[order[-2]] - before)
        elif not found[name].completed:
            continue
        if clock := _clock(last):
            clocks[name] = clock
    return clocks


def _clock(ends: Mapping[int, int]) -> Clock | None:
    """A clock from (epoch, last step); None where steps do not grow with epochs."""
    epochs = [0, *sorted(ends)]
    steps = [0, *(ends[e] for e in epochs[1:])]
    if len(epochs) < 2 or any(b <= a for a, b in pairwise(steps)):
        return None
    return Clock(np.array(steps, dtype=np.float64), np.array(epochs, dtype=np.float64))


def second_clocks(collected: Collected, study: Study) -> dict[str, tuple[Clock, bool]]:
    """For each run (by `where`) its steps in seconds on a machine, and whether its rows carry times.

    Time between two attempts, in which nothing ran, does not count. A run whose rows carry none has its
    training time spread evenly over its steps.
    """
    clocks: dict[str, tuple[Clock, bool]] = {}
    for run in collected.runs_of(study.name):
        spent = run.wall_seconds if run.train_seconds is None else run.train_seconds
        if clock := _measured(run.rows):
            clocks[run.where] = clock, True
        elif run.step and spent:
            clocks[run.where] = Clock(np.array([0.0, run.step]), np.array([0.0, spent])), False
    return clocks


def _measured(rows: MetricRows) -> Clock | None:
    """Seconds at each step from the rows' own times; an attempt's first row costs what others do."""
    place, values = rows.placed(TIME)
    steps, first = np.unique(place[:, 2], return_index=True)
    times, attempts = values[first], place[first, 0]
    if len(steps) < 2 or not np.isfinite(times).all():
        return None
    deltas = np.diff(times) / np.diff(steps)
    same = (np.diff(attempts) == 0) & (deltas >= 0)
    usual = float(np.median(deltas[same])) if same.any() else 0.0
    spent = np.where(same, np.diff(times), usual * np.diff(steps))
    seconds = np.concatenate([[usual * steps[0]], usual * steps[0] + np.cumsum(spent)])
    if steps[0] > 0:
        steps, seconds = np.concatenate([[0], steps]), np.concatenate([[0.0], seconds])
    return Clock(steps.astype(np.float64), seconds)
