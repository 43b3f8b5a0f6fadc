"""What the columns of a foreign log mean: a small YAML file, such as

    pattern: 'epoch (?P<epoch>\\d+) loss (?P<loss>\\S+) acc (?P<acc>\\S+)'   # lines of text only
    epoch: epoch
    epochs_planned: 60           # a run that reaches epoch 60 is completed
    metrics:
      loss: {split: train}
      acc: {split: test, unit: percent}

Only the schema is here, so that `plan` checks the mapping of a program's log. The readers, and the
mappings that are shipped, are in `analysis/importers`. `sdtps import --mappings` prints their names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from sdtps.config.common import Frozen
from sdtps.config.wording import sentences
from sdtps.config.yaml12 import read
from sdtps.system.errors import SdtpsError, YamlError, did_you_mean

FORMATS = ("demo", "fastreid", "seps", "ours")  # logs that are read without a mapping
SHIPPED = Path(__file__).parents[2] / "analysis" / "importers" / "mappings"
Repeat = Literal["refuse", "last", "first", "max"]
# A column that must be there, or the first of several that is.
Column = str | tuple[str, ...] | None


class MappingError(SdtpsError):
    """A mapping with mistakes; the text names all of them, each with its line."""


class FromPath(Frozen):
    """A folder of the file's path: 1 is the first below the imported folder."""

    path: int = Field(ge=1)


class Named(Frozen):
    """The same for every row."""

    name: str


class StateColumn(Frozen):
    """A column that says how each run ended."""

    column: str
    words: dict[str, Literal["completed", "failed", "cancelled"]]


class MetricEntry(Frozen):
    """One column that holds a metric, or several: what `*` in the key stands for is the name."""

    as_: str | None = Field(default=None, alias="as")  # `*` here too
    split: Literal["train", "val", "test", "eval"] | None = None  # null: `split` or --split says it
    # Both may be left out where the table of known names says them (`sdtps import --mappings`).
    direction: Literal["up", "down", "none"] | None = None
    unit: Literal["percent", "fraction", "raw"] | None = None


class Mapping(Frozen):
    """The file as written.

    Columns are those of a CSV file, the keys of JSON objects (one inside another is `outer/inner`), the
    tags of TensorBoard (and `step`), or the named groups of `pattern`.
    """

    # -- how rows are found
    files: str = "*"  # names of the files that are read in a folder, such as trainer_state.json
    pattern: tuple[str, ...] = ()  # of lines of text; each match is a row
    rows: str | None = None  # the list of rows in one JSON document, such as log_history
    series: str | None = None  # of a column's name: groups `variant` and `metric`; a column is a run
    tag_folders: bool = False  # the last folder of an event file is part of its tags (add_scalars)
    carry: tuple[str, ...] = ()  # columns whose last value counts until there is another
    # -- where a row belongs
    epoch: Column = None
    epoch_from: Literal[0, 1] = 1  # the number of the first trained epoch in the file
    step: Column = None  # `row` counts the rows
    step_from: Literal[0, 1] = 1
    step_within: Literal["run", "epoch"] = "run"  # epoch: the column starts again in every epoch
    split: str | None = None  # a column that says train, val, test or eval
    variant: str | FromPath | Named | None = None  # a column, or else
    seed: str | int | FromPath | None = None
    dataset: str | Named | None = None
    # -- what the run was
    epochs_planned: int | str | None = None  # a number, a column, or a key of `settings_file`
    steps_planned: int | str | None = None
    state: StateColumn | None = None
    settings: tuple[str, ...] = ()  # columns that are settings of the run; `*` stands for anything
    settings_file: str | None = None  # a YAML file beside the log
    # -- what repeats
    restarts: bool = False  # a step that goes back means that training was started again
    # What a second value of the same split, epoch, step and data set means.
    repeat: Repeat = "refuse"
    # A split that is evaluated once, after training: its row counts for the last epoch.
    after_training: Literal["val", "test", "eval"] | None = None
    # -- what was measured
    select: str | None = None  # `mAP max`: what chose the best epoch; null: nothing did
    metrics: dict[str, MetricEntry]
    ignore: tuple[str, ...] = ()  # `*` stands for anything

    @model_validator(mode="after")
    def _fits(self) -> Mapping:
        if self.epoch is None and self.step is None:
            raise ValueError("say which column counts epochs or steps (`step: row` counts the rows)")
        if self.select is not None and not re.fullmatch(r"\S+ (?:max|min)", self.select):
            raise ValueError(f"select: '{self.select}': write a metric and max or min: mAP max")
        for key, entry in self.metrics.items():
            if max(key.count("*"), (entry.as_ or "").count("*")) > 1:
                raise ValueError(f"metrics.{key}: one * at most")
        groups = [name for pattern in self.pattern for name in _groups("pattern", pattern)]
        if self.pattern and not groups:
            raise ValueError(r"pattern: name its groups, such as epoch (?P<epoch>\d+)")
        if self.series is not None and set(_groups("series", self.series)) != {"variant", "metric"}:
            raise ValueError("series: needs the groups (?P<variant>...) and (?P<metric>...)")
        places = [self.epoch, self.step, self.split, self.variant, *self.carry]
        columns = [c for c in (*places, *self.metrics) if isinstance(c, str) and c != "row"]
        for column in columns if groups else ():
            if column not in groups and "*" not in column:
                raise ValueError(f"pattern has no group '{column}'. {did_you_mean(column, groups)}")
        return self


def _groups(key: str, pattern: str) -> list[str]:
    try:
        return list(re.compile(pattern).groupindex)
    except re.error as error:
        raise ValueError(f"{key}: '{pattern}' is no regular expression: {error}") from None


def shipped() -> list[str]:
    """Names of the mappings that come with the program."""
    return sorted(file.stem for file in SHIPPED.glob("*.yaml"))


def load(name_or_path: str | Path, folder: Path | None = None) -> Mapping:
    """A shipped mapping, or the one in a file (relative to `folder`).

    Raises:
        MappingError: no such mapping, or its mistakes, all at once and each with its line.
    """
    name = str(name_or_path)
    path = SHIPPED / f"{name}.yaml" if name in shipped() else (folder or Path()) / name
    if not path.is_file():
        hint = did_you_mean(name, shipped())
        raise MappingError(f"{path}: no such file, and no shipped mapping. {hint}")
    try:
        document = read(path)
    except YamlError as error:
        raise MappingError(str(error)) from None
    data = document.data
    by_place = {p: "still a question mark; say what it is" for p, v in _leaves(data) if v == "?"}
    try:
        mapping = Mapping.model_validate(_tuples(data))
    except ValidationError as error:
        by_place = {**dict(sentences(error, Mapping, data)), **by_place}
    mistakes = list(document.problems)
    for place, text in by_place.items():
        mistakes.append((document.line(place), f"{'.'.join(map(str, place)) or 'mapping'}: {text}"))
    if mistakes:
        raise MappingError("\n".join(f"{path}:{line}: {text}" for line, text in sorted(mistakes)))
    return mapping


def _tuples(data: Any) -> Any:
    """Lists as the schema has them; one pattern or name may stand without its list."""
    if not isinstance(data, dict):
        return data
    lists = ("pattern", "carry", "settings", "ignore")
    single = {k: (v,) for k, v in data.items() if k in lists and isinstance(v, str)}
    return {**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}, **single}


def _leaves(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, (*place, key))]
    if isinstance(value, list):
        return [leaf for i, inner in enumerate(value) for leaf in _leaves(inner, (*place, i))]
    return [(place, value)]
