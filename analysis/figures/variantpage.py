"""One picture of all that one variant logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ablations.study.schema import FigureSpec
from analysis.figures.curvedata import curve_set
from analysis.figures.curveline import draw_curve
from analysis.figures.curves import label_axes
from analysis.figures.file import Drawn
from analysis.figures.palette import Style, palette
from analysis.figures.style import saved, styled
from analysis.figures.venues import VENUES
from analysis.results.outcomes import outcomes
from analysis.runs.collect import Collected
from analysis.tables import captions

if TYPE_CHECKING:
    from ablations.study.model import Study


def variant_page(collected: Collected, study: Study, variant: str, venue: str = "iclr") -> Drawn:
    """All that one variant logged: loss parts, learning rate, gradient norms, scores; a panel each."""
    style = palette(study).get(variant, Style("#000000"))
    kinds = [("train", m) for m in collected.metrics_of(study.name, "train")]
    kinds += [("eval", m) for m in collected.metrics_of(study.name, "eval")]
    size = VENUES[venue]
    found = outcomes(collected, study)[variant]
    with styled(size):
        down = max(1, -(-len(kinds) // 3))
        picture = Figure(figsize=(size.page, 1.35 * down + 0.3), layout="constrained")
        FigureCanvasAgg(picture)
        for number, axes in enumerate(picture.subplots(down, 3, squeeze=False).flat):
            if number >= len(kinds):
                axes.set_visible(False)
                continue
            spec = FigureSpec(name="page", metric=kinds[number][1], variants=(variant,))
            curves = curve_set(collected, study, spec)
            draw_curve(axes, curves.curves[0], style, curves, log=curves.explodes)
            label_axes(axes, study, spec, curves, log=curves.explodes)
            for event in collected.events:
                if (event["study"], event["variant"]) == (study.name, variant) and event.get("step"):
                    at = float(event["step"]) / (curves.steps_per_epoch or 1.0)
                    axes.axvline(at, color="#999999", linewidth=0.5, linestyle=":")
        files = saved(picture)
    return Drawn(
        name=f"{study.name}-variant-{study.variants[variant].slug}",
        study=study.name,
        files=files,
        caption=(f"Everything that {found.label} logged; dotted lines: requeues and other events.",),
        notes=captions.notes(collected, study, [found]),
        origin=captions.origin(collected, study),
        runs={variant: [run.where for run in found.runs]},
        width=size.page,
    )
