"""The picture of an attribution: each cell a dot with its interval and its seeds, on one axis."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from analysis.results import stats
from analysis.results.attribution import Attributed

_GOOD, _BROKEN, _BETWEEN = "#0072B2", "#D55E00", "#666666"


def cells_figure(found: Attributed, width: float) -> tuple[Figure, tuple[str, ...]]:
    """The cells that are run, from the good variant (top) to the broken one; and the caption.

    Args:
        width: inches.
    """
    scale = 100.0 if found.metric.unit == "%" else 1.0
    cells = [c for c in found.attribution.cells if not c.equals and not c.impossible]
    cells.sort(key=lambda cell: len(cell.changes))
    most = len(found.attribution.changes)
    figure = Figure(figsize=(width, 0.7 + 0.24 * len(cells)), layout="constrained")
    axes = figure.subplots()
    for place, cell in enumerate(cells):
        colour = {0: _GOOD, most: _BROKEN}.get(len(cell.changes), _BETWEEN)
        values = [value * scale for value in found.values(cell).values()]
        if not values:
            text = "; ".join(dict.fromkeys(run.word for run in found.runs_of(cell)))
            axes.annotate(text, (0.5, place), xycoords=("axes fraction", "data"), style="italic")
            continue
        axes.plot(values, [place] * len(values), "|", color=colour, alpha=0.6, markersize=7)
        summary = stats.summary(values)
        error = None
        if not math.isnan(summary.low):
            error = [[summary.mean - summary.low], [summary.high - summary.mean]]
        axes.errorbar(
            [summary.mean], [place], xerr=error, fmt="o", color=colour, capsize=2, markersize=4
        )
    axes.set_yticks(range(len(cells)), [cell.label for cell in cells], parse_math=False)
    axes.set_ylim(len(cells) - 0.4, -0.6)
    label = found.metric.label or found.metric_name
    axes.set_xlabel(f"{label} ({found.metric.unit})" if found.metric.unit else label, parse_math=False)
    axes.grid(axis="x")
    return figure, (
        f"{found.study.title}. Blue: the good variant; vermilion: the broken one; grey: cells between "
        "them. In their names + adds a change to the one, - takes one back from the other.",
        "Dot and bar: mean and 95 % t interval; ticks: seeds.",
    )
