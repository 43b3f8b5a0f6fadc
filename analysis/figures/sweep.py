"""A result against a setting: one dot a seed, mean and spread, and what has no result said so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis.figures import caption as figcaption
from analysis.figures.palette import Style
from analysis.results import stats
from analysis.results.outcomes import Outcome
from analysis.results.settings import on_axis, readable, setting
from analysis.tables import captions

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import FigureSpec


def sweep(
    study: Study,
    spec: FigureSpec,
    found: Mapping[str, Outcome],
    names: Sequence[str],
    width: float,
    styles: Mapping[str, Style],
) -> tuple[Figure, tuple[str, ...]]:
    """The picture and its caption. Settings that are no numbers stand at equal distances."""
    metric = study.metrics[spec.metric]
    scale = 100.0 if metric.unit == "%" else 1.0
    axis = str(spec.axis)
    names, others = on_axis(study, names, axis), names
    others = [name for name in others if name not in names]
    places, ticks = _places(study, axis, names)
    picture = Figure(figsize=(width, min(2.6, width * 0.55)), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    centres: list[tuple[float, float]] = []
    for name in sorted(names, key=lambda n: places[n]):
        place, style = places[name], styles[name]
        values = np.array(list(found[name].values(spec.metric).values())) * scale
        if not len(values):
            axes.annotate(
                found[name].glyph(),
                (place, 0.02),
                xycoords=("data", "axes fraction"),
                ha="center",
                fontsize="small",
                style="italic",
                parse_math=False,
            )
            axes.plot([place], [np.nan])
            centres.append((place, np.nan))  # the line is broken where there is no result
            continue
        s = stats.summary(values)
        centres.append((place, s.mean))
        axes.plot([place] * len(values), values, ".", color=style.colour, alpha=0.4, markersize=4)
        axes.errorbar(
            [place],
            [s.mean],
            yerr=[s.sd or 0.0],
            fmt="o",
            color=style.colour,
            markerfacecolor=style.colour if found[name].whole else "white",
            markersize=4,
            capsize=2,
        )
    if ticks is None and len(centres) > 1:
        axes.plot(*zip(*centres, strict=True), color="#888888", linewidth=0.8, zorder=1)
    if ticks is not None:
        axes.set_xticks(range(len(ticks)), ticks, parse_math=False)
    if spec.log_x and ticks is None:
        axes.set_xscale("log")
    if spec.log_y:
        axes.set_yscale("log")
    axes.set_xlabel(axis, parse_math=False)
    axes.set_ylabel(figcaption.metric_label(study, spec.metric, scale), parse_math=False)
    axes.margins(x=0.06)
    title = spec.caption or f"{figcaption.metric_name(study, spec.metric)} against {axis}."
    counted = (
        "Dots: seeds; circle and bar: mean and sample standard deviation (ddof 1); hollow: not all "
        "seeds finished; the line is broken where no seed did."
    )
    return picture, (
        captions.sentence(title),
        f"Variants: {'; '.join(found[name].label for name in names)}.",
        counted,
        *captions.left_out("Not drawn", [found[name].label for name in others]),
    )


def _places(study: Study, axis: str, names: Sequence[str]) -> tuple[dict[str, float], list[str] | None]:
    """Where each variant stands, and tick labels where the settings are no numbers."""
    values = {name: setting(study, name, axis) for name in names}
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values.values()):
        return {name: float(value) for name, value in values.items()}, None
    ticks = list(dict.fromkeys(readable(v) for v in values.values()))
    return {name: float(ticks.index(readable(v))) for name, v in values.items()}, ticks
