"""Tables read through a mapping (`sdtps.config.mapping`): which columns mean what is declared there.

Every column is mentioned, or the file is refused: what is not a metric or a place is in `ignore`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as Cells
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from analysis.importers import names
from analysis.importers.names import Direction, Metric, Unit
from analysis.importers.run import ImportedRun, LogError, RunBuilder, Unread, fraction, number, seed_of
from analysis.importers.table import Records, Table, flat, text_table
from analysis.importers.text import lines
from sdtps.config.mapping import Column, FromPath, Mapping, MetricEntry, Named, Repeat, shipped
from sdtps.system.errors import did_you_mean

_NOTHING = frozenset({"", "-", "--", "n/a", "na", "none", "null"})
_NAMED = 8  # columns that a message names


@dataclass(frozen=True)
class Options:
    """What the command line says about every file."""

    split: str | None = None
    unit: Unit | None = None
    restarts: bool = False
    repeat: Repeat | None = None
    root: Path = Path()  # what was imported: the folder, or the file's own


@dataclass
class Plan:
    """A mapping applied to the columns of one table."""

    epoch: str | None
    step: str | None
    metrics: dict[str, Metric] = field(default_factory=dict)  # by column
    settings: list[str] = field(default_factory=list)
    splits: set[str] = field(default_factory=set)  # that are evaluated
    mistakes: list[str] = field(default_factory=list)


def read(table: Table, mapping: Mapping, options: Options, format_name: str) -> list[ImportedRun]:
    """The runs of a table.

    Raises:
        LogError: what the mapping leaves open, or no row that could be read.
    """
    table = _prepared(table, mapping)
    plan = _plan(table, mapping, options)
    if plan.mistakes:
        told = "\n".join(f"  {text}" for text in dict.fromkeys(plan.mistakes))
        adapt = f"Adapt it: sdtps import LOG --as {format_name} --propose > mapping.yaml"
        hint = f"\n  {adapt}" if format_name in shipped() else ""
        raise LogError(f"{table.path}: the mapping ({format_name}) does not fit:\n{told}{hint}")
    runs: dict[tuple[str, str], _Run] = {}
    readable: dict[str, bool] = {}  # columns, and whether any cell was a number
    carried: dict[str, str] = {}
    for line, cells in table.records():
        carried |= {c: cells[c] for c in mapping.carry if cells.get(c)}
        cells = {**carried, **{k: v for k, v in cells.items() if v}}
        key = (_cell(cells, mapping.variant), _cell(cells, mapping.seed))
        if key not in runs:
            runs[key] = _Run(table, plan, mapping, options, format_name, readable)
        runs[key].add(line, cells)
    if mapping.pattern and len(runs) == 1:
        (run,) = runs.values()
        for text_line in lines(table.content):
            run.builder.follow_traceback(text_line.number, text_line.text, False)
    done = [run.finish(variant, seed) for (variant, seed), run in runs.items() if run.has_rows()]
    if not done:
        raise LogError(f"{table.path}: no row could be read; {len(table.unread)} were not understood")
    for column in (column for column, is_readable in readable.items() if not is_readable):
        said = [u for run in done for u in run.unread if f"'{column}'" in u.reason]
        first = said[0] if said else f"column '{column}' holds no number"
        raise LogError(f"{table.path}: {first} (numbers have a decimal point)")
    done[0].unread += [Unread(line, *told) for line, told in table.unread.items()]
    done[0].notes += table.notes
    if format_name not in shipped():
        absent = [k for k in mapping.metrics if not any(_captured(k, c) for c in table.columns)]
        done[0].notes += [f"none of its columns is '{key}'" for key in absent]
    return done


def _cell(cells: Cells[str, str], column: object) -> str:
    return cells.get(column, "") if isinstance(column, str) else ""


# -- columns --------------------------------------------------------------------------------------


def _prepared(table: Table, mapping: Mapping) -> Table:
    """With the file beside the log, and the columns of `series` as rows of `variant` and metrics."""
    if mapping.settings_file:
        table.document |= _settings(table.path.parent / mapping.settings_file)
    if mapping.series is None:
        return table
    series = {
        column: match
        for column in table.columns
        if not _fits(column, mapping.ignore) and (match := re.fullmatch(mapping.series, column))
    }
    inner = table.records

    def records() -> Records:
        for line, cells in inner():
            rest = {k: v for k, v in cells.items() if k not in series}
            for column, match in series.items():
                if cells.get(column):
                    yield line, {**rest, "variant": match["variant"], match["metric"]: cells[column]}

    metrics = dict.fromkeys(match["metric"] for match in series.values())
    columns = [c for c in table.columns if c not in series]
    return replace(table, records=records, columns=[*columns, "variant", *metrics])


def _settings(path: Path) -> dict[str, str]:
    """Settings as text; an unreadable file is no reason to lose the metrics."""
    try:
        loaded: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return flat({str(k): v for k, v in loaded.items()}) if isinstance(loaded, dict) else {}


def _fits(column: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(column, glob) for glob in globs)


def _plan(table: Table, mapping: Mapping, options: Options) -> Plan:
    plan = Plan(_first(mapping.epoch, table.columns), _first(mapping.step, table.columns))
    if plan.epoch is None and plan.step is None:
        plan.mistakes.append(f"no column counts epochs or steps: none of {_columns(mapping)} is there")
    state = mapping.state.column if mapping.state else None
    wanted: dict[str, object] = {
        **{key: getattr(mapping, key) for key in ("epoch", "step", "split", "variant", "dataset")},
        "state": state,
    }
    held = {k: getattr(mapping, k) for k in ("seed", "epochs_planned", "steps_planned")}
    for key, column in {**wanted, **held}.items():
        beside = table.document if key in held else {}
        if isinstance(column, str) and column not in (*table.columns, *beside, "row"):
            if key in held and (mapping.settings_file or mapping.rows):
                continue  # the file beside the log, or the key in it, may be absent
            hint = did_you_mean(column, table.columns)
            plan.mistakes.append(f"{key}: no column '{column}'. {hint}")
    places = {plan.epoch, plan.step, *wanted.values(), *held.values(), *mapping.carry}
    entries = dict(_entries(table, mapping, places - {None, "row"}, plan))
    plan.splits = {e.split or options.split or "" for e, _ in entries.values()} - {"", "train"}
    if mapping.split:
        plan.splits |= _row_splits(table, mapping.split, plan)
    for column, (entry, name) in entries.items():
        _describe(column, entry, name, mapping, options, plan)
    seen: dict[tuple[str, str], str] = {}
    for column, metric in plan.metrics.items():
        other = seen.setdefault((metric.split, metric.name), column)
        if other != column:
            plan.mistakes.append(
                f"columns '{other}' and '{column}' are both called {metric.name}: name one with `as`"
            )
    if not plan.metrics and not plan.mistakes:
        plan.mistakes.append(f"none of its metrics is there. Columns: {_listed(table.columns)}")
    return plan


def _first(column: Column, columns: Iterable[str]) -> str | None:
    if isinstance(column, tuple):
        return next((name for name in column if name in columns), None)
    return column


def _columns(mapping: Mapping) -> str:
    named = [*_each(mapping.epoch), *_each(mapping.step)]
    return ", ".join(map(repr, named))


def _each(column: Column) -> tuple[str, ...]:
    return column if isinstance(column, tuple) else (column,) if column else ()


def _entries(
    table: Table, mapping: Mapping, places: Iterable[object], plan: Plan
) -> Iterator[tuple[str, tuple[MetricEntry, str]]]:
    """Each column of a metric with its entry and name; one that nothing mentions is a mistake."""
    skipped = {*places, *_each(mapping.epoch), *_each(mapping.step)}
    unmentioned = []
    for column in table.columns:
        if column in skipped or _fits(column, mapping.ignore):
            continue
        keys = [column] if column in mapping.metrics else mapping.metrics
        key = next((key for key in keys if _captured(key, column)), None)
        if key is not None:
            entry = mapping.metrics[key]
            name = (entry.as_ or "*").replace("*", _captured(key, column) or "")
            name = names.spelled(name)
            if "*" in key and names.direction_of(name) and not names.is_share(name):
                entry = entry.model_copy(update={"unit": "raw"})  # `val_*: {unit: percent}`, a loss
            yield column, (entry, name)
        elif _fits(column, mapping.settings):
            plan.settings.append(column)
        else:
            unmentioned.append(column)
    if unmentioned:
        plan.mistakes.append(
            f"columns that it does not mention: {_listed(unmentioned)}. Each belongs under metrics, is "
            "a place (split, variant, seed, dataset), or goes into ignore"
        )


def _captured(key: str, column: str) -> str | None:
    """What `*` of a key stands for in a column; the column itself where they are the same."""
    if key == column:
        return column
    before, star, after = key.partition("*")
    fits = column.startswith(before) and column.endswith(after)
    return column[len(before) : len(column) - len(after)] or None if star and fits else None


def _listed(columns: Iterable[str]) -> str:
    shown = [f"'{column}'" for column in columns]
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return ", ".join(shown[:_NAMED]) + more


def _row_splits(table: Table, column: str, plan: Plan) -> set[str]:
    words = {cells[column] for _, cells in table.records() if cells.get(column)}
    for word in sorted(words):
        if word.lower() not in names.SPLITS:
            plan.mistakes.append(f"column '{column}': '{word}' is no split: {', '.join(names.SPLITS)}")
    return {names.SPLITS.get(word.lower(), "train") for word in words} - {"train"}


def _describe(
    column: str, entry: MetricEntry, name: str, mapping: Mapping, options: Options, plan: Plan
) -> None:
    """What a column's metric is, or a mistake for what nothing says."""
    split = entry.split or ("row" if mapping.split else options.split)
    if split == "train":
        plan.metrics[column] = Metric(name, split, "none", entry.unit or "raw")
        return
    direction: Direction | None = entry.direction or names.direction_of(name)
    unit: Unit | None = entry.unit
    if unit is None:
        as_printed = names.direction_of(name) is not None and not names.is_share(name)
        unit = "raw" if as_printed else options.unit
    asked = {
        "split (train, val, test, eval)": split,
        "direction (up, down, none)": direction,
        "unit (percent, fraction, raw)": unit,
    }
    if missing := [word for word, value in asked.items() if value is None]:
        plan.mistakes.append(f"column '{column}': say its {', '.join(missing)}")
    if split and direction and unit:
        name = name if split == "row" else _with_split(name, split, plan)
        plan.metrics[column] = Metric(name, split, direction, unit)


def _with_split(name: str, split: str, plan: Plan) -> str:
    """An evaluated metric's name: with its split where several are evaluated, and for a loss."""
    alone = len(plan.splits) < 2 and name != "loss"
    return name if alone or name.startswith(f"{split}_") else f"{split}_{name}"


# -- rows -----------------------------------------------------------------------------------------


class _Run:
    """One run of a table, row by row."""

    def __init__(
        self,
        table: Table,
        plan: Plan,
        mapping: Mapping,
        options: Options,
        format_name: str,
        readable: dict[str, bool],
    ) -> None:
        self.table, self.plan, self.mapping, self.options = table, plan, mapping, options
        self.readable = readable
        self.builder = RunBuilder(
            table.path,
            table.content,
            format_name,
            restarts=mapping.restarts or options.restarts,
            repeat=options.repeat or mapping.repeat,
            apart=True,
        )
        self.headers, self.count = 0, 0
        self.offset, self.most, self.epoch = 0, 0, -1.0
        self.at: tuple[float | None, int] = (None, 0)  # the last place of training or its evaluation
        self.last_cells: Cells[str, str] = {}
        self.config: dict[str, str] = {}
        self.datasets: list[str] = []
        self.fractions, self.trains_epoch_0 = 0, False

    def has_rows(self) -> bool:
        return bool(self.builder.rows) or self.mapping.state is not None

    def add(self, line: int, cells: Cells[str, str]) -> None:
        """Take one row."""
        self.count += 1
        headers = sum(at < line for at in self.table.headers_again)
        if headers > self.headers:
            self.builder.restart(line)
        self.headers = headers
        self.last_cells = {**self.last_cells, **cells}
        self.config |= {c: cells[c] for c in self.plan.settings if cells.get(c)}
        row_split = names.SPLITS.get(_cell(cells, self.mapping.split).lower())
        values: dict[str, dict[str, float]] = {}
        for column, metric in self.plan.metrics.items():
            split = metric.split if metric.split != "row" else row_split
            if (text := cells.get(column, "")).lower() in _NOTHING or split is None:
                continue
            try:
                value = fraction(text) if metric.unit == "percent" else number(text.rstrip("%"))
            except ValueError:
                self.builder.cannot_read(line, text, f"column '{column}' holds no number")
                self.readable.setdefault(column, False)
                continue
            self.readable[column] = True
            most = 6.0 if metric.name.endswith("rsum") else 1.0  # rsum is the sum of six
            if metric.unit == "fraction" and most < value < float("inf"):
                raise LogError(
                    f"{self.table.path}: line {line}: column '{column}' holds {text}, no fraction: "
                    "say `unit: percent` or `raw`"
                )
            values.setdefault(split, {})[self._name(metric, split, cells)] = value
        late = bool(values) and set(values) == {self.mapping.after_training}
        if not values:
            return
        try:
            epoch, step = self.at if late else self._place(cells)
        except ValueError as error:
            self.builder.cannot_read(line, ",".join(cells.values()), str(error))
            return
        if not late:
            self.at = (epoch, max(step, self.at[1]))
            self.fractions += epoch is not None and epoch != int(epoch)
            self.trains_epoch_0 |= epoch == 0 and "train" in values
        for split, scores in values.items():
            if split == "train":
                self.builder.train(epoch, step, line, **scores)
            else:
                self.builder.evaluation(epoch, step, scores, line)

    def _name(self, metric: Metric, split: str, cells: Cells[str, str]) -> str:
        """The metric's name, with its split where several are evaluated, and with `/DATASET` for a
        second data set and all later ones."""
        if split == "train":
            return metric.name
        name = _with_split(metric.name, split, self.plan)
        if dataset := _cell(cells, self.mapping.dataset):
            if dataset not in self.datasets:
                self.datasets.append(dataset)
            name += "" if dataset == self.datasets[0] else f"/{dataset}"
        self.builder.metrics.setdefault(name, replace(metric, name=name, split=split))
        return name

    def _place(self, cells: Cells[str, str]) -> tuple[float | None, int]:
        """(epoch, step) counted from 1; the step of a row that has none is that of the row before."""
        plan, mapping = self.plan, self.mapping
        epoch = _count(_cell(cells, plan.epoch), 1 - mapping.epoch_from)
        if plan.step is None:
            if epoch is None:
                raise ValueError("no epoch")
            if epoch != int(epoch):
                raise LogError(
                    f"{self.table.path}: epoch {epoch:g} is a fraction: say in the mapping which "
                    "column counts steps (`step: row` counts the rows)"
                )
            return epoch, int(epoch)
        if plan.step == "row":
            return epoch, self.count
        step = _count(_cell(cells, plan.step), 1 - mapping.step_from)
        if step is None:
            if epoch is None:
                raise ValueError("neither step nor epoch")
            return epoch, self.at[1]
        if mapping.step_within == "epoch" and epoch is not None:
            if epoch != self.epoch:
                self.offset, self.epoch = self.most, epoch
            step += self.offset
        self.most = max(self.most, int(step))
        return epoch, int(step)

    def finish(self, variant: str, seed: str) -> ImportedRun:
        """The run, after its last row."""
        mapping, builder, path = self.mapping, self.builder, self.table.path
        if self.trains_epoch_0 and not self.fractions:
            raise LogError(f"{path}: epoch 0 is trained: say `epoch_from: 0` in the mapping")
        builder.rows.sort(key=lambda row: row["step"])
        epochs, steps = (
            self._length(length) for length in (mapping.epochs_planned, mapping.steps_planned)
        )
        facts: dict[str, Any] = {"dataset": self.datasets[0] if self.datasets else ""}
        if isinstance(mapping.dataset, Named):
            facts["dataset"] = mapping.dataset.name
        if seconds := self.table.document.get("train_seconds"):
            facts["train_seconds"] = number(seconds)
        if self.fractions:
            builder.notes.append(
                f"{self.fractions} rows are in the middle of an epoch; their step says where"
            )
        if isinstance(mapping.variant, FromPath):
            variant = _folder(path, self.options.root, mapping.variant.path)
        elif isinstance(mapping.variant, Named):
            variant = mapping.variant.name
        run = builder.finish(
            variant=variant,
            epochs_planned=epochs,
            finished=self.at[1] >= steps if steps else None,
            select=mapping.select,
            seed=self._seed(seed),
            config=self.config if not mapping.settings_file else self.table.document,
            facts=facts,
        )
        if mapping.state:
            word = _cell(self.last_cells, mapping.state.column)
            run.state = mapping.state.words.get(word.lower(), "incomplete")  # type: ignore[assignment]
            run.reason = "" if run.state == "completed" else f"{mapping.state.column} says {word}"
            run.failure = "error" if run.state == "failed" else ""
        return run

    def _length(self, length: int | str | None) -> int | None:
        """A planned number of epochs or steps: as it stands, from a column, or from beside the rows."""
        if not isinstance(length, str):
            return length
        text = self.last_cells.get(length) or self.table.document.get(length, "")
        try:
            value = _count(text, 0)
        except ValueError:
            return None
        return int(value) if value else None

    def _seed(self, cell: str) -> int | None:
        seed, path = self.mapping.seed, self.table.path
        if isinstance(seed, FromPath):
            folder = _folder(path, self.options.root, seed.path)
            if (digits := re.search(r"\d+", folder)) is None:
                raise LogError(f"{path}: seed: {{path: {seed.path}}}: '{folder}' holds no number")
            return int(digits.group())
        if isinstance(seed, str):
            return seed_of((cell or self.table.document.get(seed, "")).removesuffix(".0"))
        return seed


def _count(text: str, offset: int) -> float | None:
    """An epoch or step; whole numbers as int."""
    if text.strip().lower() in _NOTHING:
        return None
    value = number(text)
    if not 0 <= value < 2**53:
        raise ValueError(f"'{text}' is no epoch or step")
    return (int(value) if value == int(value) else value) + offset


def _folder(path: Path, root: Path, position: int) -> str:
    """The folder at `position` below `root` on the way to `path`. Raises LogError: it is shorter."""
    parts = path.relative_to(root).parts[:-1] if path.is_relative_to(root) else ()
    if position > len(parts):
        raise LogError(
            f"{path}: path: {position}: only {len(parts)} folders lie between {root} and the file"
        )
    return parts[position - 1]


# -- a proposal -----------------------------------------------------------------------------------

_PLACES = {
    "epoch": ("epoch", "epochs"),
    "step": ("step", "global_step", "iteration", "iter", "_step"),
    "split": ("split", "phase"),
    "variant": ("variant", "method"),
    "seed": ("seed",),
    "dataset": ("dataset",),
}


def propose(table: Table) -> str:
    """A mapping for a table, to be looked at; `?` where the known names do not say enough."""
    lowered = {name.lower(): name for name in reversed(table.columns)}
    places = {
        key: next((lowered[word] for word in words if word in lowered), None)
        for key, words in _PLACES.items()
    }
    lines = ["# Look at every line; replace every question mark. Then: sdtps import LOG --as THIS_FILE"]
    lines += [f"{key}: {_quoted(column)}" for key, column in places.items() if column]
    if not (places["epoch"] or places["step"]):
        lines.append("step: '?'  # a column, or row to count the rows")
    lines.append("# epoch_from: 0     # where the first epoch is number 0")
    lines.append("# select: mAP max   # what chose the best epoch")
    metrics: list[str] = []
    ignored: list[str] = []
    taken: set[tuple[str | None, str]] = set()
    split_names = [names.split_of(column) for column in table.columns]
    evaluated = {names.spelled(rest) for split, rest in split_names if split not in (None, "train")}
    for column in table.columns:
        if column in places.values():
            continue
        if not any(_is_number(cells.get(column, "")) for _, cells in table.records()):
            ignored.append(column)
            continue
        split, rest = names.split_of(column)
        name = names.spelled(rest)
        if split is None and not places["split"] and name in evaluated:
            split = "train"  # accuracy beside val_accuracy
        if any(n == name and (split == s or None in (split, s)) for s, n in taken):
            name = column
        taken.add((split, name))
        told = {"as": name} | ({} if split is None and places["split"] else {"split": split or "?"})
        if split != "train":
            told["direction"] = names.direction_of(name) or "?"
            told["unit"] = "?" if names.is_share(name) or told["direction"] == "?" else "raw"
        metrics.append(
            f"  {_quoted(column)}: {{{', '.join(f'{k}: {_quoted(v)}' for k, v in told.items())}}}"
        )
    lines += ["metrics:" if metrics else "metrics: {}", *metrics]
    if ignored:
        lines.append(f"ignore: [{', '.join(map(_quoted, ignored))}]  # no numbers in them")
    return "\n".join(lines) + "\n"


def _is_number(text: str) -> bool:
    try:
        number(text.rstrip("%"))
    except ValueError:
        return False
    return True


def _quoted(text: str) -> str:
    if re.fullmatch(r"[A-Za-z_][\w\-]*", text) and text.lower() not in ("null", "true", "false", "on"):
        return text
    return "'" + text.replace("'", "''") + "'"


def propose_pattern(path: Path, content: bytes) -> str:
    """A mapping for lines of text: the pattern is that of the most frequent kind of line with numbers.

    Raises:
        LogError: no line has a word and a number after it.
    """
    shapes = Counter(
        shape for line in lines(content) if "(?P<" in (shape := _shape(line.text))
    ).most_common(1)
    if not shapes:
        raise LogError(f"{path}: no table, and no line with a word and a number after it")
    pattern = shapes[0][0]
    text = propose(text_table(path, content, (pattern,)))
    first, _, rest = text.partition("\n")
    return f"{first}\npattern: {_quoted(pattern)}\n{rest}"


def _shape(text: str) -> str:
    """A line as a pattern: each word before a number names its group."""
    names_taken: set[str] = set()

    def group(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        if name in names_taken or not name.isidentifier():
            return re.escape(match[0])
        names_taken.add(name)
        return f"{re.escape(match[1])}{re.escape(match[2])}(?P<{name}>{_NUMBER})"

    parts = []
    end = 0
    for match in re.finditer(rf"([A-Za-z_][\w-]*)([\s:=\[]+)({_NUMBER})", text):
        parts += [".*?" if end else "", group(match)]
        end = match.end()
    return "".join(parts)


_NUMBER = r"[-+]?(?:\d[\d.eE+-]*|nan|inf)"
