"""One table in five forms: LaTeX, CSV, Markdown, HTML and a terminal's. Nothing is computed here."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from rich.markup import escape as rich_escape
from rich.table import Table as RichTable

from analysis.tables.latex import to_latex
from analysis.tables.model import Cell, Column, Table, as_json
from sdtps.system.files import write_bytes

# -- text forms ---------------------------------------------------------------------------------


def to_csv(table: Table) -> str:
    """One line a row: what is printed, and behind it the unrounded numbers in columns of their own.

    The heading over a group of rows is in the first column; a number that does not exist is empty.
    """
    grouped = any(row.heading for row in table.rows)
    rows = [row.cells for row in table.rows if row.cells]
    numeric = [
        list(dict.fromkeys(name for cells in rows for name, _ in cells[index].numeric))
        for index in range(len(table.columns))
    ]
    heads = ["group"] if grouped else []
    for column, names in zip(table.columns, numeric, strict=True):
        label = f"{column.label} ({column.unit})" if column.unit else column.label
        head = " / ".join(filter(None, (column.group, f"{label} {column.of}".rstrip())))
        heads += [head, *(f"{head} / {name}" for name in names)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(heads)
    heading = ""
    for row in table.rows:
        heading = row.heading or heading
        if row.cells:
            line = [heading] if grouped else []
            for cell, names in zip(row.cells, numeric, strict=True):
                values = dict(cell.numeric)
                line += [cell.plain, *(_number(values.get(name)) for name in names)]
            writer.writerow(line)
    return stream.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.10g}"


def to_markdown(table: Table) -> str:
    """GitHub's table syntax, with the caption above and the notes below."""
    rule = {"l": ":--", "c": ":-:", "r": "--:"}
    heads = [_md(" / ".join(filter(None, (c.group, c.head)))) for c in table.columns]
    lines = [
        f"**{_md(table.caption[0] if table.caption else table.title)}** "
        + " ".join(_md(sentence) for sentence in table.caption[1:]),
        "",
        f"| {' | '.join(heads)} |",
        f"| {' | '.join(rule[c.align] for c in table.columns)} |",
    ]
    for row in table.rows:
        if row.cells:
            lines.append(f"| {' | '.join(_md_cell(cell) for cell in row.cells)} |")
        else:
            lines.append(f"| *{_md(row.heading)}* {'| ' * len(table.columns)}".rstrip())
    if table.notes:
        lines += ["", " ".join(_md(sentence) for sentence in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def _md(text: str) -> str:
    for char in "\\`*_{}[]<>|#~":
        text = text.replace(char, f"\\{char}")
    return text.replace("\n", " ")


def _md_cell(cell: Cell) -> str:
    if cell.kind != "number":
        return _md(cell.plain)
    text = _md(_minus(cell.text))
    text = {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(cell.rank, text)
    spread = f" ± {cell.spread}" if cell.spread is not None else ""
    note = f" ({_md(cell.note)})" if cell.note else ""
    return f"{text}{spread}{note}"


def _minus(text: str) -> str:
    return text.replace("-", "−") if text[:1] == "-" and text != "--" else text


# -- HTML ---------------------------------------------------------------------------------------


def to_html(table: Table) -> str:
    """A <table> fragment; each number carries the runs behind it in data-runs, as JSON."""
    rows = []
    if any(c.group for c in table.columns):
        cells = "".join(
            f'<th colspan="{len(list(members))}">{html.escape(group)}</th>'
            for group, members in groupby(table.columns, key=lambda c: c.group)
        )
        rows.append(f"<tr>{cells}</tr>")
    heads = "".join(
        f'<th scope="col" class="{c.align}">{html.escape(c.head)}</th>' for c in table.columns
    )
    rows.append(f"<tr>{heads}</tr>")
    body = []
    for row in table.rows:
        if row.cells:
            shaded = ' class="baseline"' if row.shaded else ""
            cells = "".join(
                _html_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)
            )
            body.append(f'<tr{shaded} data-row="{html.escape(row.key)}">{cells}</tr>')
        else:
            width = len(table.columns)
            body.append(
                f'<tr class="heading"><th colspan="{width}">{html.escape(row.heading)}</th></tr>'
            )
    caption = html.escape(" ".join(table.caption))
    notes = html.escape(" ".join(table.shown_notes))
    lines = [
        f'<table id="{html.escape(table.name)}" class="results">',
        f"<caption>{caption}</caption>",
        "<thead>",
        *rows,
        "</thead>",
        "<tbody>",
        *body,
        "</tbody>",
        "</table>",
    ]
    return "\n".join([*lines, *([f'<p class="notes">{notes}</p>'] if notes else [])]) + "\n"


def _html_cell(cell: Cell, column: Column) -> str:
    text = html.escape(_minus(cell.text) if cell.kind == "number" else cell.text)
    text = {1: f"<b>{text}</b>", 2: f"<u>{text}</u>"}.get(cell.rank, text)
    if cell.spread is not None:
        text += f' <span class="spread">± {html.escape(cell.spread)}</span>'
    if cell.note:
        text += f' <span class="note">({html.escape(cell.note)})</span>'
    attributes = f' class="{cell.kind} {column.align}"'
    if cell.runs:
        attributes += f' data-runs="{html.escape(json.dumps(list(cell.runs)))}"'
    if cell.value is not None:
        attributes += f' data-value="{cell.value!r}"'
    if cell.metric and f"/{cell.metric}" not in column.key:  # of a condition
        attributes += f' data-metric="{html.escape(cell.metric)}"'
    return f"<td{attributes}>{text}</td>"


# -- terminal -----------------------------------------------------------------------------------


def to_terminal(table: Table) -> RichTable:
    """A table for rich's console."""
    justify = {"l": "left", "c": "center", "r": "right"}
    shown = RichTable(
        title=rich_escape(table.title),
        # The title says what the caption's first sentence does.
        caption=rich_escape(" ".join((*table.caption[1:], *table.shown_notes))) or None,
    )
    for column in table.columns:
        head = "\n".join(filter(None, (column.group, column.head)))
        shown.add_column(rich_escape(head), justify=justify[column.align])  # type: ignore[arg-type]
    for row in table.rows:
        if row.cells:
            style = "on grey15" if row.shaded else None
            shown.add_row(*(_rich_cell(cell) for cell in row.cells), style=style)
        else:
            shown.add_section()
            shown.add_row(f"[italic]{rich_escape(row.heading)}[/]")
    return shown


def _rich_cell(cell: Cell) -> str:
    text = rich_escape(cell.plain)
    if cell.kind == "state":
        return f"[dim]{text}[/]" if cell.text in ("--", "queued") else f"[red]{text}[/]"
    return {1: f"[bold]{text}[/]", 2: f"[underline]{text}[/]"}.get(cell.rank, text)


FORMS: dict[str, Callable[[Table], str]] = {
    "tex": to_latex,
    "csv": to_csv,
    "md": to_markdown,
    "html": to_html,
    "json": lambda table: (
        json.dumps(as_json(table), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    ),
}


def write(table: Table, folder: Path, venue: str = "any") -> list[Path]:
    """All forms of a table below `folder`; files whose bytes would not change are left alone.

    Args:
        venue: the LaTeX form fits its page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for ending, form in FORMS.items():
        path = folder / f"{table.name}.{ending}"
        content = to_latex(table, venue) if ending == "tex" else form(table)
        write_if_changed(path, content.encode())
        paths.append(path)
    return paths


def write_if_changed(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        write_bytes(path, content)
