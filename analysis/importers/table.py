"""Foreign files as rows of cells: CSV, JSON lines, JSON documents, lines that a pattern matches.

What the columns mean says a mapping (`analysis.importers.mapped`).
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from collections.abc import Mapping as Cells
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.importers.run import LogError
from analysis.importers.text import clean, decode, lines, split_lines
from sdtps.config.mapping import Mapping
from sdtps.run.folder import row_of

Records = Iterator[tuple[int, Cells[str, str]]]  # 1-based line, printed cells by column


@dataclass
class Table:
    """A file as named columns whose rows can be gone through several times."""

    path: Path
    content: bytes
    records: Callable[[], Records]
    columns: list[str] = field(default_factory=list)
    document: dict[str, str] = field(default_factory=dict)  # what stands beside the rows
    unread: dict[int, tuple[str, str]] = field(default_factory=dict)  # line -> text, reason
    headers_again: set[int] = field(default_factory=set)  # lines that repeat the header: a new start
    notes: list[str] = field(default_factory=list)


def open_table(path: Path, content: bytes, mapping: Mapping | None) -> Table:
    """A file as a table.

    Raises:
        LogError: no rows of that kind are in it.
    """
    text = decode(content).lstrip()
    if mapping is not None and mapping.pattern:
        table = text_table(path, content, mapping.pattern)
    elif (mapping is not None and mapping.rows) or text.startswith("["):
        table = _json_document(path, content, mapping.rows if mapping else None)
    elif text.startswith("{"):
        table = _json_lines(path, content)
    else:
        return _csv(path, content)
    table.columns = list(dict.fromkeys(name for _, cells in table.records() for name in cells))
    if not table.columns:
        raise LogError(f"{path}: no row in it that could be read")
    return table


def _csv(path: Path, content: bytes) -> Table:
    text = decode(content)
    first = next((line for line in split_lines(text) if line.strip()), "")
    delimiter = max(",\t;", key=first.count)

    def rows() -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(split_lines(text), delimiter=delimiter)
        try:
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    yield reader.line_num, [clean(cell).strip() for cell in cells]
        except csv.Error as error:
            raise LogError(f"{path}: line {reader.line_num}: {error}") from None

    start, header = next(rows(), (0, []))
    if len(header) < 2:
        raise LogError(f"{path}: no table in it: its first line names no columns")
    header[0] = header[0].removeprefix("# ")
    if twice := sorted({name for name in header if name and header.count(name) > 1}):
        raise LogError(f"{path}: line {start}: two columns named {', '.join(twice)}")
    table = Table(path, content, lambda: iter(()), [name for name in header if name])

    def records() -> Records:
        for line, cells in rows():
            if cells == header and line != start:  # a logger that was started again
                table.headers_again.add(line)
            elif line != start and len(cells) != len(header):
                found = f"{len(cells)} cell{'s' * (len(cells) != 1)} under {len(header)} columns"
                table.unread[line] = (",".join(cells), found)
            elif line != start:
                yield line, dict(zip(header, cells, strict=True))

    table.records = records
    return table


def _json_lines(path: Path, content: bytes) -> Table:
    def records() -> Records:
        for line, raw in enumerate(split_lines(decode(content)), start=1):
            value = row_of(raw)
            if value is not None:
                yield line, flat(value)
            elif raw.strip():
                table.unread[line] = (raw.strip(), "not a JSON object")

    table = Table(path, content, records)
    return table


def _json_document(path: Path, content: bytes, key: str | None) -> Table:
    """A list of objects, or an object with such a list below `key`; a line is a place in the list."""
    try:
        value = json.loads(decode(content))
    except json.JSONDecodeError as error:
        raise LogError(
            f"{path}: line {error.lineno}: not JSON ({error.msg}); the file is torn?"
        ) from None
    except RecursionError:
        raise LogError(f"{path}: JSON that is nested too deep") from None
    found = value
    for part in key.split("/") if key else ():
        found = found.get(part) if isinstance(found, dict) else None
    if not isinstance(found, list):
        raise LogError(f"{path}: {f'{key} is not a list in it' if key else 'no list of rows in it'}")

    def records() -> Records:
        for index, entry in enumerate(found, start=1):
            if isinstance(entry, dict):
                yield index, flat(entry)
            else:
                table.unread[index] = (str(entry), "not a JSON object")

    table = Table(path, content, records, document=flat(value) if isinstance(value, dict) else {})
    return table


def flat(value: Cells[str, Any], prefix: str = "") -> dict[str, str]:
    """A JSON object's numbers and texts as printed; an inner object's key is `outer/inner`."""
    cells: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            cells |= flat(inner, f"{prefix}{key}/")
        elif inner is not None and not isinstance(inner, list | bool):
            cells[f"{prefix}{key}"] = inner if isinstance(inner, str) else repr(inner)
    return cells


def text_table(path: Path, content: bytes, patterns: tuple[str, ...]) -> Table:
    """The lines that a pattern matches. Raises LogError: none does."""
    compiled = [re.compile(pattern) for pattern in patterns]

    def records() -> Records:
        for line in lines(content):
            if match := next(filter(None, (c.search(line.text) for c in compiled)), None):
                yield line.number, {k: v.strip(" ,;") for k, v in match.groupdict().items() if v}

    table = Table(path, content, records)
    matched = sum(1 for _ in records())
    table.columns = list(dict.fromkeys(name for _, cells in table.records() for name in cells))
    table.notes = [f"{matched} of {sum(1 for _ in lines(content))} lines match a pattern"]
    if not matched:
        raise LogError(f"{path}: no line matches {' or '.join(map(repr, patterns))}")
    return table
