"""Captions of curve figures, from what was drawn: statistic, band, smoothing, marks, axes."""

from __future__ import annotations

import numpy as np

from analysis.figures.curves import Plot, metric_name
from analysis.tables.captions import sentence
from sdtps.errors import counted

BANDS = {
    "minmax": "the range of all values of all seeds",
    "sd": "± one sample standard deviation (ddof 1) over seeds",
    "t95": "the 95 % t interval of the mean over seeds",
    "none": "",
}


def curve_caption(shown: Plot) -> tuple[str, ...]:
    """Sentences of a curve figure's caption; the manifest's own comes first."""
    study, spec, found = shown.study, shown.spec, shown.curves
    name = metric_name(study, spec.metric)
    train = any(c.kind == "train" for c in found)
    what = "Training" if train else "Evaluation"
    title = spec.caption or spec.title or f"{what} curves: {name} of the study {study.name}."
    said = [sentence(title)]
    if any(len(curve.seeds) > 1 for curve in found):
        said += _seeds(shown, name)
    if not spec.panel_by:
        if len(shown.shown) > 1:
            said.append(
                "The legend lists the curves from the highest last value to the lowest; markers only "
                "tell them apart."
            )
        said += [f"These curves overlap: {'; '.join(group)}." for group in shown.coinciding()]
    if unlogged := shown.unlogged():
        said.append(f"No {name} was logged for: {'; '.join(unlogged)}.")
    if any(len(seed.broken) for curve in found for seed in curve.seeds):
        said.append(
            "Triangles at the upper border: steps at which a seed's value was not finite; the mean has "
            "a gap where a seed has no finite value."
        )
    said += _points(shown)
    ends = {seed.end for curve in found for seed in curve.seeds if seed.last}
    if "diverged" in ends:
        said.append("A cross marks the last finite value of a seed that diverged.")
    if "stopped" in ends:
        said.append("A bar marks where a seed stopped without finishing.")
    if "shorter" in ends:
        said.append("A bar marks the end of a seed that is shorter than the others.")
    if any(len(c.outcome.completed) < c.planned for c in shown.shown):
        said.append("k/N behind a name: k of N seeds completed.")
    return (*said, *_axes(shown))


def _seeds(shown: Plot, name: str) -> list[str]:
    """What thick, thin and dotted lines are."""
    band = BANDS[shown.spec.band]
    fewer = any((np.isfinite(c.mean) & (c.n < c.planned)).any() for c in shown.curves)
    said = [
        f"Thick: {name}, mean over seeds in linear space; thin: single seeds"
        f"{f'; band: {band}' if band else ''}."
    ]
    if fewer:
        said.append(
            "Dotted: mean over the seeds that are left; where a seed ends, the line of all ends and "
            "that of the others begins."
        )
    if any(c.interpolated for c in shown.curves):
        said.append(
            "Seeds that log at different steps are interpolated linearly between their own values."
        )
    return said


def _points(shown: Plot) -> list[str]:
    """How steps became points of the thick line."""
    said = []
    if widths := {round(c.merged) for c in shown.curves if c.merged}:
        few, many = min(widths), max(widths)
        steps = counted(few, "step") if few == many else f"{few} to {many} steps"
        said.append(f"A point of a mean is a window of {steps}; single seeds keep their extremes.")
    if weight := shown.spec.smoothing:
        said.append(
            f"The thick line is an exponential moving average of the mean's points with weight "
            f"{weight:g}, begun anew after a gap; the faint line behind it is the mean itself. Seeds "
            "and band are not smoothed."
        )
    return said


def _axes(shown: Plot) -> list[str]:
    said = ["The vertical axis is logarithmic."] if shown.log else []
    if below := shown.below_axis():
        listed = "; ".join(f"{label} ({count})" for label, count in below.items())
        said.append(
            "Zero and negative values have no place on it; triangles at the lower border mark their "
            f"steps: {listed}."
        )
    if shown.left_of_axis():
        said.append("The horizontal axis is logarithmic and leaves out what was logged at step 0.")
    return said
