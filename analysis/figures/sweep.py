"""A result against one setting, as dots and bars; what has no result is said so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figures.curves import metric_label, metric_name, setting_name
from analysis.figures.style import SMALLEST, Style
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
    scale = 100.0 if study.metrics[spec.metric].unit == "%" else 1.0
    axis = str(spec.axis)
    places, ticks = _places(study, axis, names)
    picture = Figure(figsize=(width, min(2.6, width * 0.55)), layout="constrained")
    axes = picture.subplots()
    results = {name: found.get(name, spec.metric) for name in names}
    seeds = pd.DataFrame(
        {"variant": name, "place": places[name], "value": value * scale}
        for name, result in results.items()
        for value in result.values.values()
    )
    if len(seeds):
        import seaborn as sns

        colours = {name: styles[name].colour for name in names}
        look: Any = {"hue": "variant", "palette": colours, "alpha": 0.4, "s": 9, "linewidth": 0}
        sns.scatterplot(seeds, x="place", y="value", legend=False, ax=axes, **look)
    for name, result in results.items():
        colour, place = styles[name].colour, places[name]
        if not result.n:
            word, at = found.outcomes[name].glyph(), axes.get_xaxis_transform()
            look = {"ha": "center", "size": SMALLEST, "style": "italic", "parse_math": False}
            axes.text(place, 0.02, word, transform=at, **look)
            axes.plot([place], [np.nan])
            continue
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


def _places(study: Study, axis: str, names: Sequence[str]) -> tuple[dict[str, float], list[str] | None]:
    """Where each variant stands, and tick labels where the settings are no numbers."""
    values = {name: setting(study, name, axis) for name in names}
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values.values()):
        return {name: float(value) for name, value in values.items()}, None
    ticks = list(dict.fromkeys(readable(v) for v in values.values()))
    return {name: float(ticks.index(readable(v))) for name, v in values.items()}, ticks
