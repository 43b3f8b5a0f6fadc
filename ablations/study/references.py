"""Names that one part of a manifest uses and another declares; and reported numbers from CSV files."""

from __future__ import annotations

import csv
import hashlib
from typing import Any

from pydantic import ValidationError

from ablations.study.mistakes import Mistakes, Source, tuples
from ablations.study.schema import FigureSpec, MetricSpec, Reported, ReportedCsv, TableSpec
from sdtps.config import config_keys
from sdtps.config.wording import sentences, shown
from sdtps.config.yaml12 import KeyPath
from sdtps.errors import did_you_mean


def check_references(
    mistakes: Mistakes,
    source: Source,
    task: str,
    variants: list[str],
    metrics: dict[str, MetricSpec],
    tables: list[tuple[KeyPath, TableSpec]],
    figures: list[tuple[KeyPath, FigureSpec]],
    reported: list[tuple[KeyPath, Reported]],
) -> None:
    """Variants, metrics and configuration keys that tables, figures and reported numbers name."""
    keys = config_keys(task)

    def variant(path: KeyPath, name: str) -> None:
        if variants and name not in variants:
            mistakes.add(source, path, f"'{name}' is not a variant. {did_you_mean(name, variants)}")

    def metric(path: KeyPath, name: str) -> None:
        if name not in metrics:
            text = f"'{name}' is not among 'metrics'. {did_you_mean(name, metrics)}"
            mistakes.add(source, path, text)

    def key(path: KeyPath, name: str | None) -> None:
        if name is not None and name not in keys:
            text = f"'{name}' is no configuration key. {did_you_mean(name, keys)}"
            mistakes.add(source, path, text)

    for path, table in tables:
        for i, name in enumerate(table.rows):
            variant((*path, "rows", i), name)
        for i, name in enumerate(table.metrics):
            metric((*path, "metrics", i), name)
        if table.baseline is not None:
            variant((*path, "baseline"), table.baseline)
        key((*path, "axis"), table.axis)
        key((*path, "group_by"), table.group_by)
        if not metrics:
            mistakes.add(source, path, "a table needs 'metrics' with their directions")
        if table.kind == "reported" and not reported:
            mistakes.add(source, path, "kind reported, but the study has no 'reported' numbers")
    for path, figure in figures:
        for i, name in enumerate(figure.variants):
            variant((*path, "variants", i), name)
        for i, name in enumerate(figure.in_every_panel):
            variant((*path, "in_every_panel", i), name)
        key((*path, "panel_by"), figure.panel_by)
        key((*path, "axis"), figure.axis)
        key((*path, "axis_y"), figure.axis_y)
        if figure.kind == "sweep":
            metric((*path, "metric"), figure.metric)
    for path, entry in reported:
        if entry.variant is not None:
            variant((*path, "variant"), entry.variant)
        for name in entry.values:
            metric((*path, "values", name), name)


def read_reported(
    mistakes: Mistakes, source: Source, value: Any
) -> tuple[list[tuple[KeyPath, Reported]], str]:
    """Entries of `reported:` with CSV references looked up, and a digest of the CSV files."""
    if value is None:
        return [], ""
    if not isinstance(value, list):
        mistakes.add(source, ("reported",), f"must be a list; found {shown(value)}")
        return [], ""
    entries: list[tuple[KeyPath, Reported]] = []
    files: dict[str, list[dict[str, str]] | None] = {}
    for i, item in enumerate(value):
        path: KeyPath = ("reported", i)
        if isinstance(item, dict) and "csv" in item:
            reference = mistakes.check(source, path, ReportedCsv, item)
            entry = None
            if reference is not None:
                if reference.csv not in files:
                    files[reference.csv] = _read_csv(mistakes, source, (*path, "csv"), reference.csv)
                entry = _look_up(mistakes, source, path, reference, files[reference.csv])
        else:
            entry = mistakes.check(source, path, Reported, item)
        if entry is not None:
            entries.append((path, entry))
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest() if files else ""
    return entries, digest


def _read_csv(
    mistakes: Mistakes, source: Source, path: KeyPath, name: str
) -> list[dict[str, str]] | None:
    """Rows of the file beside the manifest or, failing that, below one of the folders above it."""
    folder = source.file.absolute().parent
    try:
        file = next((p for p in (f / name for f in (folder, *folder.parents)) if p.is_file()), None)
        if file is None:
            mistakes.add(
                source, path, f"'{name}' lies neither beside the manifest nor in a folder above it"
            )
            return None
        with file.open(newline="", encoding="utf-8") as stream:
            return [{k: v for k, v in row.items() if k is not None} for row in csv.DictReader(stream)]
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        mistakes.add(source, path, f"'{name}' cannot be read: {error}")
        return None


def _look_up(
    mistakes: Mistakes,
    source: Source,
    path: KeyPath,
    reference: ReportedCsv,
    rows: list[dict[str, str]] | None,
) -> Reported | None:
    if rows is None:
        return None
    columns = list(rows[0]) if rows else []
    unknown = [(("where", c), c) for c in reference.where if c not in columns]
    unknown += [(("columns", m), c) for m, c in reference.columns.items() if c not in columns]
    for place, column in unknown:
        text = f"'{column}' is no column of {reference.csv}. {did_you_mean(column, columns)}"
        mistakes.add(source, (*path, *place), text)
    if unknown:
        return None
    found = [r for r in rows if all(r[c] == v for c, v in reference.where.items())]
    if len(found) != 1:
        text = f"selects {len(found)} rows of {reference.csv}; it must select exactly one"
        mistakes.add(source, (*path, "where"), text)
        return None
    row = found[0]
    entry = {
        "variant": reference.variant,
        "method": reference.method,
        "dataset": reference.dataset or row.get("dataset") or None,
        "source": reference.source or row.get("source") or reference.csv,
        "by": reference.by,
        "values": {m: row[c] for m, c in reference.columns.items()},
        "tolerance": reference.tolerance,
        "n": reference.n,
        "note": reference.note,
    }
    try:
        return Reported.model_validate(tuples(entry))
    except ValidationError as error:
        for inside, text in sentences(error, Reported, entry):
            where = ".".join(map(str, inside))
            mistakes.add(source, path, f"{where}: {text}" if where else text)
        return None
