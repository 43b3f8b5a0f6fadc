"""What the columns of a table mean, where the table itself does not say: a small YAML file.

    epoch: epoch                 # columns; `step: row` counts the rows
    epoch_from: 0                # the first epoch's number in the file, 0 or 1
    step: iter
    step_within: epoch           # the column starts again in every epoch
    split: phase                 # a column that says train, val, test or eval in each row
    variant: {path: 1}           # the first folder below the imported one; or a column; or {name: topk}
    seed: seed
    epochs_planned: 60           # a run that reaches them is completed
    restarts: true               # a step that goes back means that training was started again
    select: val_mAP max          # what chose the best epoch
    metrics:
      train_loss: {as: loss, split: train}
      val_mAP:    {as: mAP, split: val, direction: up, unit: percent}
    ignore: [time]

`python -m analysis import FILE --propose` prints one, with a question mark wherever nobody can tell.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from analysis.importers.metrics import Metric, canonical
from analysis.importers.run import LogError
from sdtps.config.common import Frozen
from sdtps.config.wording import sentences
from sdtps.config.yaml12 import load_yaml
from sdtps.system.errors import SdtpsError, did_you_mean


class FromPath(Frozen):
    """A folder of the file's path: 1 is the first below the imported folder."""

    path: int = Field(ge=1)


class Named(Frozen):
    """The same for every row."""

    name: str


class MetricEntry(Frozen):
    """One column that holds a metric."""

    as_: str | None = Field(default=None, alias="as")
    split: Literal["train", "val", "test", "eval"]
    direction: Literal["up", "down", "none"] | None = None
    unit: Literal["percent", "fraction", "raw"] | None = None


class Mapping(Frozen):
    """The file as written."""

    epoch: str | None = None
    epoch_from: Literal[0, 1] = 1
    step: str | None = None
    step_within: Literal["run", "epoch"] = "run"
    split: str | None = None
    variant: str | FromPath | Named | None = None
    seed: str | int | FromPath | None = None
    epochs_planned: int | None = Field(default=None, ge=1)
    restarts: bool = False
    select: str | None = None
    metrics: dict[str, MetricEntry]
    ignore: tuple[str, ...] = ()


@dataclass
class Plan:
    """How a table is read: from a mapping, from a family's rules, or from names that say enough."""

    epoch: str | None = None
    epoch_from: int = 1
    step: str | None = None  # "row": the rows are counted
    step_from: int = 1
    step_within_epoch: bool = False
    split: str | None = None
    variant: str | None = None
    seed: str | None = None
    attempt: str | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)  # by column
    epochs_planned: int | None = None
    steps_planned: str | None = None  # a column with the planned number of steps
    restarts: bool = False
    select: tuple[str, str] | None = None
    variant_path: int | None = None
    variant_name: str = ""
    seed_path: int | None = None
    seed_value: int | None = None
    questions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def ask(self) -> None:
        """Add a question for every property of a metric that nothing tells."""
        for column, metric in self.metrics.items():
            if missing := metric.open():
                self.questions.append(f"column '{column}': {' and '.join(missing)}")


def load(path: Path) -> Mapping:
    """The mapping in a file.

    Raises:
        LogError: every mistake at once, each with its line.
    """
    try:
        data, lines = load_yaml(path)
    except SdtpsError as error:
        raise LogError(str(error)) from None
    asked = [
        f"{path}:{lines.get(place, 0)}: {place[-1]}: still a question mark; say what it is"
        for place, value in _leaves(data)
        if value == "?"
    ]
    if asked:
        raise LogError("\n".join(asked))
    if isinstance(data, dict) and isinstance(data.get("ignore"), list):
        data["ignore"] = tuple(data["ignore"])
    try:
        return Mapping.model_validate(data)
    except ValidationError as error:
        told = sorted(sentences(error, Mapping, data), key=lambda entry: lines.get(entry[0], 0))
        raise LogError(
            "\n".join(
                f"{path}:{lines.get(place, 0)}: {'.'.join(map(str, place))}: {text}"
                for place, text in told
            )
        ) from None


def _leaves(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, (*place, key))]
    if isinstance(value, list):
        return [leaf for i, inner in enumerate(value) for leaf in _leaves(inner, (*place, i))]
    return [(place, value)]


def plan_of(mapping: Mapping, header: Sequence[str], where: str) -> Plan:
    """A mapping applied to a table's columns.

    Raises:
        LogError: a column that the mapping names is not there, or one of the table is not mentioned.
    """
    mistakes = []
    named = {
        "epoch": mapping.epoch,
        "step": mapping.step if mapping.step != "row" else None,
        "split": mapping.split,
        "variant": mapping.variant if isinstance(mapping.variant, str) else None,
        "seed": mapping.seed if isinstance(mapping.seed, str) else None,
    }
    for key, column in [*named.items(), *(("metrics", column) for column in mapping.metrics)]:
        if column is not None and column not in header:
            mistakes.append(f"{where}: {key}: no column '{column}'. {did_you_mean(column, header)}")
    metrics = {}
    for column, entry in mapping.metrics.items():
        name = entry.as_ or canonical(column)
        if entry.split == "train":
            metrics[column] = Metric(name, "train", "none", entry.unit or "raw")
            continue
        for key in ("direction", "unit"):
            if getattr(entry, key) is None:
                mistakes.append(f"{where}: metrics.{column}: needs {key}, as it is evaluated")
        metrics[column] = Metric(name, entry.split, entry.direction, entry.unit)
    if mistakes:
        raise LogError("\n".join(mistakes))
    select = mapping.select.split(" ") if mapping.select else []
    if mapping.select and (len(select) != 2 or select[1] not in ("max", "min")):
        raise LogError(
            f"{where}: select: '{mapping.select}': write a metric and max or min, such as mAP max"
        )
    return Plan(
        epoch=mapping.epoch,
        epoch_from=mapping.epoch_from,
        step=mapping.step,
        step_within_epoch=mapping.step_within == "epoch",
        split=mapping.split,
        variant=named["variant"],
        seed=named["seed"],
        metrics=metrics,
        epochs_planned=mapping.epochs_planned,
        restarts=mapping.restarts,
        select=(select[0], select[1]) if select else None,
        variant_path=mapping.variant.path if isinstance(mapping.variant, FromPath) else None,
        variant_name=mapping.variant.name if isinstance(mapping.variant, Named) else "",
        seed_path=mapping.seed.path if isinstance(mapping.seed, FromPath) else None,
        seed_value=mapping.seed if isinstance(mapping.seed, int) else None,
    )


def propose(plan: Plan, columns: Sequence[str]) -> str:
    """A plan as the text of a mapping file; `?` where somebody has to say."""
    lines = [
        "# What the columns mean. Replace every question mark, then: import FILE --mapping THIS_FILE"
    ]
    places: MappingType[str, str | None] = {
        "epoch": plan.epoch,
        "step": plan.step,
        "split": plan.split,
        "variant": plan.variant,
        "seed": plan.seed,
    }
    lines += [f"{key}: {_quoted(column)}" for key, column in places.items() if column]
    if not (plan.epoch or plan.step):
        lines.append("step: '?'  # a column, or row to count the rows")
    if plan.epoch and plan.epoch_from == 0:
        lines.append("epoch_from: 0")
    if plan.step_within_epoch:
        lines.append("step_within: epoch")
    lines.append("metrics:")
    for column, metric in plan.metrics.items():
        said = {"as": metric.name, "split": metric.split}
        if metric.split != "train":
            unit = None if metric.unit == "unknown" else metric.unit
            said |= {"direction": metric.direction, "unit": unit}
        told = ", ".join(f"{k}: {_quoted(v) if v else repr('?')}" for k, v in said.items())
        lines.append(f"  {_quoted(column)}: {{{told}}}")
    used = {*places.values(), *plan.metrics, plan.attempt, plan.steps_planned}
    if rest := [column for column in columns if column and column not in used]:
        lines.append(f"ignore: [{', '.join(map(_quoted, rest))}]")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    if text.replace("_", "").replace("-", "").isalnum() and not text[0].isdigit():
        return text
    return "'" + text.replace("'", "''") + "'"
