"""A table and its cells as LaTeX, with booktabs rules. Nothing is computed here."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

from analysis.tables import latex
from analysis.tables.latex import Tex
from analysis.tables.model import Cell, Column, Row, Table

TEMPLATES = Path(__file__).resolve().parents[2] / "paper" / "templates"
# A float cannot break across pages; longer tables become a longtable.
ROWS_ON_A_PAGE = 42


def to_latex(table: Table) -> str:
    """A whole table environment with its tabular, booktabs rules and caption."""
    long = len(table.rows) > ROWS_ON_A_PAGE
    template = latex.environment(TEMPLATES).get_template("table.tex.j2")
    return template.render(
        origin=[Tex(line) for line in table.origin],
        caption=Tex(" ".join(latex.escape(s) for s in table.caption)),
        label=Tex(f"tab:{table.name}"),
        columns=Tex("".join(_column_type(c) for c in table.columns)),
        heads=[Tex(line) for line in _latex_heads(table)],
        body=[Tex(line) for row in table.rows for line in _latex_row(row, table)],
        notes=Tex(" ".join(latex.escape(s) for s in table.shown_notes)),
        long=long,
    )


def _column_type(column: Column) -> str:
    if column.width is None:
        return column.align
    return rf">{{\raggedright\arraybackslash}}p{{{column.width:g}\linewidth}}"


def _latex_heads(table: Table) -> list[str]:
    lines = []
    if any(c.group for c in table.columns):
        cells, rules, start = [], [], 1
        for group, members in groupby(table.columns, key=lambda c: c.group):
            width = len(list(members))
            if group:
                cells.append(rf"\multicolumn{{{width}}}{{c}}{{{latex.escape(group)}}}")
                rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
            else:
                cells += [""] * width
            start += width
        lines += [" & ".join(cells) + r" \\", "".join(rules)]
    lines.append(" & ".join(_latex_head(c) for c in table.columns) + r" \\")
    return lines


def _latex_head(column: Column) -> str:
    label = column.tex or latex.escape(column.label)
    unit = rf" ({latex.escape(column.unit)})" if column.unit else ""
    arrow = {"up": r" $\uparrow$", "down": r" $\downarrow$"}.get(column.direction or "", "")
    return f"{label}{unit}{arrow}"


def _latex_row(row: Row, table: Table) -> list[str]:
    lines = [r"\midrule"] if row.rule_before else []
    if not row.cells:
        text = rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\textit{{{latex.escape(row.heading)}}}}}"
        return [*lines, rf"{text} \\"]
    shade = r"\rowcolor[gray]{0.93} " if row.shaded else ""
    return [*lines, shade + " & ".join(latex_cell(cell) for cell in row.cells) + r" \\"]


def latex_cell(cell: Cell) -> Tex:
    """A cell's LaTeX; also what a number's macro expands to."""
    note = rf" {{\scriptsize({latex.escape(cell.note)})}}" if cell.note not in (None, "*") else ""
    star = "$^{*}$" if cell.note == "*" else ""
    if cell.kind == "empty":
        return Tex("")
    if cell.kind == "check":
        return Tex(r"$\checkmark$")
    if cell.kind == "state":
        return Tex(rf"\textit{{{latex.escape(cell.text)}}}{note}" if cell.text != "--" else f"--{note}")
    if cell.kind == "text":
        return Tex((cell.tex or _latex_text(cell.text)) + note)
    body = latex.number(cell.text)
    ranked = {1: rf"\textbf{{{body}}}", 2: rf"\underline{{{body}}}"}.get(cell.rank, body)
    spread = rf"{{\scriptsize\,$\pm$\,{latex.number(cell.spread)}}}" if cell.spread is not None else ""
    return Tex(f"{ranked}{spread}{star}{note}")


def _latex_text(text: str) -> Tex:
    """Text, with a real minus where it is a number."""
    return latex.number(text) if re.fullmatch(r"[+-]\d+(\.\d+)?", text) else latex.escape(text)
