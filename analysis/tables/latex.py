r"""Text, numbers and tables as LaTeX. Nothing is computed here.

A table needs the package booktabs and nothing else, so that it compiles in anyone's paper. Its text is
\footnotesize and nothing is smaller. A table that is too wide is not shrunk: its groups of columns are
set below each other, and long names wrap.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2

from ablations.study.labels import MATH, TEXT, composed
from analysis.tables.model import Cell, Column, Row, Table
from sdtps.run.locations import shipped

TEMPLATES = shipped("paper/templates")


class Tex(str):
    """Text that is LaTeX already and is printed as it is."""

    __slots__ = ()


def escape(text: str) -> Tex:
    """`text` so that LaTeX prints exactly it; Greek, relations and raised digits become formulas.

    A manifest's words hold only characters that can be printed (`ablations.study.labels`). Others come
    from logs and error messages; they lose their accents, or are named by their code point.
    """
    out: list[str] = []
    for index, char in enumerate(text):
        if char == "-":
            out.append("-{}" if text[index + 1 : index + 2] == "-" else "-")
        elif char in TEXT:
            out.append(TEXT[char])
        elif char in MATH:
            out.append(rf"\ensuremath{{{MATH[char]}}}")
        elif char in "\n\t\r":
            out.append(" ")
        elif 0x20 <= ord(char) < 0x7F or composed(char):
            out.append(char)
        else:
            out.append(_plain(char))
    return Tex("".join(out))


def _plain(char: str) -> str:
    bare = "".join(c for c in unicodedata.normalize("NFKD", char) if 0x20 <= ord(c) < 0x7F)
    if bare and all(c.isalnum() or c in " .,()/+-=" for c in bare):
        return bare
    return f"[U+{ord(char):04X}]"


def number(text: str) -> Tex:
    """A number that `analysis.results.numbers` wrote, with a real minus sign.

    Raises:
        ValueError: `text` is not one.
    """
    digits = text.lstrip("+-")
    if not digits.replace(".", "", 1).isdigit():
        raise ValueError(f"{text!r} is not a number's text")
    sign = {"-": "$-$", "+": "$+$"}.get(text[:1], "")
    return Tex(f"{sign}{digits}")


def finalize(value: Any) -> str:
    """What jinja2 prints for an expression.

    Raises:
        TypeError: a float, None or container got into a template.
    """
    if isinstance(value, Tex | jinja2.Undefined):
        return str(value)
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise TypeError(
        f"a template printed {value!r} ({type(value).__name__}): pass text of results.numbers, or Tex"
    )


def environment(templates: Path | None = None) -> jinja2.Environment:
    """A jinja2 environment that escapes everything it prints; `templates` None: from strings only.

    Delimiters are `<< >>`, `<% %>` and `<# #>`, which TeX does not use. A missing name is an error, and
    so is a raw float: numbers are rounded in `analysis.results.numbers`, never by a template.
    """
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates) if templates else None,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


# -- tables -------------------------------------------------------------------------------------

# A float cannot break across pages: a longer table becomes several, one for each page.
ROWS_ON_A_PAGE = 40
# Estimates for \footnotesize, in points: a character, and the space between two columns.
_CHARACTER, _GAP = 4.3, 8.0
_COLUMN, _PAGE = 240.0, 345.0  # widths of a column of two, and of a page's text, in common classes
_NARROWEST = 0.2  # of the line: a wrapped name


def to_latex(table: Table) -> str:
    """The whole `table` environment: caption, booktabs rules, notes."""
    pages = [
        table.rows[start : start + ROWS_ON_A_PAGE]
        for start in range(0, len(table.rows), ROWS_ON_A_PAGE)
    ] or [()]
    blocks = _blocks(table.columns, table.rows)
    wide = max(map(_width, [_widths(block, table.rows, table.columns) for block in blocks])) > _COLUMN
    lines = [f"% {line}" for line in table.origin]
    for number, rows in enumerate(pages):
        first, last = number == 0, number == len(pages) - 1
        lines += [f"{_environment('begin', wide)}[htbp]", r"\centering", r"\footnotesize"]
        if first:
            caption = " ".join(escape(sentence) for sentence in table.caption)
            lines.append(rf"\caption{{{caption}}}\label{{tab:{table.name}}}")
        else:
            lines.append(rf"Table~\ref{{tab:{table.name}}}, continued\par\smallskip")
        lines += [r"\setlength{\tabcolsep}{4pt}", r"\providecommand{\checkmark}{\ensuremath{\surd}}"]
        for index, block in enumerate(blocks):
            lines += [r"\par\medskip"] if index else []
            lines += _tabular(table, block, rows)
        if last and table.notes:
            notes = " ".join(escape(sentence) for sentence in table.notes)
            lines.append(rf"\par\smallskip\parbox{{\linewidth}}{{{notes}}}")
        lines.append(f"{_environment('end', wide)}%")
    return "\n".join(lines) + "\n"


def _environment(edge: str, wide: bool) -> str:
    r"""`\begin{table}`; `table*` spans both columns of a paper. Slides (beamer) have no `table*`."""
    if not wide:
        return rf"\{edge}{{table}}"
    return rf"\csname @ifundefined\endcsname{{table*}}{{\{edge}{{table}}}}{{\{edge}{{table*}}}}"


def _blocks(columns: Sequence[Column], rows: Sequence[Row]) -> list[list[int]]:
    """Indices of the columns that stand side by side: all, where they fit a page.

    Else one group of columns at a time, and as many of its metrics as fit, below each other; columns
    of names are repeated.
    """
    every = list(range(len(columns)))
    widths = _widths(every, rows, columns)
    if _width(widths) <= _PAGE:
        return [every]
    names = [i for i in every if not _is_metric(columns[i])]
    metrics = [i for i in every if _is_metric(columns[i])]
    if not metrics:
        return [every]
    narrow = {
        i: min(widths[i], _NARROWEST * _PAGE) if columns[i].align == "l" else widths[i] for i in names
    }
    blocks: list[list[int]] = []
    for group in dict.fromkeys(columns[i].group for i in metrics):
        block: list[int] = []
        mine = [i for i in metrics if columns[i].group == group]
        for index in mine:
            taken = _width({**narrow, **{i: widths[i] for i in [*block, index]}})
            if block and taken > _PAGE and not columns[index].of:  # a difference follows its metric
                blocks.append([*names, *block])
                block = []
            block.append(index)
        blocks.append([*names, *block])
    return blocks


def _is_metric(column: Column) -> bool:
    return column.direction is not None or bool(column.group) or bool(column.of)


def _widths(block: Sequence[int], rows: Sequence[Row], columns: Sequence[Column]) -> dict[int, float]:
    """Estimated width of each column of a block in points."""
    widths = {}
    for index in block:
        texts = [columns[index].head, *(row.cells[index].plain for row in rows if row.cells)]
        share = columns[index].width
        widths[index] = _PAGE * share if share else _CHARACTER * max(map(len, texts))
    return widths


def _width(widths: Mapping[int, float]) -> float:
    return sum(widths.values()) + _GAP * len(widths)


def _wrapped(block: Sequence[int], table: Table) -> dict[int, float]:
    """Columns of text that wrap, each with its share of the line."""
    columns = table.columns
    shares = {i: float(columns[i].width or 0) for i in block if columns[i].width}
    widths = _widths(block, table.rows, columns)
    over = _width(widths) - _PAGE
    texts = [i for i in block if columns[i].align == "l" and i not in shares]
    if over > 0 and texts:
        longest = max(texts, key=lambda i: widths[i])
        shares[longest] = max(_NARROWEST, (widths[longest] - over) / _PAGE)
    return shares


def _tabular(table: Table, block: Sequence[int], rows: Sequence[Row]) -> list[str]:
    columns = [table.columns[i] for i in block]
    wrapped = _wrapped(block, table)
    lines = [
        rf"\begin{{tabular}}{{{''.join(c.align for c in columns)}}}",
        r"\toprule",
        *_heads(columns),
        r"\midrule",
    ]
    for number, row in enumerate(rows):
        if row.rule_before and number:
            lines.append(r"\midrule")
        if row.cells:
            texts = [_boxed(row.cells[i], wrapped.get(i)) for i in block]
            if row.shaded:
                texts[0] = f"{texts[0]} (baseline)" if block[0] not in wrapped else texts[0]
        else:
            texts = [rf"\multicolumn{{{len(block)}}}{{l}}{{\textit{{{escape(row.heading)}}}}}"]
        lines.append(_safe_row(" & ".join(texts)) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _boxed(cell: Cell, share: float | None) -> str:
    text = latex_cell(cell)
    if share is None or not text:
        return text
    return rf"\parbox[t]{{{share:.2f}\linewidth}}{{\raggedright {text}\strut}}"


def _safe_row(text: str) -> str:
    r"""A row whose start does not look like an argument of the `\\` or the rule before it."""
    return f"{{}}{text}" if text.lstrip().startswith(("[", "*")) else text


def _heads(columns: Sequence[Column]) -> list[str]:
    lines = []
    if any(c.group for c in columns):
        cells, rules, start = [], [], 1
        for group, members in groupby(columns, key=lambda c: c.group):
            width = len(list(members))
            if group:
                cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escape(group)}}}")
                rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
            else:
                cells += [""] * width
            start += width
        lines += [" & ".join(cells) + r" \\", "".join(rules)]
    lines.append(_safe_row(" & ".join(map(_head, columns))) + r" \\")
    return lines


def _head(column: Column) -> str:
    unit = rf" ({escape(column.unit)})" if column.unit else ""
    arrow = {"up": r" $\uparrow$", "down": r" $\downarrow$"}.get(column.direction or "", "")
    return f"{escape(column.label)}{unit}{arrow}"


def latex_cell(cell: Cell) -> Tex:
    """A cell's LaTeX; also what a number's macro expands to."""
    note = rf" ({escape(cell.note)})" if cell.note not in (None, "*") else ""
    star = "*" if cell.note == "*" else ""
    if cell.kind == "empty":
        return Tex("")
    if cell.kind == "check":
        return Tex(r"$\checkmark$")
    if cell.kind == "state":
        return Tex(rf"\textit{{{escape(cell.text)}}}{note}" if cell.text != "--" else f"--{note}")
    if cell.kind == "text":
        return Tex(_text(cell.text) + note)
    body = number(cell.text)
    ranked = {1: rf"\textbf{{{body}}}", 2: rf"\underline{{{body}}}"}.get(cell.rank, body)
    spread = rf"\,$\pm$\,{number(cell.spread)}" if cell.spread is not None else ""
    return Tex(f"{ranked}{spread}{star}{note}")


def _text(text: str) -> Tex:
    """Text, with a real minus where it is a number."""
    return number(text) if re.fullmatch(r"[+-]\d+(\.\d+)?", text) else escape(text)
