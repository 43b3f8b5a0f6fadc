"""One variant's curve on a figure's axes: seeds thin, band, mean, markers, and where runs ended."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.figures.curvedata import CurveSet, VariantCurve
from analysis.figures.palette import Style

MARKER_SIZE = 3.6  # points
MARKERS_OF_A_CURVE = 5
GOING_ON = ("completed", "running", "queued", "requeued")


def places(curves: CurveSet) -> dict[str, np.ndarray]:
    """For each variant the points that carry its marker, no two variants at the same place.

    Curves that lie on each other hide all lines but the last; their markers take turns, so that each is
    seen.
    """
    shown = [curve for curve in curves.curves if curve.logged]
    found: dict[str, np.ndarray] = {}
    for number, curve in enumerate(shown):
        points = np.flatnonzero(np.isfinite(curve.mean))
        every = max(-(-len(points) // MARKERS_OF_A_CURVE), min(len(shown), len(points)))
        first = every * number // len(shown) if every >= len(shown) else number % every
        found[curve.variant] = points[first::every]
    return found


def draw_curve(
    axes: Axes,
    curve: VariantCurve,
    style: Style,
    curves: CurveSet,
    *,
    log: bool,
    marked: np.ndarray | None = None,
) -> None:
    """Draw one variant; its mean is dotted where a seed is lacking.

    Args:
        marked: indices of the mean's points that get the style's marker.
    """
    per = curves.steps_per_epoch or 1.0
    several = len(curve.seeds) > 1
    for seed in curve.seeds:
        x = np.repeat(seed.line.x / per, 2)
        y = np.stack([seed.line.low, seed.line.high], axis=1).ravel()
        width, alpha = (0.4, 0.35) if several else (1.1, 1.0)
        line = Line2D(x, _on_axis(y, log), color=style.colour, linewidth=width, alpha=alpha)
        if style.dashes and not several:
            line.set_dashes(style.dashes)
            line.set_zorder(4.5)
        axes.add_line(line)
    if several:
        floor = _floor(curves)
        low = np.maximum(curve.low, floor) if log else curve.low
        axes.fill_between(
            curve.x / per, low, curve.high, color=style.colour, alpha=0.13, linewidth=0, zorder=1
        )
        part = Line2D([], [], color=style.colour, linewidth=0.9, dashes=(1.0, 1.0), zorder=3)
        part.set_data(curve.x / per, _on_axis(curve.mean, log))
        axes.add_line(part)
        whole = np.where(curve.whole, curve.mean, np.nan)
        line = Line2D(curve.x / per, _on_axis(whole, log), color=style.colour, linewidth=1.2, zorder=4)
        if style.dashes:
            line.set_zorder(4.5)
            line.set_dashes(style.dashes)
        axes.add_line(line)
    if marked is not None:
        at, height = curve.x[marked] / per, _on_axis(curve.mean[marked], log)
        axes.add_line(Line2D(at, height, linestyle="none", zorder=6, **marker(style)))
    _not_finite(axes, curve, style, per)
    _ends(axes, curve, style, per, log)
    axes.autoscale_view()


def marker(style: Style) -> dict[str, Any]:
    """How a variant's marker is drawn, on a curve and in a legend."""
    return {
        "marker": style.marker,
        "fillstyle": style.fill,
        "color": style.colour,
        "markerfacecoloralt": "white",
        "markerfacecolor": "white" if style.fill == "none" else style.colour,
        "markeredgewidth": 0.7,
        "markersize": MARKER_SIZE * (1.35 if style.marker in "*P" else 1.0),
    }


def _not_finite(axes: Axes, curve: VariantCurve, style: Style, per: float) -> None:
    """Triangles at the upper border where a seed's value was no number and the run went on."""
    broken = np.unique(np.concatenate([seed.line.broken for seed in curve.seeds])) / per
    if not len(broken):
        return
    line = Line2D(broken, np.ones_like(broken), linestyle="none", marker="^", color=style.colour)
    line.set(markersize=2.5, markeredgewidth=0, clip_on=False, transform=axes.get_xaxis_transform())
    line.set_in_layout(False)
    axes.add_line(line)


def _ends(axes: Axes, curve: VariantCurve, style: Style, per: float, log: bool) -> None:
    """A cross where a seed diverged, a bar where it stopped otherwise."""
    for seed in curve.seeds:
        if seed.end is None or seed.state in GOING_ON:
            continue
        at, height = seed.end
        if np.isfinite(height) and not (log and height <= 0):
            mark = "x" if seed.state == "diverged" else "|"
            axes.plot([at / per], [height], mark, color=style.colour, markersize=6, mew=1.3, zorder=7)


def _on_axis(values: np.ndarray, log: bool) -> np.ndarray:
    return np.where(values > 0, values, np.nan) if log else values


def _floor(curves: CurveSet) -> float:
    positive = curves.finite[curves.finite > 0]
    return float(positive.min()) if len(positive) else 1e-12
