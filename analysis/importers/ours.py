"""Our own files: metrics.jsonl of a run, and values.csv and event files exported before 0.1.0.

Scores are fractions, epochs count from 1. values.csv holds one value a row.
"""

from __future__ import annotations

from collections.abc import Mapping

from analysis.importers.names import Metric, direction_of, is_share
from analysis.importers.run import ImportedRun, LogError, RunBuilder, Unread, number, seed_of
from analysis.importers.table import Table

NAME = "ours"
LOOKS_FOR = "columns kind, attempt, epoch and step, or event files whose name ends with .sdtps"
_PLACES = {"kind", "attempt", "epoch", "step", "variant", "seed", "study", "metric", "value", "time",
           "superseded_rows"}  # fmt: skip


def recognises(table: Table) -> bool:
    return {"kind", "attempt", "epoch", "step"} <= set(table.columns) or _is_event_file(table)


def describes_runs(table: Table) -> bool:
    """runs.csv of our export: it describes runs; values.csv beside it holds what they logged."""
    return {"identity", "folder", "planned"} <= set(table.columns)


def _is_event_file(table: Table) -> bool:
    return table.path.name.endswith(".sdtps")


def read(table: Table, restarts: bool = False) -> list[ImportedRun]:
    """The runs of a table. Raises LogError: no row could be read."""
    builders: dict[tuple[str, str], RunBuilder] = {}
    attempts: dict[tuple[str, str], str] = {}
    for line, cells in table.records():
        key = (cells.get("variant", ""), cells.get("seed", ""))
        if key not in builders:
            builders[key] = RunBuilder(
                table.path, table.content, NAME, restarts=restarts, repeat="refuse", apart=True
            )
            builders[key].describe = _describe
        builder = builders[key]
        attempt = cells.get("attempt", "")
        if attempt != attempts.setdefault(key, attempt):
            builder.restart(line)
            attempts[key] = attempt
        try:
            _add(builder, line, cells, _is_event_file(table))
        except ValueError as error:
            builder.cannot_read(line, ",".join(cells.values()), str(error))
    runs = [
        builder.finish(variant=variant, seed=seed_of(seed))
        for (variant, seed), builder in builders.items()
        if builder.rows
    ]
    if not runs:
        raise LogError(f"{table.path}: no row of a run of ours in it")
    runs[0].unread += [Unread(line, *told) for line, told in table.unread.items()]
    return runs


def _add(builder: RunBuilder, line: int, cells: Mapping[str, str], tags: bool) -> None:
    """One row; raises ValueError where a cell holds no number."""
    values: dict[str, dict[str, float]] = {}
    for name, text in cells.items():
        kind, _, metric = name.partition("/") if tags else (cells.get("kind", ""), "", name)
        bare = name.removeprefix("nonfinite/")  # null in the row, and the word here
        if kind in ("train", "eval") and bare not in _PLACES and text:
            values.setdefault(kind, {})[metric if tags else bare] = number(text)
    if "metric" in cells and "value" in cells:
        values.setdefault(cells.get("kind", ""), {})[cells["metric"]] = number(cells["value"])
    epoch = cells.get("epoch", "")
    at = number(epoch) if epoch else None
    for kind, scores in values.items():
        step = int(number(cells["step"]))
        if kind in ("train", "eval"):
            builder.add(kind, at, step, scores, line)


def _describe(name: str) -> Metric:
    return Metric(name, "eval", direction_of(name) or "none", "fraction" if is_share(name) else "raw")
