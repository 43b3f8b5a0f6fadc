"""Figures of a study: curves over training, and sweeps; vector files that do not change with the clock.

Means are taken in linear space, whatever the axis (`curvedata`); a curve's lines and marks are drawn by
`curveline`, the legend by `curvelegend`. matplotlib is used without pyplot: no global state, no
display.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from analysis.figures import caption as figcaption
from analysis.figures import curvelegend
from analysis.figures import sweep as sweepfigure
from analysis.figures.curvedata import CurveSet, VariantCurve, curve_set
from analysis.figures.curveline import draw_curve, places
from analysis.figures.file import Drawn
from analysis.figures.palette import Style, palette
from analysis.figures.style import ENDINGS, saved, styled
from analysis.figures.venues import VENUES
from analysis.results.outcomes import outcomes
from analysis.results.settings import on_axis, readable, setting
from analysis.runs.averaging import Mark
from analysis.runs.collect import Collected
from analysis.tables import captions
from analysis.tables.filenames import file_name

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import FigureSpec

PANELS_IN_A_ROW = 3
FEW_DECADES = 2.5


def figures(
    collected: Collected, study: Study, marks: Sequence[Mark] = (), venue: str = "iclr"
) -> list[Drawn]:
    """Every figure that the manifest declares."""
    return [draw(collected, study, spec, marks, venue) for spec in study.figures]


def draw(
    collected: Collected,
    study: Study,
    spec: FigureSpec,
    marks: Sequence[Mark] = (),
    venue: str = "iclr",
    endings: Sequence[str] = ENDINGS,
) -> Drawn:
    """One figure, in PDF, SVG and PNG unless `endings` says less."""
    size = VENUES[venue]
    width = size.width(spec.width)
    found = outcomes(collected, study)
    names = tuple(spec.variants or found)
    drawn = on_axis(study, names, str(spec.axis)) if spec.kind == "sweep" else names
    styles = palette(study, tuple(n for n in found if n not in study.variants))
    with styled(size):
        if spec.kind == "sweep":
            picture, caption = sweepfigure.sweep(study, spec, found, names, width, styles)
        else:
            curves = curve_set(collected, study, spec)
            picture = _curves(study, spec, curves, width, styles)
            caption = figcaption.curves(study, spec, curves)
        files = saved(picture, endings)
    rows = [found[name] for name in drawn]
    return Drawn(
        name=file_name(study, spec.name),
        study=study.name,
        files=files,
        caption=(*caption, captions.data(collected, study), *captions.warnings(marks, study.name)),
        notes=captions.notes(collected, study, rows),
        origin=captions.origin(collected, study),
        runs={row.variant: [run.where for run in row.runs] for row in rows},
        width=width,
    )


# -- drawing ------------------------------------------------------------------------------------


def _curves(
    study: Study, spec: FigureSpec, curves: CurveSet, width: float, styles: dict[str, Style]
) -> Figure:
    panels = _panels(study, spec, curves)
    entries = [(c.label, styles[c.variant]) for c in curves.by_end()]
    if spec.panel_by:
        entries, styles = _series(study, spec, curves, styles)
    across = min(PANELS_IN_A_ROW, len(panels)) if width > 4 else 1
    down = -(-len(panels) // across)
    legend = curvelegend.layout(entries, width, panels=len(panels))
    height = down * (2.1 if across == 1 else 1.7) + 0.15
    height = max(height, legend.height) if legend.beside else height + legend.height
    picture = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(picture)
    grid = picture.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    log = spec.log_y or curves.explodes
    marked = places(curves) if len(entries) > 1 else {}
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_visible(False)
            continue
        title, members = panels[number]
        for curve in members:
            draw_curve(
                axes, curve, styles[curve.variant], curves, log=log, marked=marked.get(curve.variant)
            )
        if title:
            axes.set_title(title, parse_math=False)
        label_axes(axes, study, spec, curves, log=log)
        if number % across:
            axes.set_ylabel("")
        if number + across < len(panels):
            axes.set_xlabel("")
        else:  # nothing below it shows the shared axis
            axes.tick_params(labelbottom=True)
    curvelegend.draw(picture, entries, legend)
    return picture


def _series(
    study: Study, spec: FigureSpec, curves: CurveSet, styles: dict[str, Style]
) -> tuple[list[tuple[str, Style]], dict[str, Style]]:
    """Legend entries and styles where variants that differ in the panelled key alone look alike: as
    the first of them does elsewhere.

    An entry's label is what the members' labels share, part by part between commas: `C = 10` for
    `C = 10, τ = 1` and `C = 10, τ = 5`. Runs are counted together, as in `VariantCurve.label`.
    """
    groups: dict[str, list[VariantCurve]] = {}
    for curve in curves.curves:
        variant = study.variants.get(curve.variant)
        differences = {} if variant is None else dict(variant.overrides)
        differences.pop(spec.panel_by or "", None)
        alone = curve.variant in spec.in_every_panel or variant is None
        groups.setdefault(curve.variant if alone else repr(sorted(differences.items())), []).append(
            curve
        )
    entries = []
    for members in groups.values():
        style = styles[members[0].variant]
        done = sum(len(c.outcome.completed) for c in members)
        planned = sum(c.outcome.planned for c in members)
        label = _shared([c.outcome.label for c in members])
        entries.append((label + ("" if done == planned else f" ({done}/{planned})"), style))
        styles = {**styles, **{c.variant: style for c in members}}
    return entries, styles


def _shared(labels: Sequence[str]) -> str:
    """The parts between commas that all labels have, or all labels where they share none."""
    parts = [label.split(", ") for label in dict.fromkeys(labels)]
    common = [part for part in parts[0] if all(part in other for other in parts)]
    return ", ".join(common) or " / ".join(dict.fromkeys(labels))


def _panels(study: Study, spec: FigureSpec, curves: CurveSet) -> list[tuple[str, list[VariantCurve]]]:
    if not spec.panel_by:
        return [("", list(curves.curves))]
    groups: dict[str, list[VariantCurve]] = {}
    for curve in curves.curves:
        if curve.variant not in spec.in_every_panel:
            value = readable(setting(study, curve.variant, spec.panel_by))
            groups.setdefault(value, []).append(curve)
    everywhere = [c for c in curves.curves if c.variant in spec.in_every_panel]
    key = spec.panel_by.rpartition(".")[2].replace("_", " ")
    return [(f"{key} {value}", [*everywhere, *members]) for value, members in groups.items()]


def label_axes(axes: Axes, study: Study, spec: FigureSpec, curves: CurveSet, *, log: bool) -> None:
    if log and (curves.finite > 0).any():
        axes.set_yscale("log")
        _label_few_decades(axes, curves)
    if spec.log_x:
        axes.set_xscale("log")
    elif curves.steps_per_epoch:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_xlabel("epoch" if curves.steps_per_epoch else "step")
    axes.set_ylabel(figcaption.metric_label(study, spec.metric, curves.scale), parse_math=False)
    if not len(curves.finite):
        axes.text(0.5, 0.5, "no run has logged it", ha="center", transform=axes.transAxes)
    axes.margins(x=0.02)


def _label_few_decades(axes: Axes, curves: CurveSet) -> None:
    """Numbers at 1, 2 and 5 where powers of ten alone would leave one or two to read by."""
    positive = curves.finite[curves.finite > 0]
    if positive.max() / positive.min() < 10**FEW_DECADES:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
