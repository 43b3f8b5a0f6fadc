"""Curves over training, drawn by seaborn from the `curves` frame, which computes every mean.

seaborn only draws: means, bands and the points of single seeds come from `analysis.results.curves`.
matplotlib is used without pyplot: no global state, no display.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

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
LINE_WIDTH = 0.01  # of the vertical axis: about a printed line's
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

    def unlogged(self) -> list[str]:
        """Labels of the variants that completed a run and never logged this metric."""
        return [c.outcome.label for c in self.curves if not c.logged and c.outcome.completed]

    def below_axis(self) -> dict[str, int]:
        """Label to how many values of its seeds are zero or less and so not on a logarithmic axis."""
        counts = {c.outcome.label: sum(int((s.value <= 0).sum()) for s in c.seeds) for c in self.curves}
        return {label: count for label, count in counts.items() if count} if self.log else {}

    def left_of_axis(self) -> bool:
        """Whether a logarithmic horizontal axis has no place for some point: step 0."""
        return self.spec.log_x and any((s.step <= 0).any() for c in self.curves for s in c.seeds)

    def coinciding(self) -> list[list[str]]:
        """Labels of curves that overlap: less than a line's width apart at every step."""
        drawn = [c for c in self.curves if c.logged]
        values = {c.variant: self.y(c.mean) for c in drawn}
        if self.log:
            values = {name: np.log(line) for name, line in values.items()}
        finite = np.concatenate([*(line[np.isfinite(line)] for line in values.values()), np.empty(0)])
        if not len(finite):
            return []
        near = LINE_WIDTH * (finite.max() - finite.min())
        groups: list[list[Curve]] = []
        for curve in drawn:
            mine = values[curve.variant]
            for group in groups:
                other = values[group[0].variant]
                same = np.array_equal(curve.step, group[0].step)
                if (
                    same
                    and np.array_equal(np.isfinite(mine), np.isfinite(other))
                    and np.isfinite(mine).any()
                    and np.nanmax(np.abs(mine - other)) <= near
                ):
                    group.append(curve)
                    break
            else:
                groups.append([curve])
        return [[c.outcome.label for c in group] for group in groups if len(group) > 1]

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
    finite = _finite(found)
    explodes = len(finite) and finite.min() > 0 and finite.max() / finite.min() > EXPLODES
    explodes = explodes and not percent  # a percentage cannot
    return Plot(
        study,
        spec,
        found,
        scale=100.0 if percent else 1.0,
        epochs=bool(logged) and all(c.epochs is not None for c in logged),
        log=bool(len(finite[finite > 0])) and (spec.log_y or bool(explodes)),
    )


def _finite(found: Iterable[Curve]) -> np.ndarray:
    """All finite values that are drawn, spikes included."""
    values = np.concatenate([s.value for c in found for s in c.seeds] or [np.empty(0)])
    return values[np.isfinite(values)]


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
    FigureCanvasAgg(picture)
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
    marked: dict[str, np.ndarray] | None = None,
) -> None:
    """Seeds thin, band, mean (dotted where fewer seeds than planned are left), ends and markers.

    Args:
        marked: for each variant the indices of the mean's points that get its marker.
    """
    members = sorted(members, key=lambda c: styles[c.variant].dashes is not None)  # dashed ones last
    weight = shown.spec.smoothing
    means: dict[str, list[tuple[Curve, np.ndarray, np.ndarray]]] = {"whole": [], "fewer": [], "raw": []}
    seeds = []
    for curve in members:
        for seed in curve.seeds:
            thin = len(curve.seeds) > 1 or curve.merged is not None
            x, y = shown.x(curve, seed.step), shown.y(seed.value)
            seeds += [(curve, x[part], y[part]) for part in _unbroken(y) if thin]
        low, high = (shown.y(edge) for edge in curve.band(shown.spec.band))
        low = np.where(np.isnan(low) & np.isfinite(high), _floor(shown), low)
        x = shown.x(curve, curve.step)
        for part, smooth in curve.lines(weight):
            colour = styles[curve.variant].colour
            if len(curve.seeds) > 1:
                at, edges = x[part], (low[part], high[part])
                axes.fill_between(at, *edges, color=colour, alpha=0.13, linewidth=0, zorder=1)
            y = shown.y(smooth)
            kind = "whole" if curve.n[part][0] >= curve.planned else "fewer"
            means[kind] += [(curve, x[part][p], y[p]) for p in _unbroken(y)]
            if weight:
                raw = shown.y(curve.mean[part])
                means["raw"] += [(curve, x[part][p], raw[p]) for p in _unbroken(raw)]
    _lines(axes, seeds, styles, linewidth=0.4, alpha=0.35, zorder=2)
    _lines(axes, means["raw"], styles, linewidth=0.7, alpha=0.45, zorder=2.5)
    _lines(axes, means["fewer"], styles, linewidth=0.9, zorder=3, dashes=DOTTED)
    _lines(axes, means["whole"], styles, linewidth=1.2, zorder=4)
    for curve in members:
        style = styles[curve.variant]
        if marked and len(places := marked.get(curve.variant, ())):
            smooth = np.full(len(curve.step), np.nan)
            for part, values in curve.lines(weight):
                smooth[part] = values
            x, y = shown.x(curve, curve.step)[places], shown.y(smooth)[places]
            axes.add_line(Line2D(x, y, linestyle="none", zorder=6, **_marker(style)))
        _ends(axes, shown, curve, style)
    axes.autoscale_view()


def _unbroken(y: np.ndarray) -> list[slice]:
    """Where `y` is finite, piece by piece: no line may join two sides of a gap."""
    finite = np.concatenate([[False], np.isfinite(y), [False]])
    cuts = np.flatnonzero(finite[1:] != finite[:-1])
    return [slice(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]


def _lines(
    axes: Axes,
    pieces: Sequence[tuple[Curve, np.ndarray, np.ndarray]],
    styles: dict[str, Style],
    *,
    dashes: tuple[float, ...] | None = None,
    **look: Any,
) -> None:
    """Draw pieces of lines in the colour and dashes of their variant."""
    single = [(curve, x[0], y[0]) for curve, x, y in pieces if len(x) == 1]
    for curve, x, y in single:  # a line of one point would not be seen
        axes.plot([x], [y], ".", color=styles[curve.variant].colour, markersize=2.5, **look)
    pieces = [piece for piece in pieces if len(piece[1]) > 1]
    if not pieces:
        return
    names = list(dict.fromkeys(curve.variant for curve, _, _ in pieces))
    thin = look["linewidth"] < 0.6
    table = pd.concat(
        pd.DataFrame({"x": x, "y": y, "variant": curve.variant, "piece": number})
        for number, (curve, x, y) in enumerate(pieces)
    )
    sns.lineplot(
        table,
        x="x",
        y="y",
        hue="variant",
        hue_order=names,
        palette={name: styles[name].colour for name in names},
        style="variant",
        style_order=names,
        dashes={name: dashes or (not thin and styles[name].dashes) or "" for name in names},
        units="piece",
        estimator=None,
        errorbar=None,
        sort=False,
        legend=False,
        ax=axes,
        **look,
    )


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


def _floor(shown: Plot) -> float:
    """Where a band ends on a logarithmic axis if its lower edge is zero or less."""
    values = _finite(shown.curves) * shown.scale
    positive = values[values > 0]
    return float(positive.min()) if len(positive) and shown.log else np.nan


def label_axes(axes: Axes, shown: Plot) -> None:
    """Scales, names and numbers of the axes."""
    values = _finite(shown.curves) * shown.scale
    if shown.log:
        axes.set_yscale("log")
        positive = values[values > 0]
        if positive.max() / positive.min() < 10**FEW_DECADES:  # powers of ten alone would be too few
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
    if shown.spec.log_x:
        axes.set_xscale("log")
    elif shown.epochs:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_xlabel("epoch" if shown.epochs else "step")
    axes.set_ylabel(metric_label(shown.study, shown.spec.metric, shown.scale), parse_math=False)
    if not len(values):
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
    handles = []
    for _, style in entries:
        line = Line2D([], [], linewidth=1.2, **_marker(style))
        if style.dashes:
            line.set_dashes(style.dashes)
        handles.append(line)
    # A label that begins with an underscore would be left out, so the texts are set afterwards.
    drawn = picture.legend(
        handles,
        [f"{n}" for n in range(len(entries))],
        loc="outside right center" if beside else "outside lower center",
        ncols=columns,
        columnspacing=1.2,
        handlelength=2.6,
        labelspacing=0.25,
    )
    for text, (label, _) in zip(drawn.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(label)


# -- one variant --------------------------------------------------------------------------------


def variant_figure(plots: Sequence[Plot], style: Style, width: float) -> Figure:
    """All that one variant logged, a panel each; dotted lines at requeues and other events."""
    down = max(1, -(-len(plots) // PANELS_IN_A_ROW))
    picture = Figure(figsize=(width, 1.35 * down + 0.3), layout="constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplots(down, PANELS_IN_A_ROW, squeeze=False).flat
    for shown, axes in zip(plots, panels, strict=False):
        (curve,) = shown.curves
        draw_curves(axes, shown, shown.curves, {curve.variant: style})
        label_axes(axes, shown)
        axes.set_title(axes.get_ylabel(), parse_math=False)  # a long name has room above, not beside
        axes.set_ylabel("")
        for event in (event for run in curve.outcome.runs for event in run.rows.events):
            if event.get("step"):
                at = shown.x(curve, np.array([float(event["step"])]))[0]
                axes.axvline(at, color="#999999", linewidth=0.5, linestyle=":")
    for axes in list(panels):
        axes.set_visible(False)
    return picture
