"""One table in five forms: LaTeX, CSV, Markdown, HTML and a terminal's. Nothing is computed here."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import jinja2
from rich.markup import escape as rich_escape
from rich.table import Table as RichTable

from analysis.tables.latex import TEMPLATES, to_latex
from analysis.tables.model import Cell, Table, as_json, groups
from sdtps.system.files import write_bytes

# -- text forms ---------------------------------------------------------------------------------


def to_csv(table: Table) -> str:
    """One line a row: what is printed, and behind it the unrounded numbers in columns of their own.

    The heading over a group of rows is in the first column; a number that does not exist is empty.
    """
    rows = [row for row in table.rows if row.cells]
    columns: list[list[str]] = []
    if len(rows) < len(table.rows):
        column, heading = ["group"], ""
        for row in table.rows:
            heading = row.heading or heading
            column += [heading] if row.cells else []
        columns.append(column)
    for index, shown in enumerate(table.columns):
        cells = [row.cells[index] for row in rows]
        unit = f" ({shown.unit})" if shown.unit else ""
        label = f"{shown.label}{unit} {shown.of}".rstrip()
        head = f"{shown.group} / {label}" if shown.group else label
        columns.append([head, *(cell.plain for cell in cells)])
        for name in dict.fromkeys(name for cell in cells for name in cell.numeric):
            numbers = (cell.numeric.get(name, math.nan) for cell in cells)
            texts = ("" if math.isnan(number) else f"{number:.10g}" for number in numbers)
            columns.append([f"{head} / {name}", *texts])
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(zip(*columns, strict=True))
    return stream.getvalue()


def to_markdown(table: Table) -> str:
    """GitHub's table syntax, with the caption above and the notes below."""
    rule = {"l": ":--", "c": ":-:", "r": "--:"}
    heads = [_md(" / ".join(filter(None, (c.group, c.head)))) for c in table.columns]
    lines = [
        f"**{_md(table.caption[0])}** {_md(' '.join(table.caption[1:]))}",
        "",
        f"| {' | '.join(heads)} |",
        f"| {' | '.join(rule[c.align] for c in table.columns)} |",
    ]
    for row in table.rows:
        if row.cells:
            lines.append(f"| {' | '.join(_md_cell(cell) for cell in row.cells)} |")
        else:
            lines.append(f"| *{_md(row.heading)}* {'| ' * len(table.columns)}".rstrip())
    lines += ["", _md(" ".join(table.notes))]
    return "\n".join(lines).rstrip() + "\n"


def _md(text: str) -> str:
    for char in "\\`*_{}[]<>|#~":
        text = text.replace(char, f"\\{char}")
    return text.replace("\n", " ")


def _md_cell(cell: Cell) -> str:
    if cell.kind != "number":
        return _md(cell.plain)
    text = {1: f"**{cell.shown}**", 2: f"<u>{cell.shown}</u>"}.get(cell.rank, cell.shown)
    spread = f" ± {cell.spread}" if cell.spread is not None else ""
    note = f" ({_md(cell.note)})" if cell.note else ""
    return f"{text}{spread}{note}"


_HTML = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def to_html(table: Table) -> str:
    """A <table> fragment; each number carries the runs behind it in data-runs, as JSON."""
    return _HTML.get_template("table.html.j2").render(table=table, groups=groups(table.columns))


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
