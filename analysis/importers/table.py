"""Tables: CSV (comma, semicolon or tab) and JSON lines, one or several runs in a file.

Three things say what the columns mean, in this order: a mapping that somebody wrote, the rules of a
program that is recognised by its columns (`analysis.importers.families`), and names that say enough by
themselves, such as `val_mAP (%)`. What remains open is asked for; nothing is guessed.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.importers.mapping import Mapping, Plan
from analysis.importers.metrics import Unit, known, separate, split_of, split_word
from analysis.importers.run import (
    ImportedRun,
    LogError,
    RunBuilder,
    Unread,
    fraction,
    is_number,
    number,
)
from analysis.importers.text import clean, decode, split_lines

Cells = MappingType[str, str]
Records = Iterator[tuple[int, Cells]]  # 1-based line, printed cells by column

_PLACES = {
    "epoch": ("epoch", "epochs"),
    "step": ("step", "steps", "iteration", "iter", "it", "global_step", "train/global_step"),
    "split": ("split", "phase", "kind", "mode"),
    "variant": ("variant", "method"),
    "seed": ("seed",),
    "attempt": ("attempt",),
}  # fmt: skip
_IGNORED = re.compile(
    r"^(?:|index|unnamed: 0|time|timestamp|wall_?time|date|nonfinite|_?runtime|_timestamp|_step|"
    r"total_steps|elapsed_time|remaining_time|percentage|.*_(?:runtime|per_second|per_sec)|total_flos|gpu.*|.*memory.*|"
    r"eta|hp_metric)$",
    re.IGNORECASE,
)
_NOTHING = frozenset({"", "-", "--", "n/a", "na", "none", "null"})
_DECIMAL_COMMA = re.compile(r"^[-+]?\d+,\d+\s*%?$")


@dataclass
class Column:
    """What the cells of one column look like."""

    name: str
    numbers: int = 0
    texts: int = 0
    most: float = -math.inf
    least: float = math.inf
    whole: bool = True  # no number has a fraction
    per_cent: bool = False
    commas: int = 0  # cells such as 0,5
    first_comma: tuple[int, str] = (0, "")

    def see(self, line: int, text: str) -> None:
        bare = text.rstrip("%").rstrip() if text.endswith("%") else text
        try:
            value = float(bare)
        except ValueError:
            self.texts += 1
            if _DECIMAL_COMMA.match(text):
                self.first_comma = self.first_comma if self.commas else (line, text)
                self.commas += 1
            return
        self.numbers += 1
        self.per_cent |= bare is not text
        if math.isfinite(value):
            self.most, self.least = max(self.most, value), min(self.least, value)
            self.whole = self.whole and value == int(value)


@dataclass
class Table:
    """A file as named columns whose rows can be gone through again and again."""

    path: Path
    content: bytes
    format: str
    records: Callable[[], Records]
    columns: dict[str, Column] = field(default_factory=dict)
    unread: dict[int, tuple[str, str]] = field(default_factory=dict)  # line -> text, reason
    headers_again: set[int] = field(default_factory=set)  # lines that repeat the header: a new start

    def profile(self) -> None:
        """Go through the rows once and learn what each column holds."""
        for line, cells in self.records():
            for name, text in cells.items():
                column = self.columns.get(name)
                if column is None:
                    column = self.columns[name] = Column(name)
                if text.lower() not in _NOTHING:
                    column.see(line, text)


# -- files ----------------------------------------------------------------------------------------


def open_csv(path: Path, content: bytes) -> Table:
    """A CSV file. Raises LogError where it has no header, or two columns of one name."""
    text = decode(content)
    first = next((line for line in split_lines(text) if line.strip()), "")
    delimiter = max(",\t;", key=first.count)

    def rows() -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(split_lines(text), delimiter=delimiter)
        try:
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    yield reader.line_num, cells
        except csv.Error as error:
            raise LogError(f"{path}: line {reader.line_num}: {error}") from None

    start = next(rows(), None)
    if start is None:
        raise LogError(f"{path}: empty")
    header = [clean(cell).strip().removeprefix("# ") for cell in start[1]]
    if twice := sorted({name for name in header if name and header.count(name) > 1}):
        raise LogError(f"{path}: line {start[0]}: two columns named {', '.join(twice)}")

    def records() -> Records:
        for line, cells in rows():
            if line == start[0]:
                continue
            stripped = [clean(cell).strip() for cell in cells]
            if stripped == header:  # a logger that was started again wrote its header again
                table.headers_again.add(line)
            elif len(cells) != len(header):
                found = f"{len(cells)} cell{'s' * (len(cells) != 1)} under {len(header)} columns"
                table.unread[line] = (",".join(cells), found)
            else:
                yield line, dict(zip(header, stripped, strict=True))

    table = Table(path, content, "csv", records)
    table.columns = {name: Column(name) for name in header}
    table.profile()
    if commas := [c for c in table.columns.values() if c.commas and not c.numbers]:
        told = "; ".join(
            f"line {c.first_comma[0]}: column '{c.name}' holds '{c.first_comma[1]}'" for c in commas
        )
        raise LogError(f"{path}: {told}: write numbers with a decimal point")
    return table


def open_json_lines(path: Path, content: bytes) -> Table:
    """A file with one JSON object a line; nested objects become `outer/inner`."""
    text = decode(content)

    def records() -> Records:
        for line, raw in enumerate(split_lines(text), start=1):
            if not raw.strip():
                continue
            value = json_object(raw)
            if value is None:
                table.unread[line] = (raw.strip(), "not a JSON object")
            else:
                yield line, dict(_flat(value))

    table = Table(path, content, "jsonl", records)
    table.profile()
    return table


def json_object(text: str) -> dict[str, Any] | None:
    """A line's JSON object, or None where it is something else."""
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _flat(value: MappingType[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    cells = []
    for key, inner in value.items():
        if isinstance(inner, dict):
            cells += _flat(inner, f"{prefix}{key}/")
        elif inner is not None and not isinstance(inner, list | bool):
            cells.append((f"{prefix}{key}", inner if isinstance(inner, str) else repr(inner)))
    nonfinite = value.get("nonfinite")
    if not prefix and isinstance(
        nonfinite, dict
    ):  # our own metrics.jsonl: null, and the word beside it
        cells += [(str(key), str(word)) for key, word in nonfinite.items()]
    return cells


def cell(cells: Cells, column: str | None) -> str:
    """The cell of a column that may not be there."""
    return cells.get(column, "") if column is not None else ""


def long_to_wide(table: Table) -> Table:
    """A table with the columns `metric` and `value` as one with a column for each metric."""
    names = {name.lower(): name for name in table.columns}
    metric, value = names.get("metric") or names.get("tag"), names.get("value")
    if not (metric and value):
        return table
    inner = table.records

    def records() -> Records:
        for line, cells in inner():
            rest = {k: v for k, v in cells.items() if k not in (metric, value)}
            yield line, {**rest, cells.get(metric, ""): cells.get(value, "")}

    wide = replace(table, records=records, columns={})
    wide.profile()
    return wide


# -- what the columns mean ------------------------------------------------------------------------


def infer(table: Table) -> Plan:
    """What names and values tell by themselves; the rest stands in `Plan.questions` after `ask`."""
    plan = Plan()
    lowered = {name.lower(): name for name in table.columns}
    for place, words in _PLACES.items():
        found = next((lowered[word] for word in words if word in lowered), None)
        setattr(plan, place, found)
    taken = {plan.epoch, plan.step, plan.split, plan.variant, plan.seed, plan.attempt}
    metrics = {}
    for name, column in table.columns.items():
        if name in taken or _IGNORED.match(name) or (split_of(name) and _IGNORED.match(_bare(name))):
            continue
        if column.numbers and column.texts >= column.numbers:
            plan.notes.append(f"column '{name}' is mostly text and was not read")
        elif column.numbers:  # single cells that hold no number are told, each with its line
            by_row = plan.split is not None
            metrics[name] = known(name, column.most, column.per_cent, by_row=by_row)
    plan.metrics = metrics if plan.split else separate(metrics)
    count_from(plan, table)
    return plan


def _bare(name: str) -> str:
    return re.split(r"[_/.\-]", name, maxsplit=1)[-1]


def count_from(plan: Plan, table: Table) -> None:
    """Epochs count from 0 where number 0 is trained; one that is only evaluated is none."""
    epochs = table.columns.get(plan.epoch) if plan.epoch is not None else None
    if epochs is None or not epochs.numbers or epochs.least != 0 or not epochs.whole:
        return
    trained = [c for c, m in plan.metrics.items() if m.split == "train"]
    for _, cells in table.records():
        if cells.get(epochs.name, "").strip() in ("0", "0.0") and any(
            cells.get(c, "") for c in trained
        ):
            plan.epoch_from = 0
            return


def steps_start_again(plan: Plan, table: Table) -> bool:
    """Whether the step column counts within each epoch: it goes back only where the epoch goes on."""
    if not (plan.epoch and plan.step) or plan.step == "row":
        return False
    last: dict[tuple[str, str], tuple[float, float]] = {}
    resets = 0
    for _, cells in table.records():
        key = (cell(cells, plan.variant), cell(cells, plan.seed))
        try:
            epoch, step = number(cells[plan.epoch]), number(cells[plan.step])
        except (KeyError, ValueError):
            continue
        if key in last and step < last[key][1]:
            if epoch <= last[key][0]:
                return False
            resets += 1
        last[key] = (epoch, step)
    return resets > 0


# -- runs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """What the command line says about every file."""

    split: str | None = None
    unit: Unit | None = None
    restarts: bool = False
    mapping: Mapping | None = None
    root: Path = Path()  # what was imported: the folder, or the file's own


def answer(plan: Plan, options: Options) -> None:
    """Fill in what the command line says, where nothing else does."""
    for column, metric in plan.metrics.items():
        if metric.split is None and options.split and plan.split is None:
            metric = replace(metric, split=options.split)
        if metric.unit == "unknown" and options.unit:
            metric = replace(metric, unit=options.unit)
        plan.metrics[column] = metric
    plan.restarts = plan.restarts or options.restarts


def refuse_open_questions(plan: Plan, path: Path) -> None:
    """Raises LogError with every question that nothing answers."""
    if plan.questions:
        raise LogError(
            f"{path}: cannot be told:\n"
            + "\n".join(f"  {question}" for question in dict.fromkeys(plan.questions))
            + f"\n  Say it in a mapping: import {path.name} --propose > mapping.yaml, complete "
            "it, then import --mapping mapping.yaml (or say --split and --unit for all columns)"
        )


def read(table: Table, plan: Plan, options: Options, format_name: str) -> list[ImportedRun]:
    """The runs of a table.

    Raises:
        LogError: questions that are open, or no row that could be read.
    """
    answer(plan, options)
    if plan.split is not None:
        plan.questions += _words_of(table, plan.split)
    if not (plan.epoch or plan.step):
        plan.questions.append("which column counts epochs or steps (`step: row` counts the rows)")
    plan.ask()
    if not plan.metrics:
        raise LogError(f"{table.path}: no column holds numbers; columns: {', '.join(table.columns)}")
    refuse_open_questions(plan, table.path)
    plan.step_within_epoch = plan.step_within_epoch or steps_start_again(plan, table)
    builders: dict[tuple[str, str], _TableRun] = {}
    for position, (line, cells) in enumerate(table.records()):
        key = (cell(cells, plan.variant), cell(cells, plan.seed))
        if key not in builders:
            builders[key] = _TableRun(table, plan, format_name)
        builders[key].add(position, line, cells)
    runs = []
    for (variant, seed), table_run in builders.items():
        if table_run.builder.rows:
            runs.append(table_run.finish(variant, seed))
    if not runs:
        raise LogError(f"{table.path}: no row could be read; {len(table.unread)} were not understood")
    runs[0].unread += [Unread(line, *told) for line, told in table.unread.items()]
    runs[0].notes += plan.notes
    for run in runs:
        if plan.variant_path:
            run.variant = _folder(table.path, options.root, plan.variant_path)
        if plan.seed_path:
            digits = re.search(r"\d+", name := _folder(table.path, options.root, plan.seed_path))
            if digits is None:
                raise LogError(
                    f"{table.path}: seed: {{path: {plan.seed_path}}}: '{name}' holds no number"
                )
            run.seed = int(digits.group())
    return runs


def _folder(path: Path, root: Path, position: int) -> str:
    """The folder at `position` below `root` on the way to `path`.

    Raises:
        LogError: the path is shorter.
    """
    parts = path.relative_to(root).parts[:-1] if path.is_relative_to(root) else ()
    if position > len(parts):
        raise LogError(
            f"{path}: path: {position}: only {len(parts)} folders lie between {root} and the file"
        )
    return parts[position - 1]


def _words_of(table: Table, column: str) -> list[str]:
    """Questions about words of the split column that name no split."""
    words = {cells.get(column, "") for _, cells in table.records()}
    odd = sorted(word for word in words if word and split_word(word) is None and word != "event")
    return [f"column '{column}': what '{word}' is (train, val, test or eval)" for word in odd[:5]]


class _TableRun:
    """One run of a table, row by row."""

    def __init__(self, table: Table, plan: Plan, format_name: str) -> None:
        self.table, self.plan = table, plan
        self.builder = RunBuilder(table.path, table.content, format_name, restarts=plan.restarts)
        self.attempt = ""
        self.headers = 0
        self.offset, self.most, self.epoch = 0, 0, -1
        self.planned_steps = 0
        self.last_step = 0

    def add(self, position: int, line: int, cells: Cells) -> None:
        plan = self.plan
        again = sum(at < line for at in self.table.headers_again)
        attempt = cell(cells, plan.attempt)
        if again > self.headers or (self.attempt and attempt and attempt != self.attempt):
            self.builder.restart(line)
        self.headers, self.attempt = again, attempt or self.attempt
        try:
            epoch, step = self._place(position, cells)
        except ValueError as error:
            self.builder.cannot_read(line, ",".join(cells.values()), str(error))
            return
        if plan.steps_planned and is_number(cells.get(plan.steps_planned, "")):
            self.planned_steps = int(number(cells[plan.steps_planned]))
        row_split = split_word(cell(cells, plan.split)) if plan.split else None
        values: dict[str, dict[str, float]] = {"train": {}, "eval": {}}
        for column, metric in plan.metrics.items():
            text = cells.get(column, "")
            if text.lower() in _NOTHING:
                continue
            split = metric.split if metric.split != "row" else row_split
            if split is None:
                continue
            try:
                value = fraction(text) if metric.unit == "percent" else number(text.rstrip("%"))
            except ValueError:
                self.builder.cannot_read(line, text, f"column '{column}' holds no number")
                continue
            name = metric.name
            if split != "train":
                known_as = self.builder.metrics.setdefault(name, replace(metric, split=split))
                if known_as.split != split:
                    name = f"{split}_{name}"
                    self.builder.metrics.setdefault(name, replace(metric, name=name, split=split))
            values["train" if split == "train" else "eval"][name] = value
        if values["train"]:
            self.builder.train(epoch, step, line, **values["train"])
        if values["eval"]:
            self.builder.evaluation(epoch, step, values["eval"], line)
        self.last_step = max(self.last_step, step)

    def _place(self, position: int, cells: Cells) -> tuple[int, int]:
        plan = self.plan
        epoch = _whole(cell(cells, plan.epoch), 1 - plan.epoch_from)
        step = (
            position + 1 if plan.step == "row" else _whole(cell(cells, plan.step), 1 - plan.step_from)
        )
        if step is None and plan.step and epoch is None:
            raise ValueError("neither step nor epoch")
        if epoch is None:
            epoch = step
        if step is None:
            step = self.last_step if plan.step else epoch
        elif plan.step_within_epoch and epoch is not None:
            if epoch != self.epoch:
                self.offset, self.epoch = self.most, epoch
            step += self.offset
        self.most = max(self.most, step or 0)
        return int(epoch or 0), int(step or 0)

    def finish(self, variant: str, seed: str) -> ImportedRun:
        plan = self.plan
        facts: dict[str, Any] = {}
        finished = None
        if self.planned_steps:
            finished = self.last_step >= self.planned_steps
            facts["steps_planned"] = self.planned_steps
        if plan.epoch is None:
            facts["epochs"] = None  # the table counts in steps
        return self.builder.finish(
            variant=variant or plan.variant_name,
            epochs_planned=plan.epochs_planned,
            finished=finished,
            select=plan.select,
            seed=int(number(seed)) if is_number(seed) else plan.seed_value,
            facts=facts,
        )


def _whole(text: str, offset: int) -> int | None:
    """An epoch or step; a fraction of an epoch belongs to the epoch that it is part of."""
    if text.strip().lower() in _NOTHING:
        return None
    value = number(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"'{text}' is no epoch or step")
    return math.ceil(value) + offset
