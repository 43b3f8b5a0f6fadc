"""A result against one setting (dots and bars) or two (a heat map); what has no result is said so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis.figures.curves import metric_label, metric_name, setting_name
from analysis.figures.style import SMALLEST, Style
from analysis.results import numbers
from analysis.results.frames import Results
from analysis.runs.comparable import readable, setting
from analysis.tables import captions
from sdtps.system.errors import counted

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import FigureSpec


def sweep(
    study: Study,
    spec: FigureSpec,
    found: Results,
    names: Sequence[str],
    width: float,
    styles: Mapping[str, Style],
) -> tuple[Figure, tuple[str, ...]]:
    """The picture and its caption. Settings that are no numbers stand at equal distances.

    Args:
        names: variants that differ in `spec.axis` alone.
    """
    scale = _scale(study, spec)
    axis = str(spec.axis)
    places, ticks = _places(study, axis, names)
    picture = Figure(figsize=(width, min(2.6, width * 0.55)), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    dots = pd.DataFrame(
        [
            (places[name], value * scale, name)
            for name in names
            for value in found.get(name, spec.metric).values.values()
        ],
        columns=["x", "y", "variant"],
    )
    if len(dots):
        colours = {name: styles[name].colour for name in names}
        sns.scatterplot(
            dots, x="x", y="y", hue="variant", palette=colours, alpha=0.4, s=9, legend=False, ax=axes
        )
    centres: list[tuple[float, float]] = []
    for name in sorted(names, key=lambda n: places[n]):
        result = found.get(name, spec.metric)
        if not result.n:
            axes.annotate(
                found.outcomes[name].glyph(),
                (places[name], 0.02),
                xycoords=("data", "axes fraction"),
                ha="center",
                fontsize=SMALLEST,
                style="italic",
                parse_math=False,
            )
            axes.plot([places[name]], [np.nan])
            centres.append((places[name], np.nan))  # the line is broken where there is no result
            continue
        centres.append((places[name], result.mean * scale))
        colour = styles[name].colour
        axes.errorbar(
            [places[name]],
            [result.mean * scale],
            yerr=[0.0 if np.isnan(result.sd) else result.sd * scale],
            fmt="o",
            color=colour,
            markerfacecolor=colour if result.whole else "white",
            markersize=4,
            capsize=2,
        )
    if ticks is None and len(centres) > 1:
        axes.plot(*zip(*centres, strict=True), color="#888888", linewidth=0.8, zorder=1)
    if ticks is not None:
        axes.set_xticks(range(len(ticks)), ticks, parse_math=False)
    hidden = _logarithmic(axes, spec, places, ticks, dots["y"].to_numpy(dtype=np.float64))
    axes.set_xlabel(setting_name(axis), parse_math=False)
    axes.set_ylabel(metric_label(study, spec.metric, scale), parse_math=False)
    axes.margins(x=0.06)
    title = spec.caption or f"{metric_name(study, spec.metric)} against {axis}."
    counted = (
        "At the last epoch. Dots: seeds; circle and bar: mean and sample standard deviation (ddof 1); "
        "hollow: not all seeds finished; the line is broken where no seed did."
    )
    return picture, (
        captions.sentence(title),
        f"Variants: {'; '.join(found.outcomes[name].label for name in names)}.",
        counted,
        *hidden,
    )


def _logarithmic(
    axes: object, spec: FigureSpec, places: Mapping[str, float], ticks: object, values: np.ndarray
) -> list[str]:
    """Set logarithmic axes; sentences on what has no place on them."""
    said = []
    if spec.log_x and ticks is None:
        axes.set_xscale("log")  # type: ignore[attr-defined]
        if zero := sorted({place for place in places.values() if place <= 0}):
            listed = ", ".join(f"{place:g}" for place in zero)
            said.append(f"The horizontal axis is logarithmic and has no place for {listed}.")
    if spec.log_y:
        axes.set_yscale("log")  # type: ignore[attr-defined]
        if below := int((values <= 0).sum()):
            left_out = counted(below, "value")
            said.append(
                f"The vertical axis is logarithmic and has no place for {left_out} at or below 0."
            )
    return said


def heat_map(
    study: Study,
    spec: FigureSpec,
    found: Results,
    names: Sequence[str],
    width: float,
) -> tuple[Figure, tuple[str, ...]]:
    """The means of a grid over two settings, each printed in its cell.

    Args:
        names: variants that differ in `spec.axis` and `spec.axis_y` alone, at most one a cell.
    """
    scale, metric = _scale(study, spec), study.metrics[spec.metric]
    columns, rows = (_ordered(study, str(axis), names) for axis in (spec.axis, spec.axis_y))
    values = pd.DataFrame(np.nan, index=rows, columns=columns)
    texts = pd.DataFrame("", index=rows, columns=columns)
    for name in names:
        row, column = (readable(setting(study, name, str(k))) for k in (spec.axis_y, spec.axis))
        result = found.get(name, spec.metric)
        if not result.n:
            texts.loc[row, column] = found.outcomes[name].glyph()
            continue
        values.loc[row, column] = result.mean * scale
        done = "" if result.whole else f"\n({result.n}/{result.planned})"
        texts.loc[row, column] = f"{numbers.printed(result.mean, metric)}{done}"
    picture = Figure(figsize=(width, 0.55 + 0.32 * len(rows)), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    sns.heatmap(
        values,
        mask=values.isna(),
        cmap="cividis" if metric.direction == "up" else "cividis_r",
        linewidths=0.6,
        linecolor="white",
        annot=values.notna().any(axis=None) and texts.where(values.notna(), ""),
        fmt="",
        annot_kws={"fontsize": SMALLEST},
        cbar_kws={"label": metric_label(study, spec.metric, scale)},
        ax=axes,
    )
    axes.grid(False)
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            if not values.notna().loc[row, column]:
                word, place = str(texts.loc[row, column]), (x + 0.5, y + 0.5)
                axes.text(*place, word, ha="center", va="center", style="italic", fontsize=SMALLEST)
    axes.set_xlabel(setting_name(str(spec.axis)), parse_math=False)
    axes.set_ylabel(setting_name(str(spec.axis_y)), parse_math=False)
    axes.tick_params(axis="y", labelrotation=0)
    title = spec.caption or f"{metric_name(study, spec.metric)} against {spec.axis} and {spec.axis_y}."
    said = [captions.sentence(title), "Each cell: the mean over seeds at the last epoch."]
    if any(not found.get(name, spec.metric).whole for name in names):
        said.append("k/N: only k of N seeds finished; words: no seed did.")
    if len(names) < len(rows) * len(columns):
        said.append("Empty cells were not planned.")
    return picture, tuple(said)


def _scale(study: Study, spec: FigureSpec) -> float:
    return 100.0 if study.metrics[spec.metric].unit == "%" else 1.0


def _ordered(study: Study, axis: str, names: Sequence[str]) -> list[str]:
    """The settings on an axis in words: numbers by size, others as the manifest has them."""
    values = [setting(study, name, axis) for name in names]
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        values = sorted(values)
    return list(dict.fromkeys(readable(value) for value in values))


def _places(study: Study, axis: str, names: Sequence[str]) -> tuple[dict[str, float], list[str] | None]:
    """Where each variant stands, and tick labels where the settings are no numbers."""
    values = {name: setting(study, name, axis) for name in names}
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values.values()):
        return {name: float(value) for name, value in values.items()}, None
    ticks = list(dict.fromkeys(readable(v) for v in values.values()))
    return {name: float(ticks.index(readable(v))) for name, v in values.items()}, ticks
