"""Tables of numbers that others report: beside ours with a verdict, and on their own.

What third parties got when they tried stands apart from what the authors report.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.results import numbers
from analysis.results.frames import REPORTED_VERDICTS, Epoch, Results, gap, judge, results
from analysis.results.outcomes import Outcome
from analysis.runs.collect import Collected
from analysis.runs.comparable import Mark, readable
from analysis.tables import captions
from analysis.tables.latex import TEMPLATES
from analysis.tables.model import EMPTY, Cell, Column, Row, Table, score_cell, text

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import Reported, TableSpec

REPORTED = TEMPLATES.parent / "reported"


def reported_table(
    collected: Collected, study: Study, spec: TableSpec, marks: Sequence[Mark] = ()
) -> Table:
    """A row for each reported number: authors, third parties, then methods that were not run."""
    found = results(collected, study)
    metrics = spec.metrics or tuple(study.metrics)
    epoch: Epoch = "best" if spec.epoch == "best" else "last"
    entries = [r for r in study.reported if not spec.rows or r.variant in spec.rows]
    compared = [r for r in entries if r.variant is not None]
    groups = [
        ("Reported by the authors", [r for r in compared if r.by == "authors"]),
        ("Reproductions by third parties", [r for r in compared if r.by == "third party"]),
        ("Reported, not run here", [r for r in entries if r.variant is None]),
    ]
    rows: list[Row] = []
    for heading, members in groups:
        lines = [
            _row(entry, name, spec, found, epoch)
            for entry in members
            for name in entry.values
            if name in metrics
        ]
        if lines:
            rows.append(Row("", (), heading=heading, rule_before=bool(rows)))
            rows += lines
    outcomes = found.outcomes
    used = [outcomes[r.variant] for r in compared if r.variant in outcomes]
    columns = (
        Column("subject", "Setting", align="l"),
        Column("source", "Source", align="l"),
        Column("metric", "Metric", align="l"),
        Column("reported", "Reported"),
        Column("ours", "Ours"),
        Column("difference", "Δ"),
        Column("verdict", "Verdict", align="l"),
    )
    return captions.declared(
        collected,
        study,
        spec,
        marks,
        title="Reported against reproduced",
        columns=columns,
        rows=rows,
        shown=used,
        metrics=metrics,
        epochs=(epoch,),
        caption=("Reported numbers keep their printed digits.", _legend(rows, compared)),
    )


def _legend(rows: Sequence[Row], compared: Sequence[Reported]) -> str:
    """What Δ and the verdicts of these rows mean."""
    cells = [row.cells[-2:] for row in rows if row.cells]
    given = {word.text for _, word in cells}
    parts = [f"{word}: {meaning}" for word, meaning in REPORTED_VERDICTS.items() if word in given]
    if any(difference.kind == "number" for difference, _ in cells):
        parts.insert(0, "Δ: ours minus reported, from unrounded values")
    if given & REPORTED_VERDICTS.keys() - {"unit unclear"}:
        parts.append(
            "a reported number may lie half a unit of its last digit away; a spread that is not "
            "reported is taken to be ours, and seeds to be normally distributed"
        )
        if any(entry.n is None for entry in compared):
            parts.append("a reported number without n counts as a single run")
    return f"{'; '.join(parts)}." if parts else ""


def _row(entry: Reported, name: str, spec: TableSpec, found: Results, epoch: Epoch) -> Row:
    study = found.study
    metric = study.metrics[name]
    unit = f" ({metric.unit})" if metric.unit else ""
    outcome = found.outcomes.get(entry.variant) if entry.variant else None
    subject = outcome.label if outcome else str(entry.method or entry.variant)
    if entry.dataset:
        subject += f", {entry.dataset}"
    if outcome is not None and captions.leaks(study, spec.metrics, outcome):
        subject += f" {captions.LEAK}"
    known = [f"n = {entry.n}"] if entry.n else []
    if entry.tolerance is not None and outcome is not None:
        known.append(f"tolerance {entry.tolerance:g}")
    printed, sd = entry.values[name], entry.sd.get(name)
    reported = Cell("text", printed, spread=sd, note=", ".join(known) or None, metric=name)
    ours, difference, word = EMPTY, EMPTY, EMPTY
    if outcome is not None:
        result = found.get(outcome.key, name, epoch)
        ours = score_cell(result, outcome, metric)
        judged = judge(printed, result, metric, tolerance=entry.tolerance, n=entry.n, sd=sd)
        glyph = outcome.glyph()
        word = Cell("text", judged if result.values or glyph == "--" else glyph, runs=ours.runs)
        if result.values and judged != "unit unclear":
            ahead = gap(printed, result, metric)
            difference = Cell(
                "number",
                numbers.signed(ahead, max(metric.digits, numbers.decimals(printed))),
                note=ours.note,
                value=float(ahead),
                runs=result.runs,
                signed=True,
            )
    key = f"{entry.variant or entry.method}|{entry.source}|{name}"
    source = "; ".join(
        filter(None, (entry.source, entry.note, *other_than_ours(study, entry, outcome)))
    )
    cells = (text(subject), text(source), text(f"{metric.label or name}{unit}"), reported, ours)
    return Row(key, (*cells, difference, word))


def other_than_ours(study: Study, entry: Reported, outcome: Outcome | None) -> list[str]:
    """What a reported number was made with and ours was not, as far as either says."""
    if outcome is None:
        return []
    other = study.other_settings(entry) if not outcome.imported else {}
    texts = [f"{key} = {readable(a)}, here {readable(b)}" for key, (a, b) in other.items()]
    for name, theirs in entry.environment.items():
        ours = sorted({str(value) for run in outcome.completed if (value := getattr(run, name))})
        if ours and ours != [theirs]:
            texts.append(f"{name} {theirs}, here {' and '.join(ours)}")
    return texts


# -- tables that belong to no study -------------------------------------------------------------


def studies_table(collected: Collected, studies: Sequence[Study], others: Sequence[Study]) -> Table:
    """Every study of this project, and how many of its runs the paper has."""
    rows = []
    for study in (*studies, *others):
        done = "not in this paper"
        if study in studies:
            completed = sum(run.state == "completed" for run in collected.runs_of(study.name))
            done = f"{completed}/{len(study.variants) * len(study.seeds)}"
        size = f"{len(study.variants)} × {len(study.seeds)}" if study.variants else "unreadable"
        rows.append(Row(study.name, (text(study.name), text(study.title), text(size), text(done))))
    columns = (
        Column("study", "Study", align="l"),
        Column("title", "Subject", align="l"),
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
    """Numbers that others report, from paper/reported: shown as theirs, beside nothing of ours."""
    made = []
    for spec in json.loads((REPORTED / "tables.json").read_text(encoding="utf-8")):
        with (REPORTED / spec["csv"]).open(encoding="utf-8", newline="") as stream:
            lines = [
                line
                for line in csv.DictReader(stream)
                if all(line[key] == value for key, value in spec.get("where", {}).items())
            ]
        columns = tuple(
            Column(c["key"], c["label"], align=c.get("align", "c")) for c in spec["columns"]
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
