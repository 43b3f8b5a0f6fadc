"""Puts an importer's findings together: restarts resolved, best and final rows chosen, state told."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.importers.record import ImportedRun, ImportedState, Unread
from analysis.results.numbers import counted

# What selects the best evaluation where the log does not say: the first of these that is there.
SELECTION: Sequence[tuple[str, str]] = (
    ("mAP", "max"),
    ("rsum", "max"),
    ("rank1", "max"),
    ("val_accuracy", "max"),
    ("accuracy", "max"),
    ("val_loss", "min"),
    ("eval_loss", "min"),
)
MOST = 2**31  # epochs and steps from here on are damage, and do not fit the tidy table
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Failure)\b.*")
# What the scheduler or the shell leaves at the end of a log when it ends a job.
_KILLED = re.compile(
    r"^(?:slurmstepd: error: .*|srun: error: .*|Killed|Segmentation fault.*|Terminated)$"
)
_SEED_IN_NAME = re.compile(r"(?:^|[^a-z])seed[-_=]?(\d+)", re.IGNORECASE)


class RunBuilder:
    """Collects rows in the order of the log and finishes them into an `ImportedRun`."""

    def __init__(self, source: Path, content: bytes, format_name: str) -> None:
        self.source = Path(source)
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.format = format_name
        self.attempt = 1
        self.rows: list[dict[str, Any]] = []
        self.unread: list[Unread] = []
        self.notes: list[str] = []
        self.error = ""
        self.error_line = 0
        self._pending_restart = 0  # line of the marker that announced a new start
        self._traceback_line = 0

    def train(self, epoch: int, step: int, line: int, **values: Any) -> None:
        """A training row. One that goes back in epoch or step is a restart from there."""
        if self._implausible(epoch, step, line):
            return
        self._watch_for_restart(epoch, step, line, "train")
        self.rows.append(self._row("train", epoch, step, values))

    def evaluation(self, epoch: int, step: int, values: Mapping[str, Any]) -> None:
        """An evaluation row; values for the same step go into the same row."""
        if self._implausible(epoch, step, 0):
            return
        for row in reversed(self.rows):
            if row["kind"] == "eval" and row["attempt"] == self.attempt:
                if row["step"] == step and row["epoch"] == epoch:
                    row.update(values)
                    return
                break
        self._watch_for_restart(epoch, step, 0, "eval")
        self.rows.append(self._row("eval", epoch, step, dict(values)))

    def _implausible(self, epoch: int, step: int, line: int) -> bool:
        """A damaged digit can make an epoch that no training reaches."""
        if 0 <= epoch < MOST and 0 <= step < MOST:
            return False
        self.cannot_read(line, "", f"epoch {epoch}, step {step} cannot be meant")
        return True

    def restart_announced(self, line: int) -> None:
        """The log says that training starts; a second time it is a restart."""
        self._pending_restart = line

    def follow_traceback(self, line: int, text: str, is_record: bool) -> None:
        """Feed every line: remembers the exception that ends the last traceback."""
        if text.startswith("Traceback (most recent call last)"):
            self._traceback_line = line
            return
        if _KILLED.match(text):
            self.error, self.error_line = text.strip(), line
            return
        if not self._traceback_line or is_record or text[0].isspace():
            return
        if _EXCEPTION.match(text):
            self.error, self.error_line = text.strip(), line
            self._traceback_line = 0

    def cannot_read(self, line: int, text: str, reason: str) -> None:
        self.unread.append(Unread(line, text, reason))

    # -- finishing --------------------------------------------------------------------------------

    def finish(
        self,
        *,
        variant: str,
        epochs_planned: int | None = None,
        finished: bool | None = None,
        select: tuple[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        seed: int | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> ImportedRun:
        """The run. `finished` says whether training ended by itself; None tells it from the epochs."""
        evaluations = [row for row in self.rows if row["kind"] == "eval"]
        losses = [row for row in self.rows if row["kind"] == "train" and "loss" in row]
        chosen = select or next(
            (s for s in SELECTION if any(_finite(row.get(s[0])) for row in evaluations)), None
        )
        best = best_row(evaluations, *chosen) if chosen else (evaluations[-1] if evaluations else None)
        epochs = sorted({row["epoch"] for row in self.rows if row["kind"] in ("train", "eval")})
        last_epoch = epochs[-1] if epochs else 0
        if finished is None:
            finished = last_epoch >= (epochs_planned or 1) and bool(evaluations or losses)
            if epochs_planned is None:
                self.notes.append("the log does not say how many epochs were planned")
        state, reason, failure = self._state(finished, losses, last_epoch, epochs_planned)
        bad = sum(not math.isfinite(row["loss"]) for row in losses)
        finite_losses = [row["loss"] for row in losses if math.isfinite(row["loss"])]
        if bad and state != "diverged":
            self.notes.append(
                f"{bad} of {len(losses)} logged losses are not finite; training recovered"
            )
        if seed is None and (found := _SEED_IN_NAME.search(self.source.stem)):
            seed = int(found.group(1))
        return ImportedRun(
            source=self.source,
            sha256=self.sha256,
            format=self.format,
            variant=variant,
            rows=self.rows,
            state=state,
            seed=seed,
            reason=reason,
            failure=failure,
            config=dict(config or {}),
            best=best,
            final=evaluations[-1] if evaluations else None,
            select=" ".join(chosen) if chosen else "last",
            facts={
                "epochs": last_epoch,
                "evaluations": len(evaluations),
                "epochs_planned": epochs_planned,
                "attempts": self.attempt,
                "max_loss": max(finite_losses) if finite_losses else None,
                "final_loss": losses[-1]["loss"] if losses and _finite(losses[-1]["loss"]) else None,
                "nonfinite_losses": bad,
                **(facts or {}),
            },
            unread=self.unread,
            notes=self.notes,
        )

    def _row(self, kind: str, epoch: int, step: int, values: Mapping[str, Any]) -> dict[str, Any]:
        row = {"kind": kind, "attempt": self.attempt, "epoch": epoch, "step": step}
        return {**row, **{k: v for k, v in values.items() if v is not None}}

    def _watch_for_restart(self, epoch: int, step: int, line: int, kind: str) -> None:
        """Rows from the restart on supersede what the earlier attempt logged from there on."""
        announced, self._pending_restart = self._pending_restart, 0
        last = next((r for r in reversed(self.rows) if r["kind"] in ("train", "eval")), None)
        if last is None:
            return
        # An evaluation may be logged at the step of the last training row, and the other way round.
        went_back = step < last["step"] or (step == last["step"] and last["kind"] == kind)
        if not went_back and not announced:
            return
        kept = [r for r in self.rows if r["kind"] == "event" or r["step"] < step]
        dropped = len(self.rows) - len(kept)
        self.attempt += 1
        self.rows = kept
        event = {"event": "restart", "superseded_rows": dropped}
        self.rows.append(self._row("event", epoch, max(step - 1, 0), event))
        where = f"line {announced or line}: " if announced or line else ""
        self.notes.append(
            f"{where}restart at epoch {epoch}; {counted(dropped, 'row')} of the try before superseded"
        )
        self.error = ""  # what ended the earlier attempt did not end the run
        if self._traceback_line:
            self._traceback_line = 0

    def _state(
        self, finished: bool, losses: list[dict[str, Any]], last_epoch: int, planned: int | None
    ) -> tuple[ImportedState, str, str]:
        first_bad = _start_of_nonfinite_tail(losses)
        if first_bad is not None:
            where = f"epoch {first_bad['epoch']}, step {first_bad['step']}"
            return "diverged", f"the loss is not finite from {where} on", ""
        if self.error and not finished:
            if self.error.startswith("KeyboardInterrupt"):
                return "cancelled", self.error, ""
            return "failed", self.error, failure_kind(self.error)
        if self.error:
            self.notes.append(f"line {self.error_line}: an error after training ended: {self.error}")
        if finished:
            return "completed", "", ""
        of = f" of {planned}" if planned else ""
        return "incomplete", f"the log ends at epoch {last_epoch}{of}", ""


def best_row(rows: list[dict[str, Any]], metric: str, direction: str) -> dict[str, Any] | None:
    """The row with the best finite `metric`; the earliest of equals."""
    usable = [row for row in rows if _finite(row.get(metric))]
    if not usable:
        return None
    sign = -1.0 if direction == "max" else 1.0
    return min(usable, key=lambda row: (sign * row[metric], row["step"]))


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


def _start_of_nonfinite_tail(losses: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first row of the non-finite losses that end the log; None where the last one is finite."""
    first = None
    for row in reversed(losses):
        if math.isfinite(row["loss"]):
            break
        first = row
    return first


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
