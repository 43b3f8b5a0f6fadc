r"""Text, numbers and tables as LaTeX. Nothing is computed here.

A table needs the package booktabs and nothing else, so that it compiles in anyone's paper. Its text is
\footnotesize and nothing is smaller. A table that is too wide is not shrunk: its groups of columns are
set below each other, and long names wrap. On slides alone (beamer, where \footnotesize is 9 pt), what
is wider than the slide is scaled to it: to 7.1 pt where the table would fill a page.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2

from ablations.study.labels import MATH, TEXT, composed
from analysis.tables.model import Cell, Column, Row, Table
from analysis.venues import POINTS, VENUES, Venue
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
# Begins what differs on slides: beamer has no `table*`, and loads graphicx itself.
_ON_SLIDES = r"\csname @ifundefined\endcsname{table*}"
# Sets box 0, a tabular; on slides no wider than the slide.
_SET_PART = (
    rf"\providecommand{{\setpart}}{{{_ON_SLIDES}"
    r"{\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi}{\usebox0}}"
)
_LONG = 120.0  # points: a wider column is text and wraps, whatever its alignment


def _width(text: str) -> float:
    """Estimated width of a line of plain text, in points."""
    return sum(_WIDTHS.get(char, _CHARACTER) for char in text)


def to_latex(table: Table, venue: str = "any") -> str:
    """The whole `table` environment: caption, booktabs rules, notes; as wide as `venue` has room."""
    layout = _Layout(table, VENUES[venue])
    pages = layout.pages(table.rows)
    lines = [f"% {line}" for line in table.origin]
    for number, parts in enumerate(pages):
        first, last = number == 0, number == len(pages) - 1
        lines += [f"{_environment('begin', layout.wide)}[htbp]", r"\centering", r"\footnotesize"]
        if first:
            caption = " ".join(escape(sentence) for sentence in table.caption)
            lines.append(rf"\caption{{{caption}}}\label{{tab:{table.name}}}")
        else:
            lines.append(rf"Table~\ref{{tab:{table.name}}}, continued\par\smallskip")
        lines += [
            rf"\setlength{{\tabcolsep}}{{{layout.gap}pt}}",
            r"\providecommand{\checkmark}{\ensuremath{\surd}}",
            _SET_PART,
        ]
        for index, (block, rows) in enumerate(parts):
            lines += [r"\par\medskip"] if index else []
            lines += _tabular(table, block, rows, layout)
        if last and table.notes:
            notes = " ".join(escape(sentence) for sentence in table.notes)
            lines.append(rf"\par\smallskip\parbox{{\linewidth}}{{{notes}}}")
        lines.append(f"{_environment('end', layout.wide)}%")
    return "\n".join(lines) + "\n"


def _environment(edge: str, wide: bool) -> str:
    r"""`\begin{table}`; `table*` spans both columns of a paper."""
    if not wide:
        return rf"\{edge}{{table}}"
    return rf"{_ON_SLIDES}{{\{edge}{{table}}}}{{\{edge}{{table*}}}}"


class _Layout:
    """How a table's columns fit a page.

    Where they do not fit, in this order: heads are set on two lines, then on more; groups of columns
    and their metrics are set below each other; text wraps.

    Attributes:
        head_lines: the most lines of a head: as few as make the table fit.
        gap: points on either side of a column.
        blocks: indices of the columns that stand side by side; columns of names are repeated.
        wide: wider than a column of a paper in two columns.
    """

    def __init__(self, table: Table, venue: Venue) -> None:
        self._columns = table.columns
        self._rows = [row for row in table.rows if row.cells]
        self.page = page = venue.page * POINTS
        self.head_lines, self.gap = 1, 4
        every = list(range(len(self._columns)))
        most = max((len(_head_words(column)) for column in self._columns), default=1)
        while self.head_lines < most and self._total(every) > page:
            self.head_lines, self.gap = self.head_lines + 1, 3
        self.blocks = [every] if self._total(every) <= page else self._split(every)
        if max(map(self._least, self.blocks)) > page:
            self.gap = 2
        widest = max(map(self._total, self.blocks))
        self.wide = widest > venue.column * POINTS and venue.column < venue.page

    def shares(self, block: Sequence[int]) -> dict[int, float]:
        """Columns of text that wrap, each with its share of the line: what numbers leave, dealt out."""
        widths = {i: self._natural(i) for i in block}
        if self._total(block) <= self.page:
            return {}
        texts = self._texts(block)
        left = self.page - self._gaps(block) - sum(widths[i] for i in block if i not in texts)
        weights = {i: math.sqrt(widths[i]) for i in texts}  # longer text gets more, not all
        shares: dict[int, float] = {}
        for index in sorted(texts, key=lambda i: widths[i]):
            part = max(left * weights[index] / sum(weights.values()), self._longest_word(index))
            if widths[index] > part:
                shares[index] = part / self.page
            left -= min(widths[index], part)
            del weights[index]
        return shares

    def pages(self, rows: Sequence[Row]) -> list[list[tuple[list[int], list[Row]]]]:
        """What each float holds: parts of the table, each with its columns and rows."""
        parts = [(block, part) for block in self.blocks for part in self._parts(block, rows)]
        pages: list[list[tuple[list[int], list[Row]]]] = [[]]
        taken = 0
        for block, part in parts:
            lines = _HEAD_LINES + sum(self._lines(block, row) for row in part)
            if pages[-1] and taken + lines > ROWS_ON_A_PAGE + _HEAD_LINES:
                pages.append([])
                taken = 0
            pages[-1].append((block, part))
            taken += lines
        return pages

    def _parts(self, block: Sequence[int], rows: Sequence[Row]) -> list[list[Row]]:
        """The rows of a block, cut where a page is full."""
        parts: list[list[Row]] = [[]]
        taken = 0
        for row in rows:
            lines = self._lines(block, row)
            if parts[-1] and taken + lines > ROWS_ON_A_PAGE:
                parts.append([])
                taken = 0
            parts[-1].append(row)
            taken += lines
        return parts

    def _lines(self, block: Sequence[int], row: Row) -> int:
        """Lines that a row takes: those of its longest wrapped cell."""
        if not row.cells:
            return 1
        cells = [(_width(_plain_cell(row, i)), share) for i, share in self.shares(block).items()]
        return max((math.ceil(width / (share * self.page)) for width, share in cells), default=1)

    def _split(self, every: Sequence[int]) -> list[list[int]]:
        metrics = [i for i in every if self._is_metric(i)]
        names = [i for i in every if i not in metrics]
        if not metrics:
            return [list(every)]
        narrow = sum(min(self._natural(i), _NAME * self.page) for i in names)
        if narrow + sum(map(self._natural, metrics)) + self._gaps(every) <= self.page:
            return [list(every)]  # with names that wrap
        blocks: list[list[int]] = []
        for group in dict.fromkeys(self._columns[i].group for i in metrics):
            block: list[int] = []
            for index in (i for i in metrics if self._columns[i].group == group):
                numbers = [*block, index]
                taken = sum(map(self._natural, numbers)) + self._gaps([*names, *numbers])
                if (
                    block and taken + narrow > self.page and not self._columns[index].of
                ):  # Δ follows its metric
                    blocks.append([*names, *block])
                    block = []
                block.append(index)
            blocks.append([*names, *block])
        return blocks

    def _is_metric(self, index: int) -> bool:
        column = self._columns[index]
        return column.direction is not None or bool(column.group) or bool(column.of)

    def _total(self, block: Sequence[int]) -> float:
        return sum(map(self._natural, block)) + self._gaps(block)

    def _gaps(self, block: Sequence[int]) -> float:
        return 2.0 * self.gap * (len(block) - 1)

    def _texts(self, block: Sequence[int]) -> list[int]:
        """Columns that may wrap."""
        return [i for i in block if self._columns[i].align == "l" or self._natural(i) > _LONG]

    def _least(self, block: Sequence[int]) -> float:
        """Width of a block when every word of its texts stands on a line of its own."""
        texts = self._texts(block)
        widths = (self._longest_word(i) if i in texts else self._natural(i) for i in block)
        return sum(widths) + self._gaps(block)

    def _natural(self, index: int) -> float:
        """Estimated width of a column in points, when nothing in it wraps."""
        heads = _head_lines(self._columns[index], self.head_lines)
        return max(map(_width, [*heads, *(_plain_cell(row, index) for row in self._rows)]))

    def _longest_word(self, index: int) -> float:
        texts = [self._columns[index].head, *(_plain_cell(row, index) for row in self._rows)]
        words = (word for text in texts for word in re.split(r"(?<=[\s_./-])", text))
        return max((_width(word.strip()) for word in words), default=0)


def _head_words(column: Column) -> list[str]:
    """The words of a head between which a line may end: not before the arrow, nor before `×`."""
    return re.sub(r" (?=[×↑↓])|(?<=×) ", "\u00a0", column.head).split(" ")


def _head_lines(column: Column, most: int) -> list[str]:
    """A head on about `most` lines of like lengths. Names stay on one line."""
    words = _head_words(column)
    if column.align == "l" or most < 2:
        return [" ".join(words)]
    longest = max(math.ceil(len(" ".join(words)) / most), *map(len, words))
    lines = [words[0]]
    for word in words[1:]:
        if len(f"{lines[-1]} {word}") <= longest:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _plain_cell(row: Row, index: int) -> str:
    return row.cells[index].plain + (BASELINE if row.shaded and not index else "")


def _tabular(table: Table, block: Sequence[int], rows: Sequence[Row], layout: _Layout) -> list[str]:
    columns = [table.columns[i] for i in block]
    wrapped = layout.shares(block)
    lines = [
        rf"\setbox0\hbox{{{_ON_SLIDES}{{\linewidth={layout.page * 9 / 8:.0f}pt}}{{}}%",
        rf"\begin{{tabular}}{{@{{}}{''.join(c.align for c in columns)}@{{}}}}",
        r"\toprule",
        *_heads(columns, layout.head_lines, [wrapped.get(i) for i in block]),
        r"\midrule",
    ]
    for number, row in enumerate(rows):
        if row.rule_before and number:
            lines.append(r"\midrule")
        if row.cells:
            texts = [_boxed(row, i, wrapped.get(i), layout.page) for i in block]
        else:
            texts = [rf"\multicolumn{{{len(block)}}}{{l}}{{\textit{{{escape(row.heading)}}}}}"]
        lines.append(_safe_row(" & ".join(texts)) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}}\setpart"]


def _boxed(row: Row, index: int, share: float | None, page: float) -> str:
    """A cell's text; in one that wraps, a word that is too long may break behind `_`, `.` and `/`."""
    text = latex_cell(row.cells[index]) + (BASELINE if row.shaded and not index else "")
    if share is None or not text:
        return text
    if any(_width(word) > share * page for word in _plain_cell(row, index).split()):
        text = re.sub(r"(\\_|(?<=\w)[./](?=\w))", r"\1\\allowbreak{}", text)
    return rf"\parbox[t]{{{share:.3f}\linewidth}}{{\raggedright {text}\strut}}"


def _safe_row(text: str) -> str:
    r"""A row whose start does not look like an argument of the `\\` or the rule before it."""
    return f"{{}}{text}" if text.lstrip().startswith(("[", "*")) else text


def _heads(columns: Sequence[Column], most: int, shares: Sequence[float | None]) -> list[str]:
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
    heads = (_head(c, most, share) for c, share in zip(columns, shares, strict=True))
    lines.append(_safe_row(" & ".join(heads)) + r" \\")
    return lines


def _head(column: Column, most: int, share: float | None) -> str:
    lines = [escape(line) for line in _head_lines(column, most)]
    if share is not None:
        return rf"\parbox[b]{{{share:.3f}\linewidth}}{{\raggedright {' '.join(lines)}\strut}}"
    if len(lines) == 1:
        return lines[0]
    place = f"@{{}}{column.align}@{{}}"
    return rf"\begin{{tabular}}[b]{{{place}}}{(chr(92) * 2).join(lines)}\end{{tabular}}"


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
