"""A result against one setting (dots and bars) or two (a heat map); what has no result is said so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from analysis.figures.curves import metric_label, metric_name, setting_name
from analysis.figures.style import SMALLEST, Style
from analysis.results import numbers
from analysis.results.frames import Results
from analysis.runs.comparable import readable, setting
from analysis.tables import captions

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
    axes = picture.subplots()
    results = {name: found.get(name, spec.metric) for name in names}
    for name, result in results.items():
        colour, place = styles[name].colour, places[name]
        if not result.n:
            word, at = found.outcomes[name].glyph(), axes.get_xaxis_transform()
            look: Any = {"ha": "center", "size": SMALLEST, "style": "italic", "parse_math": False}
            axes.text(place, 0.02, word, transform=at, **look)
            axes.plot([place], [np.nan])
            continue
        values = [value * scale for value in result.values.values()]
        axes.plot([place] * len(values), values, "o", color=colour, alpha=0.4, ms=3, mew=0)
        axes.errorbar(
            [place],
            [result.mean * scale],
            yerr=[0.0 if np.isnan(result.sd) else result.sd * scale],
            fmt="o",
            color=colour,
            markerfacecolor=colour if result.whole else "white",
            markersize=4,
            capsize=2,
        )
    if ticks is not None:
        axes.set_xticks(range(len(ticks)), ticks, parse_math=False)
    elif len(names) > 1:  # the line is broken where there is no result
        line = sorted((places[name], results[name].mean * scale) for name in names)
        axes.plot(*zip(*line, strict=True), color="#888888", linewidth=0.8, zorder=1)
    axes.set_xlabel(setting_name(axis), parse_math=False)
    axes.set_ylabel(metric_label(study, spec.metric, scale), parse_math=False)
    axes.margins(x=0.06)
    title = spec.caption or f"{metric_name(study, spec.metric)} against {axis}."
    return picture, (
        captions.sentence(title),
        f"Variants: {'; '.join(found.outcomes[name].label for name in names)}.",
        "At the last epoch. Dots: seeds; circle and bar: mean and sample standard deviation (ddof 1); "
        "hollow: not all seeds finished; the line is broken where no seed did.",
    )


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
    for y, x in zip(*np.nonzero(values.isna()), strict=True):
        word, look = str(texts.iat[y, x]), dict[str, Any](ha="center", va="center", style="italic")
        axes.text(x + 0.5, y + 0.5, word, fontsize=SMALLEST, **look)
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


def _settings(study: Study, axis: str, names: Sequence[str]) -> tuple[dict[str, Any], bool]:
    """Variant to its setting on an axis, and whether all are numbers: then by size."""
    values = {name: setting(study, name, axis) for name in names}
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values.values()):
        return dict(sorted(values.items(), key=itemgetter(1))), True
    return values, False


def _ordered(study: Study, axis: str, names: Sequence[str]) -> list[str]:
    """The settings on an axis in words: numbers by size, others as the manifest has them."""
    return list(dict.fromkeys(map(readable, _settings(study, axis, names)[0].values())))


def _places(study: Study, axis: str, names: Sequence[str]) -> tuple[dict[str, float], list[str] | None]:
    """Where each variant stands, and tick labels where the settings are no numbers."""
    values, are_numbers = _settings(study, axis, names)
    if are_numbers:
        return {name: float(value) for name, value in values.items()}, None
    ticks = _ordered(study, axis, names)
    return {name: float(ticks.index(readable(v))) for name, v in values.items()}, ticks
