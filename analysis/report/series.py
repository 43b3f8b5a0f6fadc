"""Curves for the report: each run's own, and the mean over a variant's seeds with its envelope."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.report.thin import kept

# Numbers in all curves of a report together: about 8 MB of text, which a browser opens in a second.
BUDGET = 900_000
MOST_POINTS, FEWEST_POINTS = 1200, 40

Key = tuple[str, str, str]  # study, kind, metric


@dataclass(frozen=True)
class Curve:
    """One logged metric of one run, in order of step."""

    variant: str
    seed: int
    step: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class Mean:
    """Mean over seeds in linear space, with the least and the greatest seed."""

    step: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    count: np.ndarray  # seeds behind each step


def curves(rows: pd.DataFrame) -> dict[Key, list[Curve]]:
    """All curves of a long frame (see `analysis.runs.collect.Collected.rows`)."""
    found: dict[Key, list[Curve]] = {}
    if rows.empty:
        return found
    keys = ["study", "kind", "metric", "variant", "seed"]
    step, value = rows["step"].to_numpy(), rows["value"].to_numpy()
    groups: Any = rows.groupby(keys, sort=False, observed=True).indices
    for (study, kind, metric, variant, seed), index in groups.items():
        order = index[np.argsort(step[index], kind="stable")]
        curve = Curve(str(variant), int(seed), step[order], value[order])
        found.setdefault((str(study), str(kind), str(metric)), []).append(curve)
    return found


def mean_over_seeds(members: Sequence[Curve]) -> Mean | None:
    """The mean of two or more seeds at the steps that they share.

    A seed counts from its first to its last finite value; a step where a seed that counts has no value
    is left out, so that no mean jumps because of who happens to be logged.
    """
    if len(members) < 2:
        return None
    steps = np.unique(np.concatenate([c.step for c in members]))
    table = np.full((len(members), len(steps)), np.nan)
    alive = np.zeros_like(table, dtype=bool)
    for row, curve in enumerate(members):
        table[row, np.searchsorted(steps, curve.step)] = curve.value
        finite = np.flatnonzero(np.isfinite(curve.value))
        if len(finite):
            alive[row] = (steps >= curve.step[finite[0]]) & (steps <= curve.step[finite[-1]])
    present = np.isfinite(table)
    count = present.sum(axis=0)
    whole = (count > 0) & (count == (alive & present).sum(axis=0)) & (count == alive.sum(axis=0))
    if not whole.any():
        return None
    table, count, steps = table[:, whole], count[whole], steps[whole]
    filled = np.where(np.isfinite(table), table, 0.0)
    low = np.where(np.isfinite(table), table, np.inf).min(axis=0)
    high = np.where(np.isfinite(table), table, -np.inf).max(axis=0)
    return Mean(steps, filled.sum(axis=0) / count, low, high, count)


def payload(
    found: Mapping[Key, Sequence[Curve]],
    studies: Mapping[str, int],
    variants: Mapping[tuple[str, str], int],
    runs: Mapping[tuple[str, str, int], int],
    planned: Mapping[tuple[str, str], int],
) -> dict[str, Any]:
    """Curves as the page reads them, thinned so that all of them together stay within `BUDGET`."""
    count = sum(len(members) for members in found.values())
    most = min(MOST_POINTS, max(FEWEST_POINTS, BUDGET // max(1, 2 * count)))
    result: dict[str, Any] = {}
    for (study, kind, metric), members in found.items():
        by_variant: dict[str, list[Curve]] = {}
        for curve in members:
            if (study, curve.variant, curve.seed) in runs:
                by_variant.setdefault(curve.variant, []).append(curve)
        seeds, means = [], []
        for variant, mine in by_variant.items():
            for curve in mine:
                index = kept(curve.value, most)
                seeds.append(
                    {
                        "run": runs[study, variant, curve.seed],
                        "x": curve.step[index].tolist(),
                        "y": numbers(curve.value[index]),
                    }
                )
            mean = mean_over_seeds(mine)
            if mean is not None:
                means.append(
                    {
                        "variant": variants[study, variant],
                        "planned": max(planned[study, variant], len(mine)),
                        **_thinned(mean, most),
                    }
                )
        result[f"{studies[study]}|{kind}|{metric}"] = {"seeds": seeds, "means": means}
    return result


def _thinned(mean: Mean, most: int) -> dict[str, Any]:
    parts = [kept(values, most // 2) for values in (mean.low, mean.high)] + [kept(mean.mean, most)]
    changes = np.flatnonzero(np.diff(mean.count))  # where a seed leaves, both sides stay
    index = np.unique(np.concatenate([*parts, changes, changes + 1])).astype(np.int64)
    return {
        "x": mean.step[index].tolist(),
        "y": numbers(mean.mean[index]),
        "lo": numbers(mean.low[index]),
        "hi": numbers(mean.high[index]),
        "n": mean.count[index].tolist(),
    }


def numbers(values: np.ndarray) -> list[float | None]:
    """Five significant digits, which is more than a screen shows; null where not finite."""
    return [float(f"{v:.5g}") if math.isfinite(v) else None for v in values.tolist()]
