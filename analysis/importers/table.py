"""Plain tables: CSV (comma, semicolon or tab) and JSON lines, one or several runs in a file.

Columns `epoch`, `step`, `kind`, `variant`, `seed` and `attempt` mean what they say, in any case.
Without `step` the epoch counts, without both the row does. All other columns with numbers are metrics.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.importers.builder import RunBuilder
from analysis.importers.columns import canonical, is_share, kind_of, says_per_cent
from analysis.importers.naming import variant_name
from analysis.importers.record import ImportedRun, LogError, fraction, number
from analysis.importers.text import clean, decode
from analysis.results.numbers import counted

CSV_NAME, JSON_NAME = "csv", "jsonl"
CSV_LOOKS_FOR = "a first line of column names, and numbers below"
JSON_LOOKS_FOR = "one JSON object a line"
_PLACES = frozenset({"epoch", "step", "kind", "variant", "seed", "attempt"})
_ALIASES = {
    "iteration": "step", "iter": "step", "global_step": "step", "it": "step", "steps": "step",
    "split": "kind", "phase": "kind", "name": "variant", "run": "variant", "method": "variant",
    "model": "variant",
}  # fmt: skip
_IGNORED = frozenset({"time", "timestamp", "wall_time", "date", "nonfinite", "", "index", "unnamed: 0"})
_NOTHING = frozenset({"", "-", "--", "n/a", "na", "none", "null"})

_DECIMAL_COMMA = re.compile(r"^[-+]?\d+,\d+\s*%?$")

Cells = dict[str, str]


def recognises_csv(name: str, text: str) -> bool:
    rows = _parse_csv(text[:20_000].rsplit("\n", 1)[0] if len(text) > 20_000 else text)
    if len(rows) < 2 or len(rows[0][1]) < 2:
        return False
    header, first = rows[0][1], rows[1][1]
    named = all(cell and not _is_number(cell) for cell in header[1:])
    return named and len(first) == len(header) and any(_is_number(cell) for cell in first)


def recognises_json_lines(name: str, text: str) -> bool:
    objects = sum(isinstance(_object(line), dict) for line in text.split("\n")[:50] if line.strip())
    return objects > 0 and text.lstrip()[:1] == "{"


def read_csv(
    path: Path, content: bytes, *, zero_based: bool = False, format_name: str = CSV_NAME
) -> list[ImportedRun]:
    """Runs of a CSV file. Raises LogError where the columns cannot be told apart."""
    rows = _parse_csv(decode(content))
    if not rows:
        raise LogError(f"{path}: empty")
    header = [clean(cell).strip().removeprefix("# ") for cell in rows[0][1]]
    if twice := sorted({name for name in header if name and header.count(name) > 1}):
        raise LogError(f"{path}: line 1: two columns named {', '.join(twice)}")
    builder = RunBuilder(path, content, format_name)
    records: list[tuple[int, Cells]] = []
    for line, cells in rows[1:]:
        if [c.strip() for c in cells] == header:  # a restarted logger wrote its header again
            builder.notes.append(f"line {line}: the header again")
        elif len(cells) != len(header):
            reason = f"{counted(len(cells), 'cell')} under {counted(len(header), 'column')}"
            builder.cannot_read(line, ",".join(cells), reason)
        else:
            records.append((line, dict(zip(header, (clean(c).strip() for c in cells), strict=True))))
    if mistakes := _decimal_commas(header, records):
        raise LogError(f"{path}: {'; '.join(mistakes)}: write numbers with a decimal point")
    return runs_of(path, content, format_name, header, records, builder, zero_based=zero_based)


def _decimal_commas(header: list[str], records: list[tuple[int, Cells]]) -> list[str]:
    """Columns whose numbers have a comma where programs write a point, each with the first of them."""
    found = []
    for name in header:
        commas = [(line, c[name]) for line, c in records if _DECIMAL_COMMA.match(c[name])]
        if commas and not any(_is_number(c[name].rstrip("%")) for _, c in records):
            found.append(f"line {commas[0][0]}: column '{name}' holds '{commas[0][1]}'")
    return found


def read_json_lines(path: Path, content: bytes) -> list[ImportedRun]:
    """Runs of a file with one JSON object a line; nested objects become `outer/inner`."""
    builder = RunBuilder(path, content, JSON_NAME)
    records: list[tuple[int, Cells]] = []
    header: dict[str, None] = {}
    for line, text in enumerate(decode(content).split("\n"), start=1):
        if not text.strip():
            continue
        value = _object(text)
        if not isinstance(value, dict):
            builder.cannot_read(line, text.strip(), "not a JSON object")
            continue
        cells = dict(_flat(value))
        header.update(dict.fromkeys(cells))
        records.append((line, cells))
    return runs_of(path, content, JSON_NAME, list(header), records, builder)


def runs_of(
    path: Path,
    content: bytes,
    format_name: str,
    header: list[str],
    records: list[tuple[int, Cells]],
    first: RunBuilder,
    *,
    zero_based: bool = False,
) -> list[ImportedRun]:
    """Split records by variant and seed, and build a run of each.

    Args:
        records: 1-based line and printed cells by column.
        first: holds what could not be read; it becomes part of the first run.
        zero_based: epochs and steps count from 0 (Lightning) instead of from 1.
    """
    places = {_place(name): name for name in header if _place(name)}
    groups: dict[tuple[str, str], list[tuple[int, Cells]]] = {}
    for line, cells in records:
        key = tuple(cells.get(places.get(p, ""), "") for p in ("variant", "seed"))
        groups.setdefault((key[0], key[1]), []).append((line, cells))
    if not groups:
        raise LogError(f"{path}: no row could be read; {len(first.unread)} were not understood")
    columns = [n for n in header if not _place(n) and n.lower() not in _IGNORED]
    shares = {n for n in columns if says_per_cent(n, [c.get(n, "") for _, c in records])}
    ours = {"kind", "attempt"} <= places.keys()  # as runs here log: in fractions
    unsure = {canonical(n) for n in columns if is_share(canonical(n)) and n not in shares and not ours}
    if shares:
        first.notes.append(f"read as per cent: {', '.join(sorted(shares))}")
    runs = []
    for index, ((variant, seed), group) in enumerate(groups.items()):
        builder = first if index == 0 else RunBuilder(path, content, format_name)
        for position, (line, cells) in enumerate(group):
            _add_row(builder, places, columns, shares, position, line, cells, int(zero_based))
        runs.append(
            builder.finish(
                variant=variant or variant_name(path),
                finished=True,  # a table does not say what was planned
                seed=int(float(seed)) if _is_number(seed) else None,
            )
        )
        if not runs[-1].rows:
            runs.pop()
            continue
        runs[-1].open_units = unsure & {name for row in runs[-1].rows for name in row}
    if not runs:
        raise LogError(f"{path}: no column holds numbers; columns: {', '.join(header)}")
    return runs


def _add_row(
    builder: RunBuilder,
    places: Mapping[str, str],
    columns: list[str],
    shares: set[str],
    position: int,
    line: int,
    cells: Cells,
    offset: int,
) -> None:
    values: dict[str, dict[str, float]] = {"train": {}, "eval": {}}
    given = cells.get(places.get("kind", ""), "").lower()
    kind = "eval" if given[:3] in ("val", "eva", "tes", "dev") else ("train" if given else "")
    for name in columns:
        text = cells.get(name, "")
        if text.lower() in _NOTHING:
            continue
        if not _is_number(text.rstrip("%")):
            if not kind and name == columns[0]:
                builder.cannot_read(line, text, f"column '{name}' holds no number")
            continue
        value = fraction(text) if name in shares else number(text)
        values[kind or kind_of(name)][canonical(name)] = value
    try:
        epoch = _whole(cells.get(places.get("epoch", ""), ""), offset)
        step = _whole(cells.get(places.get("step", ""), ""), offset)
    except ValueError as error:
        builder.cannot_read(line, str(cells), str(error))
        return
    if step is None:
        step = epoch if epoch is not None else position + 1
    epoch = epoch if epoch is not None else step
    if values["train"]:
        builder.train(epoch, step, line, **values["train"])
    if values["eval"]:
        builder.evaluation(epoch, step, values["eval"])


def _place(name: str) -> str:
    lowered = name.strip().lower()
    lowered = _ALIASES.get(lowered, lowered)
    return lowered if lowered in _PLACES else ""


def _whole(text: str, offset: int) -> int | None:
    """An epoch or step; a fraction of an epoch belongs to the epoch that it is part of."""
    if not text.strip():
        return None
    value = number(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"'{text}' is no epoch or step")
    return math.ceil(value) + offset


def _parse_csv(text: str) -> list[tuple[int, list[str]]]:
    first = next((line for line in text.split("\n") if line.strip()), "")
    delimiter = max(",\t;", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    rows = []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append((reader.line_num, cells))
    except csv.Error as error:
        raise LogError(f"line {reader.line_num}: {error}") from None
    return rows


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    cells = []
    for key, inner in value.items():
        if isinstance(inner, dict):
            cells += _flat(inner, f"{prefix}{key}/")
        elif inner is not None and not isinstance(inner, list | bool):
            cells.append((f"{prefix}{key}", inner if isinstance(inner, str) else repr(inner)))
    for key, word in (value.get("nonfinite") or {}).items() if not prefix else ():
        cells.append((key, str(word)))  # our own metrics.jsonl
    return cells


def _is_number(text: str) -> bool:
    try:
        number(text)
    except ValueError:
        return False
    return True
