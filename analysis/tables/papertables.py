"""Tables of the paper that belong to no study: all studies, and numbers that others report."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.runs.collect import Collected
from analysis.tables.latextable import TEMPLATES
from analysis.tables.model import Column, Row, Table, text

if TYPE_CHECKING:
    from ablations.study.model import Study

REPORTED = TEMPLATES.parent / "reported"


def studies_table(collected: Collected, studies: Sequence[Study], others: Sequence[Study]) -> Table:
    """Every study of this project, and how many of its runs the paper has."""
    rows = []
    for study in (*studies, *others):
        here = study in studies
        runs = collected.runs_of(study.name) if here else None
        done = int((runs["state"] == "completed").sum()) if runs is not None else 0
        rows.append(
            Row(
                study.name,
                (
                    text(study.name),
                    text(study.title),
                    text(f"{len(study.variants)} × {len(study.seeds)}"),
                    text(
                        f"{done}/{len(study.variants) * len(study.seeds)}"
                        if here
                        else "not in this paper"
                    ),
                ),
            )
        )
    columns = (
        Column("study", "Study", align="l"),
        Column("title", "What it asks", align="l", width=0.42),
        Column("size", "Variants × seeds"),
        Column("runs", "Completed"),
    )
    return Table(
        name="studies",
        study="",
        title="Studies",
        columns=columns,
        rows=tuple(rows),
        caption=(
            "The studies of this project and the runs behind this paper. Studies that are not "
            "in this paper have no results here, and none are assumed.",
        ),
        origin=("made by sdtps paper; do not edit",),
    )


def reported_tables() -> list[Table]:
    """Numbers that others report, from paper/reported: shown as theirs, next to nothing of ours."""
    made = []
    for spec in json.loads((REPORTED / "tables.json").read_text(encoding="utf-8")):
        with (REPORTED / spec["csv"]).open(encoding="utf-8", newline="") as stream:
            lines = [
                line
                for line in csv.DictReader(stream)
                if all(line[key] == value for key, value in spec.get("where", {}).items())
            ]
        columns = tuple(
            Column(c["key"], c["label"], align=c.get("align", "c"), width=c.get("width"))
            for c in spec["columns"]
        )
        rows = tuple(
            Row(str(number), tuple(text(_in_words(line[c.key]) or "--") for c in columns))
            for number, line in enumerate(lines)
        )
        made.append(
            Table(
                name=spec["name"],
                study="",
                title=spec["caption"],
                columns=columns,
                rows=rows,
                caption=(spec["caption"],),
                origin=(f"numbers of others, from paper/reported/{spec['csv']}; do not edit",),
            )
        )
    return made


def _in_words(value: str) -> str:
    """A report of a NaN is a report, and must not look like a fault of this paper."""
    return re.sub(r"\bNaN\b", "not a number", value)
