"""Figures of a study: curves over training, and sweeps; vector files that do not change with the clock.

Means are taken in linear space, whatever the axis. Single seeds are drawn thin behind the mean, with
every spike; a cross stands where a seed diverged, a bar where it stopped otherwise. matplotlib is used
without pyplot: no global state, no display.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis import captions, figcaption, sweepfigure
from analysis.averaging import Mark
from analysis.collect import Collected
from analysis.curvedata import CurveSet, VariantCurve, curve_set
from analysis.figurefile import Drawn
from analysis.figurestyle import ENDINGS, saved, styled
from analysis.filenames import file_name
from analysis.outcomes import outcomes
from analysis.palette import Style, palette
from analysis.tables import readable, setting
from analysis.venues import VENUES

if TYPE_CHECKING:
    from ablations.spec import FigureSpec
    from ablations.study import Study

PANELS_IN_A_ROW = 3


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
    styles = palette(study, tuple(n for n in found if n not in study.variants))
    with styled(size):
        if spec.kind == "sweep":
            picture, caption = sweepfigure.sweep(study, spec, found, names, width, styles)
        else:
            curves = curve_set(collected, study, spec)
            picture = _curves(study, spec, curves, width, styles)
            caption = figcaption.curves(study, spec, curves)
        files = saved(picture, endings)
    rows = [found[name] for name in names]
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
    entries = [(c.label, styles[c.variant]) for c in curves.curves]
    if spec.panel_by:
        entries, styles = _series(study, spec, curves, styles)
    across = min(PANELS_IN_A_ROW, len(panels)) if width > 4 else 1
    down = -(-len(panels) // across)
    longest = max((len(label) for label, _ in entries), default=1)
    columns = max(1, int(width / (0.55 + 0.062 * longest)))
    legend_rows = -(-len(entries) // columns)
    height = down * (2.1 if across == 1 else 1.7) + 0.145 * legend_rows + 0.15
    picture = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(picture)
    grid = picture.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    log = spec.log_y or curves.explodes
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_visible(False)
            continue
        title, members = panels[number]
        for curve in members:
            draw_curve(axes, curve, styles[curve.variant], curves, log=log)
        if title:
            axes.set_title(title, parse_math=False)
        label_axes(axes, study, spec, curves, log=log)
        if number % across:
            axes.set_ylabel("")
        if number + across < len(panels):
            axes.set_xlabel("")
        else:  # nothing below it shows the shared axis
            axes.tick_params(labelbottom=True)
    _legend(picture, entries, columns)
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


def draw_curve(axes: Axes, curve: VariantCurve, style: Style, curves: CurveSet, *, log: bool) -> None:
    """One variant: seeds thin, band, mean (dashed where a seed is lacking), marks where runs ended."""
    per = curves.steps_per_epoch or 1.0
    several = len(curve.seeds) > 1
    for seed in curve.seeds:
        x = np.repeat(seed.line.x / per, 2)
        y = np.stack([seed.line.low, seed.line.high], axis=1).ravel()
        dashes = style.dashes if not several else None
        width, alpha = (0.4, 0.35) if several else (1.1, 1.0)
        line = Line2D(x, _on_axis(y, log), color=style.colour, linewidth=width, alpha=alpha)
        if dashes:
            line.set_dashes(dashes)
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
    for seed in curve.seeds:
        if seed.end is not None and seed.state not in ("completed", "running", "queued", "requeued"):
            mark = "x" if seed.state == "diverged" else "|"
            at, height = seed.end
            if np.isfinite(height) and not (log and height <= 0):
                axes.plot(
                    [at / per], [height], mark, color=style.colour, markersize=4.5, mew=1.1, zorder=5
                )
    axes.autoscale_view()


def _on_axis(values: np.ndarray, log: bool) -> np.ndarray:
    return np.where(values > 0, values, np.nan) if log else values


def _floor(curves: CurveSet) -> float:
    positive = curves.finite[curves.finite > 0]
    return float(positive.min()) if len(positive) else 1e-12


def label_axes(axes: Axes, study: Study, spec: FigureSpec, curves: CurveSet, *, log: bool) -> None:
    if log and (curves.finite > 0).any():
        axes.set_yscale("log")
    if spec.log_x:
        axes.set_xscale("log")
    elif curves.steps_per_epoch:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_xlabel("epoch" if curves.steps_per_epoch else "step")
    axes.set_ylabel(figcaption.metric_label(study, spec.metric, curves.scale), parse_math=False)
    if not len(curves.finite):
        axes.text(0.5, 0.5, "no run has logged it", ha="center", transform=axes.transAxes)
    axes.margins(x=0.02)


def _legend(picture: Figure, entries: Sequence[tuple[str, Style]], columns: int) -> None:
    handles = []
    for _, style in entries:
        line = Line2D([], [], color=style.colour, linewidth=1.2)
        if style.dashes:
            line.set_dashes(style.dashes)
        handles.append(line)
    # A label that begins with an underscore would be left out, so the texts are set afterwards.
    legend = picture.legend(
        handles,
        [f"{n}" for n in range(len(entries))],
        loc="outside lower center",
        ncols=min(columns, len(entries)),
        columnspacing=1.2,
        handlelength=2.2,
        labelspacing=0.25,
    )
    for shown, (label, _) in zip(legend.get_texts(), entries, strict=True):
        shown.set_parse_math(False)
        shown.set_text(label)
