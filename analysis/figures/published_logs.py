"""Every published log's best mAP as a dot, by data set, recipe and modules."""

from __future__ import annotations

from functools import cache

from matplotlib.figure import Figure

from analysis.claims.checks.record import fits, logs
from analysis.figures.figure import Drawn
from analysis.figures.style import saved, styled
from analysis.venues import VENUES

NAME = "published-logs"
# What a log trained -> colour, marker and label; never colour alone. The first that fits counts.
KINDS = {
    "baseline": ({"modules": "baseline"}, "#555555", "o"),
    "SDTPS that learned": ({"arithmetic": "(v4|soft).*"}, "#0072B2", "^"),
    "SDTPS whose projection never learned": ({"arithmetic": "in place.*"}, "#D55E00", "v"),
    "other modules alone": ({}, "#999999", "x"),
}
ROW = 0.24  # inches


@cache  # no run changes it
def record_figure(venue: str = "article") -> Drawn:
    """The dots of all logs that were evaluated; rows are groups that share data set and recipe."""
    size = VENUES[venue]
    scored = [row for row in logs() if row["mAP"]]
    groups = sorted({(row["dataset"], row["recipe"]) for row in scored}, reverse=True)
    with styled(size):
        picture = Figure(figsize=(size.page, ROW * len(groups) + 1.1), layout="constrained")
        axes = picture.subplots()
        left = scored
        for label, (patterns, color, marker) in KINDS.items():
            mine = [row for row in left if fits(row, patterns)]
            left = [row for row in left if row not in mine]
            places = [groups.index((row["dataset"], row["recipe"])) for row in mine]
            axes.scatter(
                [float(r["mAP"]) for r in mine], places, s=14, c=color, marker=marker, label=label
            )
        axes.set_yticks(range(len(groups)), [f"{d}, {r.replace('_', ' ')}" for d, r in groups])
        axes.set_xlabel("best mAP over the epochs, on the test set (%)")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
        files = saved(picture)
    return Drawn(
        name=NAME,
        study="",
        files=files,
        caption=(
            f"Best mAP of the {len(scored)} published logs that reached an evaluation, one mark and "
            "one seed each; equal scores overlap. A row is a data set and a recipe; one rate: "
            "the encoder learns at the new layers' rate. The epoch was chosen on the test set.",
        ),
        notes=(),
        origin=("numbers of others, from paper/reported/demo2_runs.csv; do not edit",),
        runs={},
        width=size.page,
    )
