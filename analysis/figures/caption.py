"""Captions of figures, from what was drawn: statistic, band, smoothing, marks, axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.figures.curvedata import CurveSet
from analysis.results import numbers
from analysis.tables.captions import sentence

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import FigureSpec

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
    declared = study.metrics.get(metric)
    unit = "%" if scale == 100.0 else (declared.unit if declared and declared.unit != "%" else "")
    return metric_name(study, metric) + (f" ({unit})" if unit else "")


def curves(study: Study, spec: FigureSpec, drawn: CurveSet) -> tuple[str, ...]:
    """Sentences of a curve figure's caption; the manifest's own comes first."""
    name = metric_name(study, spec.metric)
    what = "Training" if drawn.kind == "train" else "Evaluation"
    title = spec.caption or spec.title or f"{what} curves: {name} of the study {study.name}."
    several = any(len(curve.seeds) > 1 for curve in drawn.curves)
    sentences = [sentence(title)]
    if several:
        band = {
            "minmax": "the range of all values of all seeds",
            "sd": "± one sample standard deviation (ddof 1) over seeds",
            "t95": "the 95 % t interval of the mean over seeds",
            "none": "",
        }[spec.band]
        partial = any((np.isfinite(c.mean) & ~c.whole).any() for c in drawn.curves)
        dotted = ", dotted where a seed has no value" if partial else ""
        sentences.append(
            f"Thick: {name}, mean over seeds in linear space{dotted}; thin: single "
            f"seeds{f'; band: {band}' if band else ''}."
        )
    log = spec.log_y or drawn.explodes
    if not spec.panel_by:
        if len(drawn.shown) > 1:
            sentences.append(
                "Names stand in the order in which the curves end; markers only tell them apart."
            )
        sentences += [f"On each other lie: {'; '.join(group)}." for group in drawn.coinciding(log)]
    if unlogged := drawn.unlogged():
        sentences.append(f"No {name} was logged for: {'; '.join(unlogged)}.")
    if any(len(seed.line.broken) for c in drawn.curves for seed in c.seeds):
        sentences.append(
            "Triangles at the upper border: steps at which a seed's value was not finite; means leave "
            "it out."
        )
    if drawn.grid.merges:
        steps = numbers.counted(round(drawn.grid.width), "step")
        sentences.append(f"A point is a bin of {steps}; thin lines reach each bin's extremes.")
    if spec.smoothing:
        sentences.append(
            f"The thick line is an exponential moving average with weight {spec.smoothing:g}; seeds "
            "and band are not smoothed."
        )
    ends = {
        seed.state
        for curve in drawn.curves
        for seed in curve.seeds
        if seed.end and seed.line is not None
    }
    if "diverged" in ends:
        sentences.append("A cross marks the last finite value of a seed that diverged.")
    if ends & {"failed", "cancelled", "interrupted"}:
        sentences.append("A bar marks where a seed stopped without finishing.")
    if any(len(c.outcome.completed) < c.outcome.planned for c in drawn.shown):
        sentences.append("k/N behind a name: k of N seeds completed.")
    if log:
        sentences.append("The vertical axis is logarithmic.")
    return tuple(sentences)
