"""What is known of one run: its state with the reasons, and what was read to tell it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ablations.store import attempts as records
from ablations.store import evidence
from ablations.store.attempts import Attempts
from ablations.store.claims import Claim
from ablations.store.submissions import Submission
from ablations.study.model import RunSpec
from sdtps.run.folder import HEARTBEAT_SECONDS

STALE_SECONDS = 8 * HEARTBEAT_SECONDS  # a heartbeat this old is no sign of life


@dataclass(frozen=True)
class RunStatus:
    """One run's state and what is known of it.

    Attributes:
        detail: one line for people, empty where the state says all.
        epoch, progress: of the newest attempt; progress in [0, 1].
        eta: seconds to go, by the run's own estimate.
        log_file: where the newest job's output is.
        held: queued or requeued, and nothing starts it until somebody releases its job.
    """

    run: RunSpec
    state: str
    kind: str | None = None
    detail: str = ""
    log_file: Path | None = None
    epoch: int | None = None
    progress: float | None = None
    eta: float | None = None
    attempt: int | None = None
    job_id: str | None = None
    node: str | None = None
    held: bool = False

    @property
    def reason(self) -> str:
        """Kind and detail in one line."""
        return ": ".join(part for part in (self.kind, self.detail) if part)

    @property
    def active(self) -> bool:
        return self.state in ("queued", "running", "requeued")

    @cached_property
    def log_tail(self) -> str:
        """The last lines of the job's output, or of train.log where the job said nothing."""
        own = None if self.log_file is None else self.log_file.parent.parent / "train.log"
        return evidence.tail(self.log_file) or evidence.tail(own)


@dataclass(frozen=True)
class OpenRun:
    """A claimed run whose own records do not say how it is."""

    run: RunSpec
    folder: Path
    claim: Claim
    submission: Submission
    attempts: Attempts
    status: dict[str, Any]  # of the current job; empty before it wrote any
    job_id: str | None

    @property
    def began(self) -> bool:
        return self.attempts.last_start is not None

    def as_state(self, state: str, kind: str | None = None, detail: str = "", **more: Any) -> RunStatus:
        """The state, with what the run itself says filled in."""
        start = self.attempts.last_start
        fields: dict[str, Any] = {
            "attempt": self.status.get("attempt"),
            "epoch": self.status.get("epoch"),
            "progress": self.status.get("progress"),
            "eta": self.status.get("eta_s") if state == "running" else None,
            "job_id": self.job_id,
            "node": start.process.host if start else None,
            "log_file": self.log_file,
        }
        return RunStatus(self.run, state, kind, detail, **{**fields, **more})

    @property
    def log_file(self) -> Path:
        """The link in the run folder, or before a job made it the file that the scheduler writes."""
        link = records.log_file(self.folder)
        return link if link.exists() else (self.submission.log_file(self.folder) or link)

    def silence(self) -> str:
        """A note where a running run has not been heard of for long."""
        quiet = age(self.status)
        if not self.status or quiet < STALE_SECONDS:
            return ""
        return f"no sign of life for {quiet / 60:.0f} min"

    def course(self, before: str = "") -> str:
        """How far the run came, and how long its last job ran."""
        start, end = self.attempts.last_start, self.attempts.last_end
        parts = []
        if self.status.get("epoch"):
            parts.append(f"in epoch {self.status['epoch']}")
        if start and end:
            parts.append(f"after {(end.time - start.time) / 60:.1f} min")
        return before + ", ".join(parts) if parts else ""


def age(status: dict[str, Any]) -> float:
    """Seconds since the run's last sign of life."""
    beat = status.get("heartbeat")
    return time.time() - float(beat) if isinstance(beat, (int, float)) else float("inf")


def where(status: dict[str, Any]) -> str:
    """Why a run ended, or else where."""
    reason = str(status.get("reason") or "")
    return reason or f"epoch {status.get('epoch')}, step {status.get('step')}"


def at(status: dict[str, Any]) -> str:
    """` in epoch 3`, where that is known."""
    return f" in epoch {status['epoch']}" if status.get("epoch") else ""
