"""The honest state of every run, read-only.

Our own records speak first (result.json, status.json, submitit/attempts.txt, claim.json), then one
squeue that all watchers share, then sacct where there is one. A scheduler that does not answer changes
no state, and one without accounting still leaves every run in a definite one.

    planned      nothing there, or what is there came to nothing: a submission would run it
    interrupted  it began and stopped without an end of its own, and nothing will start it again but a
                 submission, which goes on from its checkpoint
    queued       claimed, and its job waits or is about to be submitted
    running      its job runs
    requeued     interrupted with a checkpoint, and its job waits to go on
    completed    result.json exists; nothing else means this
    diverged     a loss that is no number
    failed       kind: error (an exception), exit, oom, timeout, node, killed, start (dead before Python
                 began), lost (gone, and nobody could say how), result (result.json is there and is no
                 result), unreadable (a file that may not be read)
    cancelled    by somebody, or preempted for good; kind unstarted: it left the queue before it
                 started, and nobody saw how
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablations.slurm.queue import Scheduler
from ablations.slurm.verdict import SUBMITTING_SECONDS, OnCluster
from ablations.store import attempts as records
from ablations.store import claims, evidence
from ablations.store.attempts import Attempts
from ablations.store.runstatus import STALE_SECONDS, OpenRun, RunStatus, age, at, where
from ablations.store.submissions import Cache
from ablations.study.model import RunSpec
from sdtps.files import oddity
from sdtps.run.folder import RunFolder

# States in which a file called result.json says that something is wrong with it.
NOT_ENDED_WELL = frozenset({"planned", "interrupted", "diverged", "failed", "cancelled"})
DAMAGED = "result.json cannot be read; --retry failed puts it aside and runs again from the start"
_GOES_ON = "; a submission goes on from there"


def run_states(
    runs: Sequence[RunSpec], runs_dir: Path | str, scheduler: Scheduler | None = None
) -> list[RunStatus]:
    """The state of each run, in order. The scheduler is asked where a run's records leave it open."""
    runs_dir = Path(runs_dir).resolve()
    scheduler = scheduler or Scheduler(runs_dir)
    reader = _Reader(scheduler)
    return [reader.state(run, run.folder(runs_dir)) for run in runs]


class _Reader:
    """Looks at each run once."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._cluster = OnCluster(scheduler)
        self._submissions = Cache()

    def state(self, run: RunSpec, folder: Path) -> RunStatus:
        """The state by the run's own records, and where they leave it open by the scheduler.

        Records are read after the scheduler was asked: else a run could end in between, and "ended"
        would meet records without an end.
        """
        try:
            found = self.look(run, folder)
            if isinstance(found, OpenRun) and not self._cluster.asked:
                _ = self._cluster.queue
                found = self.look(run, folder)
            status = self._cluster.settle(found) if isinstance(found, OpenRun) else found
            if status.state != "completed" and (note := _odd_files(folder)):
                status = replace(status, detail="; ".join(filter(None, (status.detail, note))))
            if status.state in NOT_ENDED_WELL and RunFolder(folder).damaged():
                return replace(status, state="failed", kind="result", detail=DAMAGED)
            return status
        except OSError as error:  # one such file must not hide the other runs
            name = Path(error.filename or folder).name
            return RunStatus(run, "failed", "unreadable", f"{name}: {error.strerror}")

    # -- own records ----------------------------------------------------------------------------

    def look(self, run: RunSpec, folder: Path) -> RunStatus | OpenRun:
        """The state by the run's own records, or what the scheduler must be asked for."""
        try:
            with os.scandir(folder) as entries:
                names = {entry.name for entry in entries}
        except FileNotFoundError:
            if odd := oddity(folder):
                raise OSError(errno.ENOTDIR, f"is {odd}", str(folder)) from None
            return RunStatus(run, "planned")
        files = RunFolder(folder)
        if "result.json" in names and (result := files.result()) is not None:
            return _completed(run, folder, result)
        status = (files.status() if "status.json" in names else None) or {}
        claim = claims.read(folder) if "claim.json" in names else None
        if claim is None:
            return _unclaimed(run, folder, status)
        submission = self._submissions.get(folder, claim.submission or "unreadable")
        attempts = records.read(folder, claim.submission) if "submitit" in names else Attempts()
        if attempts.last_start is None:
            status = {}  # it speaks of an earlier submission
        job = submission.element(folder) if claim.executor != "local" else None
        if job is None and attempts.last_start is not None:
            job = attempts.last_start.job
        found = OpenRun(run, folder, claim, submission, attempts, status, job)
        if status.get("state") == "diverged":
            return found.as_state("diverged", None, where(status))
        if status.get("state") == "failed":
            return found.as_state(
                "failed", str(status.get("kind") or "error"), str(status.get("reason") or "")
            )
        if claim.executor == "local":
            return _local(found)
        return found


def _odd_files(folder: Path) -> str:
    """What is no file under the name of a record that was then left out; empty: nothing."""
    found = ((name, oddity(folder / name)) for name in records.RECORDS)
    return "; ".join(f"{name} is {odd}" for name, odd in found if odd)


def _completed(run: RunSpec, folder: Path, result: dict[str, Any]) -> RunStatus:
    best = result.get("best")
    epoch = best.get("epoch") if isinstance(best, dict) else None
    return RunStatus(
        run,
        "completed",
        epoch=epoch if isinstance(epoch, int) else None,
        progress=1.0,
        attempt=result.get("attempt"),
        log_file=records.log_file(folder),
    )


def _unclaimed(run: RunSpec, folder: Path, status: dict[str, Any]) -> RunStatus:
    """A run that somebody started by hand, or that its queue gave back."""
    known: dict[str, Any] = {
        "epoch": status.get("epoch"),
        "progress": status.get("progress"),
        "attempt": status.get("attempt"),
        "log_file": records.log_file(folder),
    }
    state = status.get("state")
    if state == "diverged":
        return RunStatus(run, "diverged", None, where(status), **known)
    if state == "failed":
        kind, reason = str(status.get("kind") or "error"), str(status.get("reason") or "")
        return RunStatus(run, "failed", kind, reason, **known)
    if state == "running" and age(status) < STALE_SECONDS:
        return RunStatus(run, "running", None, "started by hand", **known)
    if state in ("running", "requeued"):
        return RunStatus(run, "interrupted", None, f"stopped{at(status)}{_GOES_ON}", **known)
    return RunStatus(run, "planned", log_file=known["log_file"])


def _local(found: OpenRun) -> RunStatus:
    """A run of a local queue, which is the submitter."""
    queue = found.claim.submitter.alive() if found.claim.submitter else False
    start, end = found.attempts.last_start, found.attempts.last_end
    if start is None:
        if found.claim.cancelled:
            return found.as_state("cancelled")
        if queue or (queue is None and time.time() - found.claim.time < SUBMITTING_SECONDS):
            return found.as_state("queued")
        return found.as_state("planned", None, "its local queue was stopped before it began")
    if end is None:
        alive = start.process.alive()
        beating = alive is None and age(found.status) < STALE_SECONDS
        if alive or beating:
            return found.as_state("running", None, found.silence())
        if queue:
            return found.as_state("failed", "killed", "its process was killed")
        return found.as_state("interrupted", None, f"killed{at(found.status)}{_GOES_ON}")
    if end.code == records.INTERRUPTED:
        if queue and not found.claim.cancelled:
            return found.as_state("requeued", None, "waits for a slot")
        if found.claim.cancelled:
            return found.as_state("cancelled", None, found.course())
        return found.as_state("interrupted", None, f"stopped{at(found.status)}{_GOES_ON}")
    if found.claim.cancelled:
        return found.as_state("cancelled", None, found.course())
    kind, what = evidence.from_code(end)
    return found.as_state("failed", kind, what)
