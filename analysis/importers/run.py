"""A run read from somebody else's files: its rows in the order of the log, its state, its best."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from analysis.importers.names import Metric
from sdtps.run.folder import best_of, is_finite
from sdtps.system.errors import SdtpsError

# completed: a planned length was reached. ended: the log ends and names no planned length.
# incomplete: the log ends before the planned length and does not say why.
ImportedState = Literal["completed", "ended", "incomplete", "diverged", "failed", "cancelled"]

LIMIT = 2**31  # epochs and steps from here on are damage
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Failure)\b.*")
# What a scheduler or a shell prints when it ends a job.
_KILLED = re.compile(
    r"^(?:slurmstepd: error: .*|srun: error: .*|Killed|Segmentation fault.*|Terminated)$"
)


class LogError(SdtpsError):
    """A file that no importer can read, that breaks its format, or that leaves a question open."""


@dataclass(frozen=True)
class Unread:
    """A line that looks like a record but could not be read."""

    line: int  # 1-based; 0 = the file as a whole
    text: str
    reason: str

    def __str__(self) -> str:
        where = f"line {self.line}" if self.line else "file"
        shown = self.text if len(self.text) <= 100 else self.text[:97] + "..."
        return f"{where}: {self.reason}: {shown!r}" if shown else f"{where}: {self.reason}"


@dataclass
class ImportedRun:
    """One run. Rows follow metrics.jsonl (see `sdtps.run.folder`): fractions, epochs from 1."""

    source: Path
    sha256: str
    format: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    state: ImportedState = "ended"
    metrics: dict[str, Metric] = field(default_factory=dict)  # by name in the evaluation rows
    study: str = ""
    variant: str = ""  # as the file says; else the path tells it (`analysis.importers.store`)
    seed: int | None = None
    reason: str = ""
    failure: str = ""  # oom, timeout, node, error: only where state is failed
    config: dict[str, Any] = field(default_factory=dict)  # flat, values as printed
    components: dict[str, bool] = field(default_factory=dict)
    label: str = ""
    best: dict[str, Any] | None = None  # the selected evaluation row
    final: dict[str, Any] | None = None  # the last evaluation row
    select: str = ""  # "mAP max": how `best` was chosen; "" where nothing selects
    selected_on: str | None = None  # the split that `best` was selected on
    facts: dict[str, Any] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def number(text: str) -> float:
    """A printed number, `nan` and `inf` included.

    Raises:
        ValueError: not a number.
    """
    return float(text.strip().rstrip(","))


def seed_of(text: str | None) -> int | None:
    """A printed seed, or None where there is none."""
    text = (text or "").strip()
    return int(text) if re.fullmatch(r"\d+", text) else None


def fraction(percent: str) -> float:
    """A printed percentage as the float nearest to the exact decimal fraction: '22.9' is 0.229.

    Raises:
        ValueError: not a decimal number.
    """
    try:
        value = Decimal(percent.strip().rstrip("%").strip())
    except InvalidOperation:
        raise ValueError(f"'{percent}' is not a percentage") from None
    if not value.is_finite():
        return float(value)
    return float(value.scaleb(-2))


def percent(value: float) -> str:
    """The inverse of `fraction`: 0.229 is '22.9', without binary noise and trailing zeros."""
    text = format(Decimal(repr(value)).scaleb(2).normalize(), "f")
    return text if "." in text else f"{text}.0"


class RunBuilder:
    """Collects the rows of one run in the order of the log and finishes them into an `ImportedRun`.

    A step that goes back is a restart only where the log announces one (`restart`): rows of the
    earlier attempt from there on are dropped and counted. Without an announcement it is an error.
    """

    def __init__(
        self,
        source: Path,
        content: bytes,
        format_name: str,
        *,
        restarts: bool = False,
        repeat: Literal["report", "refuse", "last", "first", "max"] = "report",
        apart: bool = False,
    ) -> None:
        """
        Args:
            restarts: a step that goes back is a restart, because somebody said so.
            repeat: what a second value of the same place means; report: the line counts as unread.
            apart: training and evaluation rows may count steps of their own.
        """
        sha256 = hashlib.sha256(content).hexdigest()
        self.run = ImportedRun(Path(source), sha256, format_name)
        self.restarts = restarts
        self.repeat = repeat
        self.apart = apart
        self.attempt = 1
        self.rows, self.notes, self.metrics = self.run.rows, self.run.notes, self.run.metrics
        self.describe: Callable[[str], Metric] | None = None  # of evaluated names not in `metrics`
        self.error = ""
        self.error_line = 0
        self.epochs: float | None = None  # how far it is; None where no row has an epoch
        self._announced = 0  # line of the sign that training starts again
        self._in_traceback = False
        self._last: dict[str, int] = {}  # kind -> its last step of this attempt
        self._places: dict[tuple[str, int | None, int], dict[str, Any]] = {}

    def first_stage(self, epoch: int, step: int, **values: Any) -> None:
        """A row of a stage before the training proper, kept apart as kind `stage1`."""
        self.rows.append({"kind": "stage1", "attempt": 1, "epoch": epoch, "step": step, **values})

    def new_stage(self) -> None:
        """The training proper begins; its steps count from 1 again."""
        self._last = {}

    def restart(self, line: int) -> None:
        """The log announces that training starts; a second time it is a restart."""
        self._announced = line or 1

    def follow_traceback(self, line: int, text: str, is_record: bool) -> None:
        """Takes every line: remembers the exception that ends the last traceback."""
        if text.startswith("Traceback (most recent call last)"):
            self._in_traceback = True
        elif _KILLED.match(text):
            self.error, self.error_line = text.strip(), line
        elif self._in_traceback and not is_record and not text[:1].isspace() and _EXCEPTION.match(text):
            self.error, self.error_line = text.strip(), line
            self._in_traceback = False

    def cannot_read(self, line: int, text: str, reason: str) -> None:
        self.run.unread.append(Unread(line, text, reason))

    def add(
        self, kind: str, epoch: float | None, step: int, values: Mapping[str, Any], line: int = 0
    ) -> None:
        """A row of kind `train` or `eval`; more values of the same kind and step go into the same row.

        Args:
            epoch: a fraction counts for the run's length only; the row is placed by its step.

        Raises:
            LogError: the step goes back without a sign of a new start, or a value is there twice.
        """
        if not (0 <= (epoch or 0) < LIMIT and 0 <= step < LIMIT):
            self.cannot_read(line, "", f"epoch {epoch}, step {step} cannot be meant")
            return
        announced, self._announced = self._announced, 0
        furthest = max(self._last.values(), default=-1)
        before = self._last.get(kind, -1) if self.apart else furthest
        goes_back = step < before and (self.restarts or self.repeat in ("report", "refuse"))
        if goes_back or (announced and step <= furthest):
            if not announced and not self.restarts:
                text = (
                    f"step {step} follows step {before}, and nothing says that training started again"
                )
                raise LogError(f"{self.run.source}: line {line}: {text}. Say --restarts if it did")
            self._start_again(epoch, step, announced or line)
        self._last[kind] = max(step, self._last.get(kind, step))
        if epoch is not None:
            self.epochs = max(epoch, self.epochs or 0)
        whole = int(epoch) if epoch is not None and epoch == int(epoch) else None
        kept = {name: value for name, value in values.items() if value is not None}
        if (same := self._places.get((kind, whole, step))) is not None:
            self._second(same, kept, line)
            return
        place = {"step": step} if whole is None else {"epoch": whole, "step": step}
        row = {"kind": kind, "attempt": self.attempt, **place, **kept}
        self.rows.append(row)
        self._places[kind, whole, step] = row

    def _second(self, row: dict[str, Any], values: dict[str, Any], line: int) -> None:
        """More values of a place that has a row."""
        for name, value in values.items():
            there = row.get(name, value)
            if repr(there) == repr(value) or name == "time" or self.repeat == "last":
                row[name] = value
            elif self.repeat == "max":
                row[name] = max(there, value)
            elif self.repeat != "first":
                where = f"epoch {row['epoch']}" if "epoch" in row else f"step {row['step']}"
                text = f"a second {name} of {where}: {value:g} after {there:g}"
                if self.repeat == "refuse":
                    raise LogError(
                        f"{self.run.source}: line {line}: {text}. Say which counts: `repeat: last`, "
                        "`first` or `max` in the mapping, or --repeat"
                    )
                self.cannot_read(line, "", text)

    def _start_again(self, epoch: float | None, step: int, line: int) -> None:
        kept = [r for r in self.rows if r["kind"] in ("event", "stage1") or r["step"] < step]
        dropped = len(self.rows) - len(kept)
        self.attempt += 1
        event = {"kind": "event", "attempt": self.attempt, "step": max(step - 1, 0)}
        event |= {} if epoch is None else {"epoch": int(epoch)}
        self.rows[:] = [*kept, {**event, "event": "restart", "superseded_rows": dropped}]
        self._last, self._places = {}, {}
        self.epochs = max(
            (r["epoch"] for r in kept if r["kind"] in ("train", "eval") and "epoch" in r), default=None
        )
        where = f"step {step}" if epoch is None else f"epoch {epoch:g}"
        rows = "1 row" if dropped == 1 else f"{dropped} rows"
        self.notes.append(f"line {line}: restart at {where}; {rows} of the earlier attempt dropped")
        self.error = ""  # what ended the earlier attempt did not end the run
        self._in_traceback = False

    def finish(
        self,
        *,
        variant: str = "",
        epochs_planned: int | None = None,
        finished: bool | None = None,
        select: str | None = None,
        config: Mapping[str, Any] | None = None,
        seed: int | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> ImportedRun:
        """The run.

        Args:
            finished: whether the planned length was reached; None tells it from the epochs, and where
                `epochs_planned` is None too, nobody knows (`ended`).
            select: such as "mAP max": how the best epoch was chosen; None: nothing says.
        """
        evaluations = [row for row in self.rows if row["kind"] == "eval"]
        losses = [row for row in self.rows if row["kind"] == "train" and "loss" in row]
        for row in evaluations if self.describe else ():
            for name, value in row.items():
                if isinstance(value, float) and name not in self.metrics and self.describe:
                    self.metrics[name] = self.describe(name)
        best = best_of(evaluations, select) if select else None
        if select and evaluations and best is None:
            self.notes.append(f"no evaluation holds '{select.split()[0]}', which selects the epoch")
        if finished is None and epochs_planned is not None:
            finished = (self.epochs or 0) >= epochs_planned and bool(evaluations or losses)
        state, reason, failure = self._state(finished, losses, epochs_planned)
        good = [row["loss"] for row in losses if math.isfinite(row["loss"])]
        bad = len(losses) - len(good)
        if bad and state != "diverged":
            self.notes.append(
                f"{bad} of {len(losses)} logged losses are not finite; training recovered"
            )
        selecting = self.metrics.get(select.split()[0]) if select and best else None
        run = self.run
        run.variant, run.seed, run.config = variant, seed, dict(config or {})
        run.state, run.reason, run.failure = state, reason, failure
        run.best, run.select = best, (select or "") if best else ""
        run.final = max(reversed(evaluations), key=lambda row: row["step"], default=None)
        run.selected_on = selecting.split if selecting else None
        run.facts = {
            "epochs": self.epochs,
            "epochs_planned": epochs_planned,
            "attempts": self.attempt,
            "max_loss": max(good, default=None),
            "final_loss": losses[-1]["loss"] if losses and is_finite(losses[-1]["loss"]) else None,
            "nonfinite_losses": bad,
            **(facts or {}),
        }
        return run

    def _state(
        self, finished: bool | None, losses: Sequence[dict[str, Any]], planned: int | None
    ) -> tuple[ImportedState, str, str]:
        if tail := list(takewhile(lambda row: not math.isfinite(row["loss"]), reversed(losses))):
            where = f"epoch {tail[-1]['epoch']}, " if "epoch" in tail[-1] else ""
            return "diverged", f"the loss is not finite from {where}step {tail[-1]['step']} on", ""
        if self.error and not finished:
            if self.error.startswith("KeyboardInterrupt"):
                return "cancelled", self.error, ""
            return "failed", self.error, failure_kind(self.error)
        if self.error:
            self.notes.append(f"line {self.error_line}: an error after training ended: {self.error}")
        if finished:
            return "completed", "", ""
        if finished is None:
            return "ended", "ended, length unknown", ""
        if planned is None and self.epochs is None:
            step = max((row["step"] for row in self.rows), default=0)
            return "incomplete", f"the log ends at step {step}", ""
        of = f" of {planned}" if planned else ""
        return "incomplete", f"the log ends at epoch {self.epochs or 0:g}{of}", ""


def failure_kind(error: str) -> str:
    """oom, timeout, node or error, from the words of an exception or of the scheduler."""
    lowered = error.lower()
    if "out of memory" in lowered or re.search(r"\boom\b|oom[-_]kill|memoryerror", lowered):
        return "oom"
    if "time limit" in lowered or "timeouterror" in lowered:
        return "timeout"
    if "node_fail" in lowered or "ecc error" in lowered or "nvlink" in lowered:
        return "node"
    return "error"
