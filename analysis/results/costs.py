"""What a study cost: time on a machine, failed and repeated attempts included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from analysis.results import numbers
from analysis.results.outcomes import outcomes
from analysis.runs.averaging import Mark
from analysis.runs.collect import Collected
from analysis.tables import captions
from analysis.tables.model import Cell, Column, Row, Table, text

if TYPE_CHECKING:
    from ablations.study.model import Study


def compute_table(collected: Collected, study: Study, marks: Sequence[Mark] = ()) -> Table:
    """A row for each variant and one for the whole study."""
    runs = collected.runs_of(study.name)
    rows = []
    for outcome in outcomes(collected, study).values():
        mine = runs[(runs["variant"] == outcome.variant) & (runs["imported"] == outcome.imported)]
        name = text(outcome.label)
        rows.append(Row(outcome.variant, (name, *_cells(mine))))
    rows.append(Row("*", (text("All"), *_cells(runs)), rule_before=True))
    columns = (
        Column("variant", "Variant", align="l"),
        Column("runs", "Runs"),
        Column("time", "Time", align="r"),
        Column("lost", "Not in a result", align="r"),
        Column("per_run", "Per finished run", align="r"),
        Column("memory", "Peak memory", unit="MiB", align="r"),
        Column("speed", "Images/s", align="r"),
    )
    return Table(
        name=f"{study.name}-compute",
        study=study.name,
        title=f"Compute used by {study.title}",
        columns=columns,
        rows=tuple(rows),
        caption=(
            f"Compute used by the study {study.name} on {machines(runs)}.",
            "Time is what all attempts held a machine for; not in a result: the part of it in runs "
            "that diverged, failed, or were cut off. Images per second: mean over finished runs; peak "
            "memory: the largest of all runs.",
            *(["--: not recorded."] if any(c.text == "--" for row in rows for c in row.cells) else []),
            *captions.warnings(marks, study.name),
        ),
        origin=captions.origin(collected, study),
    )


def machines(runs: pd.DataFrame) -> str:
    """The accelerators that the runs saw, or CPUs."""
    if len(runs) and runs["imported"].all():
        return "machines that the logs do not name"
    started = runs[runs["attempts"].notna()]
    names = sorted({str(gpu) for gpu in started["gpu"] if gpu})
    if started["gpu"].isna().any() or not names:
        names.append("CPU cores")
    return " and ".join(names)


def seconds(runs: pd.DataFrame) -> pd.Series:
    """Machine seconds of each run; the training time stands in where attempts were not recorded."""
    return runs["wall_seconds"].fillna(runs["train_seconds"])


def _cells(runs: pd.DataFrame) -> tuple[Cell, ...]:
    done = runs[runs["state"] == "completed"]
    where = tuple(runs["where"])
    return (
        Cell("text", f"{len(done)}/{len(runs)}"),
        _time(seconds(runs), where),
        _time(seconds(runs[runs["state"] != "completed"]), where, nothing="0 s"),
        _time(pd.Series([seconds(done).mean()]), where),
        _number(runs["peak_memory_mib"].max()),
        _number(done["images_per_s"].mean()),
    )


def _time(values: pd.Series, runs: tuple[str, ...], nothing: str = "--") -> Cell:
    known = values.dropna()
    if known.empty:
        return Cell("text", nothing)
    total = float(known.sum())
    return Cell("text", numbers.duration(total), value=total, runs=runs)


def _number(value: float) -> Cell:
    if pd.isna(value):
        return Cell("text", "--")
    return Cell("number", numbers.fixed(float(value), 0), value=float(value))
