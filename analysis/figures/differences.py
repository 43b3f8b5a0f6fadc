"""A forest plot: each variant's difference to the baseline, and what its seeds can tell of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.curves import metric_name
from analysis.figures.style import SMALLEST
from analysis.results.frames import STANDINGS, Result, Results, standing
from analysis.tables import captions
from analysis.tables.model import difference_cell

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import FigureSpec

# Colour, marker and whether it is filled; never colour alone.
MARKS = {
    "starred": ("#0072B2", "D", True),
    "equivalent": ("#009E73", "s", True),
    "open": ("#555555", "o", False),
    "not tested": ("#999999", "x", False),
}
BAND = "#e4e4e4"
ROW = 0.19  # inches
ROOM = 1.6  # the axis reaches this many times as far as the largest difference; intervals may leave it


def forest(
    study: Study, spec: FigureSpec, found: Results, names: Sequence[str], width: float
) -> tuple[Figure, tuple[str, ...]]:
    """The picture, variants in the manifest's order from top to bottom, and its caption."""
    metric = study.metrics[spec.metric]
    scale = 100.0 if metric.unit == "%" else 1.0
    rows = [found.get(name, spec.metric) for name in names if name != found.baseline]
    standings = [standing(row, metric, spec.margin) for row in rows]
    picture = Figure(figsize=(width, ROW * len(rows) + 0.75), layout="constrained")
    axes = picture.subplots()
    limits = _limits(rows, scale)
    for y, (row, word) in enumerate(zip(rows, standings, strict=True)):
        _row(axes, y, row, word, scale, limits)
        text = difference_cell(row, metric).plain.replace("-", "−")
        text = text or found.outcomes[row.variant].glyph()
        place = axes.get_yaxis_transform()
        axes.text(1.02, y, text, transform=place, va="center", fontsize=SMALLEST, parse_math=False)
    axes.axvline(0, color="#333333", linewidth=0.6, zorder=2)
    axes.set(xlim=limits, ylim=(len(rows) - 0.4, -0.6))
    axes.set_yticks(range(len(rows)), [row.label for row in rows], parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    unit = "points" if metric.unit == "%" else metric.unit
    name = metric_name(study, spec.metric)
    baseline = found.outcomes[found.baseline].label
    label = f"difference in {name} to {baseline}" + (f" ({unit})" if unit else "")
    axes.set_xlabel(label, parse_math=False)
    cut = any(line.get_marker() in ("<", ">") for line in axes.lines)
    return picture, _caption(spec, found, rows, standings, f"{name} against {baseline}", unit, cut)


def _limits(rows: Sequence[Result], scale: float) -> tuple[float, float]:
    """The axis holds 0 and every difference, and intervals unless one is very wide."""
    shown = [row for row in rows if not math.isnan(row.difference)]
    far = ROOM * max((abs(row.difference) for row in shown), default=0.0) or math.inf
    ends = [0.0]
    for row in shown:
        bounds = (row.difference_low, row.difference, row.difference_high)
        ends += [min(max(end, -far), far) for end in bounds if not math.isnan(end)]
    pad = 0.05 * (max(ends) - min(ends)) or 1.0
    return (min(ends) - pad) * scale, (max(ends) + pad) * scale


def _row(axes: Axes, y: int, row: Result, word: str, scale: float, limits: tuple[float, float]) -> None:
    if not math.isnan(row.least_starred):
        edge = row.least_starred * scale
        axes.fill_betweenx([y - 0.42, y + 0.42], -edge, edge, color=BAND, linewidth=0, zorder=0)
    if math.isnan(row.difference):
        return
    colour, marker, filled = MARKS[word]
    if not math.isnan(row.difference_low):
        ends = [row.difference_low * scale, row.difference_high * scale]
        axes.plot(ends, [y, y], color=colour, linewidth=1.1, solid_capstyle="butt", zorder=3)
        for end, border, arrow in zip(ends, limits, "<>", strict=True):
            if (end < border) == (arrow == "<"):
                axes.plot([border], [y], arrow, color=colour, markersize=4, clip_on=False, zorder=4)
    fill = colour if filled else "white"
    axes.plot(
        [row.difference * scale], [y], marker, color=colour, mfc=fill, markersize=4.5, mew=1, zorder=5
    )


def _caption(
    spec: FigureSpec,
    found: Results,
    rows: Sequence[Result],
    standings: Sequence[str],
    title: str,
    unit: str,
    cut: bool,
) -> tuple[str, ...]:
    shapes = {"D": "diamonds", "s": "squares", "o": "circles", "x": "crosses"}
    meanings = dict(STANDINGS)
    if spec.margin:
        margin = f"the margin of {spec.margin:g} {unit}".strip()
        meanings["equivalent"] = meanings["equivalent"].replace("the margin", margin)
    legend = "; ".join(
        f"{shapes[MARKS[word][1]]} {word}: {meaning} ({standings.count(word)})"
        for word, meaning in meanings.items()
        if word in standings
    )
    families = {row.family_size for row in rows if not math.isnan(row.least_starred)}
    said = [
        captions.sentence(
            spec.caption or spec.title or f"Differences in {title}, study {found.study.name}."
        ),
        "Mean over seeds at the last epoch with its 95 % t interval, which assumes normal differences. "
        "Vertical line: no difference. Right: the difference ± half its interval's width; *: starred.",
        "An arrow: the interval goes on." * cut,
        f"{legend[:1].upper()}{legend[1:]}." if legend else "",
    ]
    if families:
        said.append(
            "Grey: with this spread, these seeds and Holm's correction over "
            f"{max(families)} differences, a difference within it could not have been starred alone."
        )
    if any(math.isnan(row.difference) for row in rows):
        said.append("Without a mark: no seed finished in both.")
    return tuple(said)
