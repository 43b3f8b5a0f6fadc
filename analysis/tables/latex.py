r"""Text, numbers and tables as LaTeX. Nothing is computed here.

A table needs the package booktabs and nothing else, so that it compiles in anyone's paper. Its text is
\footnotesize and nothing is smaller. A table that is too wide is not shrunk: its groups of columns are
set below each other, and long names wrap. On slides alone (beamer, where \footnotesize is 9 pt), what
is wider than the slide is scaled to it: to 7.1 pt where the table would fill a page.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import jinja2

from ablations.study.labels import MATH, TEXT, composed
from analysis.tables.model import Cell, Column, Row, Table, groups
from analysis.venues import POINTS, VENUES, Venue
from sdtps.run.locations import shipped

T = TypeVar("T")
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


@cache  # a template is compiled once
def environment(templates: Path | None = None) -> jinja2.Environment:
    """A jinja2 environment that escapes everything it prints; `templates` None: from strings only.

    Delimiters are `<< >>`, `<% %>` and `<# #>`, which TeX does not use. A missing name is an error, and
    so is a raw float: numbers are rounded in `analysis.results.numbers`, never by a template.
    """
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates) if templates else None,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals["tex"] = Tex
    return made


# -- tables -------------------------------------------------------------------------------------

# A float cannot break across pages: a longer table becomes several, one for each page.
ROWS_ON_A_PAGE = 40
_HEAD_LINES = 4  # of a part: rules and heads
BASELINE = " (baseline)"  # behind the name of the row that other forms shade
# Widths of \footnotesize in points: groups of characters about as wide as each other, and all others.
_WIDTHS = {
    **dict.fromkeys(" .,:;'!|()[]ijlftI-", 2.9),
    **dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZw", 6.1),
    **dict.fromkeys("mMW%@+=±×→", 7.2),
}
_CHARACTER = 4.45
_NAME = 0.3  # of the line: a name that wraps, when numbers are dealt out to blocks
_LONG = 120.0  # points: a wider column is text and wraps, whatever its alignment


def to_latex(table: Table, venue: str = "any") -> str:
    """The whole `table` environment: caption, booktabs rules, notes; as wide as `venue` has room."""
    layout = _Layout(table, VENUES[venue])
    template = environment(TEMPLATES).get_template("table.tex.j2")
    return template.render(
        table=table,
        name=Tex(table.name),
        origin=[Tex(line) for line in table.origin],
        gap=layout.gap,
        wide=layout.wide,
        slide=round(layout.page * 9 / 8),
        floats=layout.floats(table.rows),
    )


class _Layout:
    """How a table's columns fit a page.

    Where they do not fit, in this order: heads are set on two lines, then on more; groups of columns
    and their metrics are set below each other; text wraps.

    Attributes:
        page: points of a line. gap: points on either side of a column.
        wide: wider than a column of a paper in two columns.
    """

    def __init__(self, table: Table, venue: Venue) -> None:
        self._columns = columns = table.columns
        self._rows = [row for row in table.rows if row.cells]
        self.page = venue.page * POINTS
        every = list(range(len(columns)))
        cells = [max((_width(_plain_cell(row, i)) for row in self._rows), default=0) for i in every]
        for lines in range(1, 1 + max(len(_unbroken(column.head).split(" ")) for column in columns)):
            self.gap = 4 if lines == 1 else 3
            self._heads = [_head_lines(column, lines) for column in columns]
            heads = (max(map(_width, head)) for head in self._heads)
            self._natural = list(map(max, cells, heads))
            if fits := self._total(every) <= self.page:
                break
        self._blocks = [every] if fits else self._split(every)
        widest = max(map(self._total, self._blocks))
        self.wide = widest > venue.column * POINTS and venue.column < venue.page

    def floats(self, rows: Sequence[Row]) -> list[list[tuple[str, list[Tex]]]]:
        """What each float holds: parts of the table, each with its columns' alignment and its lines."""
        parts = []
        for block in self._blocks:
            shares = self._shares(block)
            for part in _filled(rows, partial(self._lines, shares), ROWS_ON_A_PAGE):
                taken = _HEAD_LINES + sum(self._lines(shares, row) for row in part)
                place = "".join(self._columns[i].align for i in block)
                parts.append((taken, (place, self._tabular(block, part, shares))))
        floats = _filled(parts, lambda part: part[0], ROWS_ON_A_PAGE + _HEAD_LINES)
        return [[part for _, part in members] for members in floats]

    def _split(self, every: Sequence[int]) -> list[list[int]]:
        """Blocks of columns that are set below each other; columns of names are repeated."""
        names = [i for i in every if not self._columns[i].is_metric]
        taken = sum(min(self._natural[i], _NAME * self.page) for i in names)
        room = self.page - taken - 2 * self.gap * (len(names) - 1)
        units: dict[str, list[list[int]]] = {}  # a metric, with the difference that follows it
        for index in (i for i in every if i not in names):
            found = units.setdefault(self._columns[index].group, [])
            if self._columns[index].of and found:
                found[-1].append(index)
            else:
                found.append([index])
        self.gap = self.gap if units else 2  # text that wraps stands nearer
        if not units or self._taken(i for i in every if i not in names) <= room:
            return [list(every)]  # with names that wrap
        blocks = [b for found in units.values() for b in _filled(found, self._taken, room)]
        return [[*names, *itertools.chain(*block)] for block in blocks]

    def _shares(self, block: Sequence[int]) -> dict[int, float]:
        """Columns of text that wrap, each with its share of the line: what numbers leave, dealt out."""
        left = self.page - self._total(block)
        if left >= 0:
            return {}
        texts = [i for i in block if self._columns[i].align == "l" or self._natural[i] > _LONG]
        left += sum(self._natural[i] for i in texts)
        weights = {i: math.sqrt(self._natural[i]) for i in texts}  # longer text gets more, not all
        shares: dict[int, float] = {}
        for index in sorted(texts, key=lambda i: self._natural[i]):
            part = max(left * weights[index] / sum(weights.values()), self._longest_word(index))
            if self._natural[index] > part:
                shares[index] = part / self.page
            left -= min(self._natural[index], part)
            del weights[index]
        return shares

    def _taken(self, columns: Iterable[int]) -> float:
        return sum(self._natural[i] + 2 * self.gap for i in columns)

    def _total(self, block: Sequence[int]) -> float:
        return self._taken(block) - 2 * self.gap

    def _longest_word(self, index: int) -> float:
        texts = [self._columns[index].head, *(_plain_cell(row, index) for row in self._rows)]
        words = (word for text in texts for word in re.split(r"(?<=[\s_./-])", text))
        return max(_width(word.strip()) for word in words)

    def _lines(self, shares: Mapping[int, float], row: Row) -> int:
        """Lines that a row takes: those of its longest wrapped cell."""
        cells = shares.items() if row.cells else ()
        wrapped = (_width(_plain_cell(row, i)) / (share * self.page) for i, share in cells)
        return math.ceil(max(wrapped, default=1))

    def _tabular(
        self, block: Sequence[int], rows: Sequence[Row], shares: Mapping[int, float]
    ) -> list[Tex]:
        """The lines between the first and the last rule."""
        columns = [self._columns[i] for i in block]
        lines = [*_groups(columns), _line(self._head(i, shares.get(i)) for i in block), r"\midrule"]
        for number, row in enumerate(rows):
            lines += [r"\midrule"] if row.rule_before and number else []
            if row.cells:
                lines.append(_line(_boxed(row, i, shares.get(i)) for i in block))
            else:
                lines.append(
                    rf"\multicolumn{{{len(block)}}}{{l}}{{\textit{{{escape(row.heading)}}}}} \\"
                )
        return [Tex(line) for line in lines]

    def _head(self, index: int, share: float | None) -> str:
        lines = [escape(line) for line in self._heads[index]]
        if share is not None:
            return rf"\parbox[b]{{{share:.3f}\linewidth}}{{\raggedright {' '.join(lines)}\strut}}"
        if len(lines) == 1:
            return lines[0]
        place = f"@{{}}{self._columns[index].align}@{{}}"
        return rf"\begin{{tabular}}[b]{{{place}}}{(chr(92) * 2).join(lines)}\end{{tabular}}"


def _filled(items: Iterable[T], size: Callable[[T], float], most: float) -> list[list[T]]:
    """`items` in order, dealt to groups that hold `most`, or a single larger one."""
    groups: list[list[T]] = [[]]
    taken = 0.0
    for item in items:
        if groups[-1] and taken + size(item) > most:
            groups.append([])
            taken = 0.0
        groups[-1].append(item)
        taken += size(item)
    return groups


def _width(text: str) -> float:
    """Estimated width of a line of plain text, in points."""
    return sum(_WIDTHS.get(char, _CHARACTER) for char in text)


def _unbroken(head: str) -> str:
    """A head in which a line does not end before the arrow, nor beside `×`."""
    return re.sub(r" (?=[×↑↓])|(?<=×) ", "\u00a0", head)


def _head_lines(column: Column, most: int) -> list[str]:
    """A head on about `most` lines of like lengths. Names stay on one line."""
    head = _unbroken(column.head)
    if column.align == "l":
        return [head]
    longest = max(1, math.ceil(len(head) / most))
    return textwrap.wrap(head, longest, break_long_words=False, break_on_hyphens=False) or [""]


def _plain_cell(row: Row, index: int) -> str:
    return row.cells[index].plain + (BASELINE if row.shaded and not index else "")


def _line(texts: Iterable[str]) -> str:
    r"""A row, whose start must not look like an argument of the `\\` or the rule before it."""
    text = " & ".join(texts)
    return ("{}" if text.lstrip().startswith(("[", "*")) else "") + text + r" \\"


def _boxed(row: Row, index: int, share: float | None) -> str:
    """A cell's text; in one that wraps, words may break behind `_`, `.` and `/`."""
    text = latex_cell(row.cells[index]) + (BASELINE if row.shaded and not index else "")
    if share is None or not text:
        return text
    text = re.sub(r"(\\_|(?<=\w)[./](?=\w))", r"\1\\allowbreak{}", text)
    return rf"\parbox[t]{{{share:.3f}\linewidth}}{{\raggedright {text}\strut}}"


def _groups(columns: Sequence[Column]) -> list[str]:
    """The heads over groups of columns, and the rules below them."""
    cells, rules, start = [], [], 1
    for group, width in groups(columns):
        cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escape(group)}}}")
        if group:
            rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return [_line(cells), "".join(rules)] if cells else []


def latex_cell(cell: Cell) -> Tex:
    """A cell's LaTeX; also what a number's macro expands to."""
    note = cell.note or ""
    if note not in ("", "*"):
        note = f" ({escape(note)})"
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
    return Tex(f"{ranked}{spread}{note}")


def _text(text: str) -> Tex:
    """Text, with a real minus where it is a number."""
    return number(text) if re.fullmatch(r"[+-]\d+(\.\d+)?", text) else escape(text)
