"""Tables read through a mapping (`sdtps.config.mapping`): which columns mean what is declared there.

Every column is mentioned, or the file is refused: what is not a metric or a place is in `ignore`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as Cells
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from analysis.importers import names
from analysis.importers.names import Direction, Metric, Unit
from analysis.importers.run import ImportedRun, LogError, RunBuilder, Unread, fraction, number, seed_of
from analysis.importers.table import Records, Table, flat
from analysis.importers.text import lines
from sdtps.config.mapping import Column, FromPath, Mapping, MetricEntry, Named, Repeat, shipped
from sdtps.system.errors import did_you_mean

_NOTHING = frozenset({"", "-", "--", "n/a", "na", "none", "null"})
_NAMED = 8  # columns that a message names


@dataclass(frozen=True)
class Options:
    """How files are read: as one format, or by a mapping; neither: recognised by their content."""

    split: str | None = None
    unit: Unit | None = None
    restarts: bool = False
    repeat: Repeat | None = None
    root: Path = Path()  # what was imported: the folder, or the file's own
    format: str | None = None
    mapping: Mapping | None = None
    name: str = ""  # of the mapping


def read(table: Table, mapping: Mapping, options: Options) -> list[ImportedRun]:
    """The runs of a table.

    Raises:
        LogError: what the mapping leaves open, or no row that could be read.
    """
    plan, format_name = _Plan(_prepared(table, mapping), mapping, options), options.name
    table = plan.table
    if plan.mistakes:
        told = "\n".join(f"  {text}" for text in dict.fromkeys(plan.mistakes))
        adapt = f"Adapt it: sdtps import LOG --as {format_name} --propose > mapping.yaml"
        hint = f"\n  {adapt}" if format_name in shipped() else ""
        raise LogError(f"{table.path}: the mapping ({format_name}) does not fit:\n{told}{hint}")
    runs: dict[tuple[str, str], _Run] = {}
    carried: dict[str, str] = {}
    for line, cells in table.records():
        carried |= {c: cells[c] for c in mapping.carry if cells.get(c)}
        cells = {**carried, **{k: v for k, v in cells.items() if v}}
        key = (_cell(cells, mapping.variant), _cell(cells, mapping.seed))
        if key not in runs:
            runs[key] = _Run(plan)
        runs[key].add(line, cells)
    if mapping.pattern and len(runs) == 1:
        (run,) = runs.values()
        for text_line in lines(table.content):
            run.builder.follow_traceback(text_line.number, text_line.text, False)
    done = [run.finish(*key) for key, run in runs.items() if run.builder.rows or mapping.state]
    if not done:
        raise LogError(f"{table.path}: no row could be read; {len(table.unread)} were not understood")
    for column in (column for column, is_readable in plan.readable.items() if not is_readable):
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


class _Plan:
    """A mapping applied to the columns of one table: what each means, and the mapping's mistakes.

    Attributes:
        metrics: by column. splits: that are evaluated.
        readable: columns, and whether any cell was a number.
    """

    def __init__(self, table: Table, mapping: Mapping, options: Options) -> None:
        self.table, self.mapping, self.options = table, mapping, options
        self.metrics: dict[str, Metric] = {}
        self.settings: list[str] = []
        self.mistakes: list[str] = []
        self.readable: dict[str, bool] = {}
        self.epoch, self.step = (_first(c, table.columns) for c in (mapping.epoch, mapping.step))
        if self.epoch is None and self.step is None:
            named = ", ".join(map(repr, [*_each(mapping.epoch), *_each(mapping.step)]))
            self.mistakes.append(f"no column counts epochs or steps: none of {named} is there")
        entries = dict(self._entries(self._places()))
        self.splits = {e.split or options.split or "" for e, _ in entries.values()} - {"", "train"}
        if mapping.split:
            self._row_splits(mapping.split)
        for column, (entry, name) in entries.items():
            self._describe(column, entry, name)
        seen: dict[tuple[str, str], str] = {}
        for column, metric in self.metrics.items():
            other = seen.setdefault((metric.split, metric.name), column)
            if other != column:
                both = f"columns '{other}' and '{column}' are both called {metric.name}"
                self.mistakes.append(f"{both}: name one with `as`")
        if not self.metrics and not self.mistakes:
            listed = _listed(table.columns)
            self.mistakes.append(f"none of its metrics is there. Columns: {listed}")

    def _places(self) -> set[object]:
        """The columns that say where a row belongs; one that is not there is a mistake."""
        mapping, columns = self.mapping, self.table.columns
        keys = (
            "epoch",
            "step",
            "split",
            "variant",
            "dataset",
            "seed",
            "epochs_planned",
            "steps_planned",
        )
        wanted: dict[str, object] = {key: getattr(mapping, key) for key in keys}
        wanted["state"] = mapping.state.column if mapping.state else None
        for key, column in wanted.items():
            if not isinstance(column, str) or column in (*columns, "row"):
                continue
            # The file beside the log, or the key in it, may be absent.
            beside = column in self.table.document or mapping.settings_file or mapping.rows
            if not (key in ("seed", "epochs_planned", "steps_planned") and beside):
                self.mistakes.append(f"{key}: no column '{column}'. {did_you_mean(column, columns)}")
        named = {*_each(mapping.epoch), *_each(mapping.step), *wanted.values(), *mapping.carry}
        return named - {None, "row"}

    def _entries(self, places: Iterable[object]) -> Iterator[tuple[str, tuple[MetricEntry, str]]]:
        """Each column of a metric with its entry and name; one that nothing mentions is a mistake."""
        metrics = self.mapping.metrics
        unmentioned = []
        for column in self.table.columns:
            if column in places or _fits(column, self.mapping.ignore):
                continue
            keys = [column] if column in metrics else metrics
            key = next((key for key in keys if _captured(key, column)), None)
            if key is not None:
                entry = metrics[key]
                name = (entry.as_ or "*").replace("*", _captured(key, column) or "")
                name = names.spelled(name)
                if "*" in key and names.direction_of(name) and not names.is_share(name):
                    entry = entry.model_copy(update={"unit": "raw"})  # `val_*: {unit: percent}`, a loss
                yield column, (entry, name)
            elif _fits(column, self.mapping.settings):
                self.settings.append(column)
            else:
                unmentioned.append(column)
        if unmentioned:
            self.mistakes.append(
                f"columns that it does not mention: {_listed(unmentioned)}. Each belongs under "
                "metrics, is a place (split, variant, seed, dataset), or goes into ignore"
            )

    def _row_splits(self, column: str) -> None:
        words = {
            cells[column].lower(): cells[column]
            for _, cells in self.table.records()
            if cells.get(column)
        }
        for word in sorted(words.keys() - names.SPLITS.keys()):
            known = ", ".join(names.SPLITS)
            self.mistakes.append(f"column '{column}': '{words[word]}' is no split: {known}")
        self.splits |= {names.SPLITS.get(word, "train") for word in words} - {"train"}

    def _describe(self, column: str, entry: MetricEntry, name: str) -> None:
        """What a column's metric is, or a mistake for what nothing says."""
        split = entry.split or ("row" if self.mapping.split else self.options.split)
        known = names.direction_of(name)
        direction: Direction | None = entry.direction or known
        unit: Unit | None = entry.unit or (
            "raw" if known is not None and not names.is_share(name) else self.options.unit
        )
        asked = {
            "split (train, val, test, eval)": split,
            "direction (up, down, none)": direction,
            "unit (percent, fraction, raw)": unit,
        }
        missing = ", ".join(word for word, value in asked.items() if value is None)
        if name in ("kind", "attempt", "epoch", "step"):
            text = f"no metric can be called {name}: name it with `as`, or ignore it"
            self.mistakes.append(f"column '{column}': {text}")
        elif split == "train":
            self.metrics[column] = Metric(name, split, "none", entry.unit or "raw")
        elif split and direction and unit:
            name = name if split == "row" else self.with_split(name, split)
            self.metrics[column] = Metric(name, split, direction, unit)
        else:
            self.mistakes.append(f"column '{column}': say its {missing}")

    def with_split(self, name: str, split: str) -> str:
        """An evaluated metric's name: with its split where several are evaluated, and for a loss."""
        alone = len(self.splits) < 2 and name != "loss"
        return name if alone or name.startswith(f"{split}_") else f"{split}_{name}"


def _fits(column: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(column, glob) for glob in globs)


def _first(column: Column, columns: Iterable[str]) -> str | None:
    if isinstance(column, tuple):
        return next((name for name in column if name in columns), None)
    return column


def _each(column: Column) -> tuple[str, ...]:
    return column if isinstance(column, tuple) else (column,) if column else ()


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


# -- rows -----------------------------------------------------------------------------------------


class _Run:
    """One run of a table, row by row."""

    def __init__(self, plan: _Plan) -> None:
        self.plan, self.table, self.mapping = plan, plan.table, plan.mapping
        self.builder = RunBuilder(
            plan.table.path,
            plan.table.content,
            plan.options.name,
            restarts=plan.mapping.restarts or plan.options.restarts,
            repeat=plan.options.repeat or plan.mapping.repeat,
            apart=True,
        )
        self.headers = self.count = 0
        self.offset, self.most, self.epoch = 0, 0, -1.0
        self.at: tuple[float | None, int] = (None, 0)  # the last place of training or its evaluation
        self.last_cells: Cells[str, str] = {}
        self.config: dict[str, str] = {}
        self.datasets: list[str] = []
        self.fractions, self.trains_epoch_0 = 0, False

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
                self.plan.readable.setdefault(column, False)
                continue
            self.plan.readable[column] = True
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
            self.builder.add("train" if split == "train" else "eval", epoch, step, scores, line)

    def _name(self, metric: Metric, split: str, cells: Cells[str, str]) -> str:
        """The metric's name, with its split where several are evaluated, and with `/DATASET` for a
        second data set and all later ones."""
        if split == "train":
            return metric.name
        name = self.plan.with_split(metric.name, split)
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
            variant = _folder(path, self.plan.options.root, mapping.variant.path)
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
            folder = _folder(path, self.plan.options.root, seed.path)
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
_LOOK = """\
# Look at every line; replace every question mark. Then: sdtps import LOG --as THIS_FILE
# epoch_from: 0     # where the first epoch is number 0
# step: row         # where no column counts epochs or steps
# select: mAP max   # what chose the best epoch
"""


def propose(table: Table) -> str:
    """A mapping for a table, to be looked at; `?` where the known names do not say enough."""
    lowered = {name.lower(): name for name in reversed(table.columns)}
    places = {
        key: next(lowered[word] for word in words if word in lowered)
        for key, words in _PLACES.items()
        if not lowered.keys().isdisjoint(words)
    }
    mapping: dict[str, Any] = {**places}
    if not {"epoch", "step"} & places.keys():
        mapping["step"] = "?"
    metrics: dict[str, dict[str, str]] = {}
    ignored: list[str] = []
    taken: set[tuple[str | None, str]] = set()
    split_names = [names.split_of(column) for column in table.columns]
    evaluated = {names.spelled(rest) for split, rest in split_names if split not in (None, "train")}
    for column, (split, rest) in zip(table.columns, split_names, strict=True):
        if column in places.values():
            continue
        if not any(_is_number(cells.get(column, "")) for _, cells in table.records()):
            ignored.append(column)
            continue
        name = names.spelled(rest)
        if split is None and "split" not in places and name in evaluated:
            split = "train"  # accuracy beside val_accuracy
        if any(n == name and (split == s or None in (split, s)) for s, n in taken):
            name = column
        taken.add((split, name))
        metrics[column] = {"as": name}
        if split or "split" not in places:
            metrics[column]["split"] = split or "?"
        if split != "train":
            direction = names.direction_of(name) or "?"
            unit = "?" if names.is_share(name) or direction == "?" else "raw"
            metrics[column] |= {"direction": direction, "unit": unit}
    mapping |= {"metrics": metrics} | ({"ignore": ignored} if ignored else {})
    return _LOOK + yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True, default_flow_style=None)


def _is_number(text: str) -> bool:
    try:
        number(text.rstrip("%"))
    except ValueError:
        return False
    return True
