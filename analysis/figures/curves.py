"""Curves over training, drawn from the `curves` frame, which computes every mean and band.

matplotlib is used without pyplot: no global state, no display.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from analysis.figures.style import Style
from analysis.results import curves as curveframe
from analysis.results.curves import Curve
from analysis.runs.collect import Collected
from analysis.runs.comparable import readable, setting

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import FigureSpec

PANELS_IN_A_ROW = 3
FEW_DECADES = 2.5
EXPLODES = 50  # largest over smallest value from which a linear axis hides most of what happens
MARKER_SIZE = 3.6  # points
MARKERS_OF_A_CURVE = 5
DOTTED = (1.0, 1.0)

NAMES = {
    "loss": "training loss",
    "epoch_loss": "mean training loss of an epoch",
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "amp_scale": "AMP loss scale",
    "images_per_s": "images per second",
    "memory_mib": "memory (MiB)",
}


def metric_name(study: Study, metric: str) -> str:
    """What an axis calls a metric: the manifest's label, a known name, or the key read as words."""
    declared = study.metrics.get(metric)
    if declared is not None:
        return declared.label or metric
    first, _, rest = metric.partition("/")
    name = NAMES.get(first, first.replace("_", " "))
    return f"{name}, {rest.replace('_', ' ')}" if rest else name


def metric_label(study: Study, metric: str, scale: float) -> str:
    """`metric_name` with the unit in which values are drawn."""
    declared = study.metrics.get(metric)
    unit = "%" if scale == 100.0 else (declared.unit if declared and declared.unit != "%" else "")
    return metric_name(study, metric) + (f" ({unit})" if unit else "")


def setting_name(key: str) -> str:
    """What an axis calls a dotted configuration key: its last part, in words."""
    return key.rpartition(".")[2].replace("_", " ")


@dataclass(frozen=True)
class Plot:
    """What one figure draws.

    Attributes:
        scale: values are multiplied by it (100 where the metric prints in per cent).
        epochs: whether the horizontal axis counts epochs; else steps.
        log: whether the vertical axis is logarithmic.
    """

    study: Study
    spec: FigureSpec
    curves: tuple[Curve, ...]
    scale: float
    epochs: bool
    log: bool

    def x(self, curve: Curve, steps: np.ndarray) -> np.ndarray:
        return curve.epochs.at(steps) if self.epochs and curve.epochs is not None else steps

    def y(self, values: np.ndarray) -> np.ndarray:
        """Values on the axis; NaN where a logarithmic one has no place for them."""
        scaled = np.asarray(values, dtype=np.float64) * self.scale
        return np.where(scaled > 0, scaled, np.nan) if self.log else scaled

    @property
    def shown(self) -> tuple[Curve, ...]:
        """The curves with a value, and those of variants without any completed run."""
        return tuple(c for c in self.curves if c.logged or not c.outcome.completed)

    @cached_property
    def values(self) -> np.ndarray:
        """All finite values that are drawn, in their scale, spikes included."""
        values = np.concatenate([s.value for c in self.curves for s in c.seeds] or [np.empty(0)])
        return values[np.isfinite(values)] * self.scale

    def unlogged(self) -> list[str]:
        """Labels of the variants that completed a run and never logged this metric."""
        return [c.outcome.label for c in self.curves if not c.logged and c.outcome.completed]

    def below_axis(self) -> dict[str, int]:
        """Label to how many values of its seeds are zero or less and so not on a logarithmic axis."""
        counts = {c.outcome.label: sum(int((s.value <= 0).sum()) for s in c.seeds) for c in self.curves}
        return {label: count for label, count in counts.items() if count} if self.log else {}

    def by_end(self) -> list[Curve]:
        """What is shown, from the curve that ends highest to the lowest; last those without a value."""

        def height(curve: Curve) -> float:
            values = curve.mean[np.isfinite(curve.mean)]
            return float(values[-1]) if len(values) else -np.inf

        return sorted(self.shown, key=height, reverse=True)


def plot(
    collected: Collected, study: Study, spec: FigureSpec, variants: Sequence[str] | None = None
) -> Plot:
    """The curves of a figure in the manifest's order of variants, and the axes that they need."""
    names = variants if variants is not None else spec.variants or None
    found = tuple(curveframe.curves(collected, study, spec.metric, variants=names))
    kind = found[0].kind if found else "train"
    declared = study.metrics.get(spec.metric)
    percent = kind == "eval" and declared is not None and declared.unit == "%"
    logged = [c for c in found if c.logged]
    shown = Plot(
        study,
        spec,
        found,
        scale=100.0 if percent else 1.0,
        epochs=bool(logged) and all(c.epochs is not None for c in logged),
        log=False,
    )
    lowest, highest = shown.values.min(initial=np.inf), shown.values.max(initial=0.0)
    explodes = not percent and 0 < lowest * EXPLODES < highest  # a percentage cannot
    return replace(shown, log=bool(highest > 0 and (spec.log_y or explodes)))


# -- one figure ---------------------------------------------------------------------------------


def curve_figure(shown: Plot, width: float, styles: dict[str, Style]) -> Figure:
    """All panels of a figure, with one legend."""
    panels = _panels(shown)
    entries = [(c.label, styles[c.variant]) for c in shown.by_end()]
    if shown.spec.panel_by:
        entries, styles = _series(shown, styles)
    across = min(PANELS_IN_A_ROW, len(panels)) if width > 4 else 1
    down = -(-len(panels) // across)
    beside, columns, room = _legend_layout(entries, width, panels=len(panels))
    height = down * (2.1 if across == 1 else 1.7) + 0.15
    height = max(height, room) if beside else height + room
    picture = Figure(figsize=(width, height), layout="constrained")
    grid = picture.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    marked = marker_places(shown.curves) if len(entries) > 1 else {}
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_visible(False)
            continue
        title, members = panels[number]
        draw_curves(axes, shown, members, styles, marked)
        if title:
            axes.set_title(title, parse_math=False)
        label_axes(axes, shown)
        if number % across:
            axes.set_ylabel("")
        if number + across < len(panels):
            axes.set_xlabel("")
        else:  # nothing below it shows the shared axis
            axes.tick_params(labelbottom=True)
    _draw_legend(picture, entries, beside, columns)
    return picture


def _panels(shown: Plot) -> list[tuple[str, list[Curve]]]:
    spec = shown.spec
    if not spec.panel_by:
        return [("", list(shown.curves))]
    groups: dict[str, list[Curve]] = {}
    for curve in shown.curves:
        if curve.variant not in spec.in_every_panel:
            value = readable(setting(shown.study, curve.variant, spec.panel_by))
            groups.setdefault(value, []).append(curve)
    everywhere = [c for c in shown.curves if c.variant in spec.in_every_panel]
    key = setting_name(spec.panel_by)
    return [(f"{key} {value}", [*everywhere, *members]) for value, members in groups.items()]


def _series(shown: Plot, styles: dict[str, Style]) -> tuple[list[tuple[str, Style]], dict[str, Style]]:
    """Legend entries and styles where variants that differ in the panelled key alone look alike: as
    the first of them does elsewhere.

    An entry's label is what the members' labels share, part by part between commas: `C = 10` for
    `C = 10, τ = 1` and `C = 10, τ = 5`. Runs are counted together, as in `Curve.label`.
    """
    spec = shown.spec
    groups: dict[str, list[Curve]] = {}
    for curve in shown.curves:
        variant = shown.study.variants.get(curve.variant)
        differences = {} if variant is None else dict(variant.overrides)
        differences.pop(spec.panel_by or "", None)
        alone = curve.variant in spec.in_every_panel or variant is None
        key = curve.variant if alone else repr(sorted(differences.items()))
        groups.setdefault(key, []).append(curve)
    entries = []
    for members in groups.values():
        style = styles[members[0].variant]
        done = sum(len(c.outcome.completed) for c in members)
        planned = sum(c.planned for c in members)
        label = _shared([c.outcome.label for c in members])
        entries.append((label + ("" if done == planned else f" ({done}/{planned})"), style))
        styles = {**styles, **{c.variant: style for c in members}}
    return entries, styles


def _shared(labels: Sequence[str]) -> str:
    """The parts between commas that all labels have, or all labels where they share none."""
    parts = [label.split(", ") for label in dict.fromkeys(labels)]
    common = [part for part in parts[0] if all(part in other for other in parts)]
    return ", ".join(common) or " / ".join(dict.fromkeys(labels))


# -- lines --------------------------------------------------------------------------------------


def draw_curves(
    axes: Axes,
    shown: Plot,
    members: Sequence[Curve],
    styles: dict[str, Style],
    marked: dict[str, np.ndarray],
) -> None:
    """Seeds thin, band, mean (dotted where fewer seeds than planned are left), ends and markers.

    Args:
        marked: for each variant the indices of the mean's points that get its marker.
    """
    members = sorted(members, key=lambda c: styles[c.variant].dashes is not None)  # dashed ones last
    for curve in members:
        style = styles[curve.variant]
        if len(curve.seeds) > 1 or curve.merged is not None:
            for seed in curve.seeds:
                x, y = shown.x(curve, seed.step), shown.y(seed.value)
                _line(axes, x, y, style, linewidth=0.4, alpha=0.35, zorder=2)
        low, high = (shown.y(edge) for edge in curve.band(shown.spec.band))
        if shown.log:  # where a lower edge is zero or less, the band ends at the lowest value
            low = np.where(np.isfinite(high), np.nan_to_num(low, nan=_lowest(shown)), np.nan)
        x, y = shown.x(curve, curve.step), shown.y(curve.mean)
        for part in curve.pieces():
            if len(curve.seeds) > 1:
                edges = low[part], high[part]
                axes.fill_between(x[part], *edges, color=style.colour, alpha=0.13, lw=0, zorder=1)
            if curve.n[part][0] >= curve.planned:
                _line(axes, x[part], y[part], style, style.dashes, linewidth=1.2, zorder=4)
            else:
                _line(axes, x[part], y[part], style, DOTTED, linewidth=0.9, zorder=3)
        if len(places := marked.get(curve.variant, ())):
            axes.add_line(Line2D(x[places], y[places], linestyle="none", zorder=6, **_marker(style)))
        _ends(axes, shown, curve, style)
    axes.autoscale_view()


def _line(
    axes: Axes,
    x: np.ndarray,
    y: np.ndarray,
    style: Style,
    dashes: tuple[float, ...] | None = None,
    **look: Any,
) -> None:
    """A line with gaps where `y` is not finite. A value between two gaps is a dot: no line shows it."""
    if dashes:
        axes.plot(x, y, color=style.colour, dashes=dashes, **look)
    else:
        axes.plot(x, y, color=style.colour, **look)
    finite = np.pad(np.isfinite(y), 1)
    alone = finite[1:-1] & ~finite[:-2] & ~finite[2:]
    if alone.any():
        axes.plot(x[alone], y[alone], ".", color=style.colour, markersize=2.5, **look)


def _lowest(shown: Plot) -> float:
    """The lowest value that a logarithmic axis can show."""
    return float(shown.values[shown.values > 0].min(initial=np.inf))


def marker_places(found: Sequence[Curve]) -> dict[str, np.ndarray]:
    """For each variant the points that carry its marker, no two variants at the same place.

    Curves that overlap hide all lines but the last; their markers take turns, so that each is seen.
    """
    logged = [curve for curve in found if curve.logged]
    places: dict[str, np.ndarray] = {}
    for number, curve in enumerate(logged):
        points = np.flatnonzero(np.isfinite(curve.mean))
        every = max(-(-len(points) // MARKERS_OF_A_CURVE), min(len(logged), len(points)), 1)
        first = every * number // len(logged) if every >= len(logged) else number % every
        places[curve.variant] = points[first::every]
    return places


def _marker(style: Style) -> dict[str, Any]:
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


def _ends(axes: Axes, shown: Plot, curve: Curve, style: Style) -> None:
    """A cross where a seed diverged, a bar where it stopped or ended early; triangles at the upper
    border at values that were not finite, at the lower one at those that a logarithmic axis lacks."""
    broken = np.unique(np.concatenate([s.broken for s in curve.seeds] or [np.empty(0)]))
    _border(axes, shown.x(curve, broken), "^", 1.0, style)
    if shown.log:
        below = np.concatenate([s.step[s.value <= 0] for s in curve.seeds] or [np.empty(0)])
        _border(axes, shown.x(curve, np.unique(below)), "v", 0.0, style)
    for seed in curve.seeds:
        if seed.end is None or seed.last is None:
            continue
        at, height = shown.x(curve, np.array([seed.last[0]])), shown.y(np.array([seed.last[1]]))
        if np.isfinite(height[0]):
            mark = "x" if seed.end == "diverged" else "|"
            axes.plot(at, height, mark, color=style.colour, markersize=6, mew=1.3, zorder=7)


def _border(axes: Axes, at: np.ndarray, mark: str, height: float, style: Style) -> None:
    if not len(at):
        return
    line = Line2D(at, np.full(len(at), height), linestyle="none", marker=mark, color=style.colour)
    line.set(markersize=2.5, markeredgewidth=0, clip_on=False, transform=axes.get_xaxis_transform())
    line.set_in_layout(False)
    axes.add_line(line)


def label_axes(axes: Axes, shown: Plot) -> None:
    """Scales, names and numbers of the axes."""
    if shown.log:
        axes.set_yscale("log")
        if (
            shown.values.max() < _lowest(shown) * 10**FEW_DECADES
        ):  # powers of ten alone would be too few
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
    if shown.epochs:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_xlabel("epoch" if shown.epochs else "step")
    axes.set_ylabel(metric_label(shown.study, shown.spec.metric, shown.scale), parse_math=False)
    if not len(shown.values):
        axes.text(0.5, 0.5, "no run has logged it", ha="center", transform=axes.transAxes)
    axes.margins(x=0.02)


# -- legend -------------------------------------------------------------------------------------

LINE, HANDLE, CHARACTER = 0.155, 0.5, 0.062  # inches of a legend's row, of its sample, of a letter
SHARE = 0.36  # of the width, at most, for a legend beside the curves


def _legend_layout(
    entries: Sequence[tuple[str, Style]], width: float, *, panels: int
) -> tuple[bool, int, float]:
    """Beside a single panel where the longest name has room, else below; columns; height in inches."""
    longest = HANDLE + CHARACTER * max((len(label) for label, _ in entries), default=1)
    if panels == 1 and longest <= SHARE * width:
        return True, 1, LINE * len(entries) + 0.3
    columns = min(len(entries), max(1, int(width / (longest + 0.15))))
    return False, columns, LINE * -(-len(entries) // columns)


def _draw_legend(
    picture: Figure, entries: Sequence[tuple[str, Style]], beside: bool, columns: int
) -> None:
    """Line, dashes and marker of each entry as they are in the curves."""
    # A label that begins with an underscore would be left out, so the texts are set afterwards.
    drawn = picture.legend(
        [Line2D([], [], linewidth=1.2, dashes=s.dashes or (), **_marker(s)) for _, s in entries],
        [str(number) for number in range(len(entries))],
        loc="outside right center" if beside else "outside lower center",
        ncols=columns,
        columnspacing=1.2,
        handlelength=2.6,
        labelspacing=0.25,
    )
    for text, (label, _) in zip(drawn.get_texts(), entries, strict=True):
        text.set(text=label, parse_math=False)
