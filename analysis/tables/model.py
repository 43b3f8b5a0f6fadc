"""A table before it has a form: cells with text, rank and the runs behind them.

`tables.study` makes it, `tables.forms` turns it into LaTeX, CSV, Markdown, HTML or a terminal's
table, `as_json` is what lies beside each and what `explain` reads. Nothing is rounded after this point.

`score_cell`, `mean_cell` and `difference_cell` are the only place where a row of the results frame
becomes text. Tables and the paper's macros take their numbers from here, so that they print the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from analysis.results import numbers
from analysis.results.frames import Result
from analysis.results.outcomes import Outcome

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import MetricSpec

CellKind = Literal["text", "number", "state", "check", "empty"]


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: plain text: a name, a rounded number (ASCII minus), a state's glyph.
        spread: rounded spread, printed after a plus-minus sign; None for one seed.
        note: small text behind it, such as 2/3.
        rank: 1 best, 2 second best, 0 neither.
        value: what `text` was rounded from, in the metric's own scale.
        runs: folders below runs/ that the number was computed from, or that explain the state.
        seeds: seed to value, for numbers over seeds.
        numeric: what CSV holds beside the printed text, in the printed unit, unrounded: mean, sd, n
    """

    kind: CellKind
    text: str = ""
    spread: str | None = None
    note: str | None = None
    rank: int = 0
    value: float | None = None
    metric: str | None = None
    runs: tuple[str, ...] = ()
    seeds: tuple[tuple[int, float], ...] = ()
    numeric: Mapping[str, float] = field(default_factory=dict)
    eligible: bool = False
    signed: bool = False  # a difference

    @property
    def plain(self) -> str:
        """The cell as one line of plain text."""
        spread = f" ± {self.spread}" if self.spread is not None else ""
        note = "*" if self.note == "*" else f" ({self.note})" if self.note else ""
        return f"{self.text}{spread}{note}"

    @property
    def shown(self) -> str:
        """The text with a real minus sign where it is a number."""
        return self.text.replace("-", "−") if self.kind == "number" else self.text


EMPTY = Cell("empty")


def text(value: str) -> Cell:
    return Cell("text", value)


def check(value: bool | str | None) -> Cell:
    """A component's cell: check mark, nothing, or the word that the manifest gives."""
    if isinstance(value, str):
        return text(value)
    return Cell("check", "✓") if value else EMPTY


@dataclass(frozen=True)
class Column:
    """A column; `direction` up or down puts an arrow behind the label.

    `of` is the metric of a column of differences, which its head does not repeat.
    """

    key: str
    label: str
    unit: str = ""
    direction: Literal["up", "down"] | None = None
    group: str = ""
    align: Literal["l", "c", "r"] = "c"
    of: str = ""

    @property
    def head(self) -> str:
        unit = f" ({self.unit})" if self.unit else ""
        arrow = {"up": " ↑", "down": " ↓"}.get(self.direction or "", "")
        return f"{self.label}{unit}{arrow}"

    @property
    def is_metric(self) -> bool:
        return bool(self.direction or self.group or self.of)


@dataclass(frozen=True)
class Row:
    """A row of cells, or (no cells) a heading over the rows below it."""

    key: str
    cells: tuple[Cell, ...]
    heading: str = ""
    rule_before: bool = False
    shaded: bool = False


@dataclass(frozen=True)
class Table:
    """A table of one study.

    Attributes:
        name: file name without ending, `STUDY-TABLE`.
        caption: sentences; all but the first come from what was computed.
        notes: sentences in small print below.
        shading: what a shaded row is; printed by the forms that shade.
        origin: what the table was made from, for its files' headers; no date, no path of a machine.
    """

    name: str
    study: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    origin: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    shading: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            assert not row.cells or len(row.cells) == len(self.columns), (self.name, row.key)

    @property
    def shown_notes(self) -> tuple[str, ...]:
        """The notes of a form that shades rows."""
        shaded = any(row.shaded for row in self.rows)
        return (self.shading, *self.notes) if shaded and self.shading else self.notes

    def cell(self, row: str, column: str) -> Cell:
        keys = [c.key for c in self.columns]
        cells = {r.key: r.cells for r in self.rows if r.cells}
        return cells[row][keys.index(column)]


def groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The heads over groups of columns, and how many columns each spans; empty where none has one."""
    spans = [(g, len(list(members))) for g, members in groupby(columns, key=lambda c: c.group)]
    return spans if any(group for group, _ in spans) else []


def file_name(study: Study, name: str) -> str:
    """What the file of a table or figure is called: STUDY-NAME, or NAME where it says the study."""
    return name if name.startswith(study.name) else f"{study.name}-{name}"


def ranked(rows: Sequence[Row], columns: Sequence[Column]) -> tuple[Row, ...]:
    """Mark the best and the second best of each column that has a direction.

    Decided on what is printed, so equal texts are equally good (all best ones are marked, and the
    second best is the next different text), among eligible cells only. A column in which all eligible
    cells are equal, or in which there is one, has no best.
    """
    marks: dict[tuple[int, int], int] = {}
    for index, column in enumerate(columns):
        if column.direction is None:
            continue
        cells = {
            number: Decimal(row.cells[index].text)
            for number, row in enumerate(rows)
            if row.cells and row.cells[index].kind == "number" and row.cells[index].eligible
        }
        order = sorted(set(cells.values()), reverse=column.direction == "up")
        if len(order) < 2:
            continue
        for number, value in cells.items():
            if value in order[:2]:
                marks[number, index] = order.index(value) + 1
    return tuple(
        replace(
            row,
            cells=tuple(
                replace(cell, rank=marks.get((number, index), 0))
                for index, cell in enumerate(row.cells)
            ),
        )
        for number, row in enumerate(rows)
    )


def as_json(table: Table) -> dict[str, Any]:
    """The table with the runs behind each cell, as plain data."""
    return {
        "table": table.name,
        "study": table.study,
        "title": table.title,
        "caption": list(table.caption),
        "notes": list(table.shown_notes),
        "marks": list(table.marks),
        "origin": list(table.origin),
        "columns": [
            {"key": c.key, "head": c.head, "group": c.group, "direction": c.direction}
            for c in table.columns
        ],
        "rows": [
            {
                "key": row.key,
                "heading": row.heading,
                "shaded": row.shaded,
                "cells": {
                    column.key: {
                        "kind": cell.kind,
                        "text": cell.plain,
                        "value": cell.value,
                        "rank": cell.rank,
                        "metric": cell.metric,
                        "seeds": {str(seed): value for seed, value in cell.seeds},
                        "runs": list(cell.runs),
                    }
                    for column, cell in zip(table.columns, row.cells, strict=True)
                }
                if row.cells
                else {},
            }
            for row in table.rows
        ],
    }


# -- results as cells ---------------------------------------------------------------------------


def score_cell(
    result: Result, outcome: Outcome, metric: MetricSpec, *, count_imported: bool = False
) -> Cell:
    """Mean and spread of the finished seeds, with k/N where some are not; else their state.

    Args:
        count_imported: imported rows may be best, too (a table of nothing else).
    """
    if not result.values:
        if outcome.completed:
            return Cell("state", "--", note="not logged", metric=result.metric, runs=result.runs)
        return Cell("state", outcome.glyph(), metric=result.metric, runs=result.runs)
    return Cell(
        "number",
        numbers.printed(result.mean, metric),
        spread=None if math.isnan(result.sd) else numbers.printed(result.sd, metric),
        note=None if result.whole else f"{result.n}/{result.planned}",
        value=result.mean,
        metric=result.metric,
        runs=result.runs,
        seeds=tuple(result.values.items()),
        numeric={
            **_in_unit(metric, mean=result.mean, sd=result.sd),
            **{"n": result.n, "planned": result.planned},
        },
        eligible=result.whole and (count_imported or not result.imported),
    )


def mean_cell(result: Result, outcome: Outcome, metric: MetricSpec) -> Cell:
    """`score_cell` without the spread; the count of seeds stays."""
    return replace(score_cell(result, outcome, metric), spread=None)


def difference_cell(result: Result, metric: MetricSpec) -> Cell:
    """Mean difference to the baseline and its interval's half width.

    A star marks a significant one. Where seeds are missing, their count stands in its place.
    """
    if math.isnan(result.difference):
        return EMPTY
    half = None
    if not math.isnan(result.difference_low):
        half = numbers.printed((result.difference_high - result.difference_low) / 2, metric)
    note = "*" if result.starred else None
    if result.difference_n < result.difference_planned:
        note = f"{result.difference_n}/{result.difference_planned}"
    return Cell(
        "number",
        numbers.printed_signed(result.difference, metric),
        spread=half,
        note=note,
        signed=True,
        value=result.difference,
        metric=result.metric,
        runs=(*result.runs, *result.baseline_runs),
        seeds=tuple(result.differences.items()),
        numeric={
            **_in_unit(
                metric,
                mean=result.difference,
                low=result.difference_low,
                high=result.difference_high,
            ),
            **{"n": result.difference_n, "planned": result.difference_planned, "p": result.adjusted_p},
        },
    )


def _in_unit(metric: MetricSpec, **values: float) -> dict[str, float]:
    """Values in the unit that the metric is printed in; NaN where there is none."""
    return {n: v if math.isnan(v) else float(numbers.in_unit(v, metric)) for n, v in values.items()}
