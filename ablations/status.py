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

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ablations import claims, evidence, records
from ablations.claims import Claim
from ablations.queue_cache import Scheduler, Snapshot
from ablations.records import Attempts, End
from ablations.slurm import JobInfo
from ablations.study import RunSpec
from ablations.submissions import Cache, Submission
from sdtps.runfolder import HEARTBEAT_SECONDS, RunFolder

STALE_SECONDS = 8 * HEARTBEAT_SECONDS  # a heartbeat this old is no sign of life
# A submitter on another host whose claim has no receipt: longer than sbatch may take.
SUBMITTING_SECONDS = 900.0
# States in which a file called result.json says that something is wrong with it.
NOT_ENDED_WELL = frozenset({"planned", "interrupted", "diverged", "failed", "cancelled"})
DAMAGED = "result.json cannot be read; --retry failed puts it aside and runs again from the start"
_GOES_ON = "; a submission goes on from there"


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


def run_states(
    runs: Sequence[RunSpec], runs_dir: Path | str, scheduler: Scheduler | None = None
) -> list[RunStatus]:
    """The state of each run, in order. The scheduler is asked where a run's records leave it open."""
    runs_dir = Path(runs_dir).resolve()
    scheduler = scheduler or Scheduler(runs_dir)
    reader = _Reader(scheduler)
    return [reader.state(run, run.folder(runs_dir)) for run in runs]


@dataclass(frozen=True)
class _Open:
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
            "log_file": _log(self.folder, self.submission),
        }
        return RunStatus(self.run, state, kind, detail, **{**fields, **more})


class _Reader:
    """Looks at each run once; asks the scheduler at most once, when the first run needs it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._submissions = Cache()
        self._asked = False

    def state(self, run: RunSpec, folder: Path) -> RunStatus:
        """The state by the run's own records, and where they leave it open by the scheduler.

        Records are read after the scheduler was asked: else a run could end in between, and "ended"
        would meet records without an end.
        """
        try:
            found = self.look(run, folder)
            if isinstance(found, _Open) and not self._asked:
                _ = self._queue
                found = self.look(run, folder)
            status = self.settle(found) if isinstance(found, _Open) else found
            if status.state in NOT_ENDED_WELL and RunFolder(folder).damaged():
                return replace(status, state="failed", kind="result", detail=DAMAGED)
            return status
        except OSError as error:  # one such file must not hide the other runs
            where = Path(error.filename or folder).name
            return RunStatus(run, "failed", "unreadable", f"{where}: {error.strerror}")

    # -- own records ----------------------------------------------------------------------------

    def look(self, run: RunSpec, folder: Path) -> RunStatus | _Open:
        """The state by the run's own records, or what the scheduler must be asked for."""
        try:
            with os.scandir(folder) as entries:
                names = {entry.name for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
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
        found = _Open(run, folder, claim, submission, attempts, status, job)
        if status.get("state") == "diverged":
            return found.as_state("diverged", None, _where(status))
        if status.get("state") == "failed":
            return found.as_state(
                "failed", str(status.get("kind") or "error"), str(status.get("reason") or "")
            )
        if claim.executor == "local":
            return _local(found)
        return found

    # -- the scheduler --------------------------------------------------------------------------

    @cached_property
    def _queue(self) -> Snapshot:
        self._asked = True
        return self._scheduler.queue()

    def settle(self, found: _Open) -> RunStatus:
        """The state of a run on the cluster."""
        end = found.attempts.last_end
        if end is not None and end.code not in (0, records.INTERRUPTED) and not end.terminated:
            # Ended by itself: nobody needs to be asked, whatever the scheduler makes of it. (Without a
            # result 0 is no such end: srun says it of a run whose node went down.)
            return self._by_end(found, end)
        if end is not None and found.claim.cancelled and found.submission.runs_per_job > 1:
            return self._by_end(found, end)  # its job goes on for the sake of other runs
        if found.job_id is None:
            return self._without_receipt(found)
        job = self._queue.find(found.job_id, found.submission.name)
        if job is None or job.missed:
            return self._unlisted(found, job)
        return self._by_job(found, job)

    def _by_job(self, found: _Open, job: JobInfo) -> RunStatus:
        where = {"node": job.node or None}
        start, end = found.attempts.last_start, found.attempts.last_end
        newer = start is not None and end is None and start.restart >= job.restarts
        if job.state in ("PENDING", "CONFIGURING") and newer and not job.held:
            # It has begun since the scheduler was asked: answers are some seconds old.
            return found.as_state("running", None, _silence(found))
        if job.waiting:
            if found.claim.cancelled and found.submission.runs_per_job > 1:
                return found.as_state("cancelled")  # its job waits for the sake of other runs
            why = job.reason or job.state
            waits = f"held ({why}): nothing starts it until it is released" if job.held else ""
            if found.began or job.restarts:
                again = max(job.restarts, len(found.attempts.starts))
                waits = waits or f"waits to start again ({why})"
                attempt = found.status.get("attempt") or again
                return found.as_state("requeued", None, waits, attempt=attempt + 1, held=job.held)
            return found.as_state("queued", None, waits or job.reason, held=job.held)
        if not job.ended:
            return found.as_state("running", None, _silence(found), **where)
        if job.state == "PREEMPTED":
            return found.as_state("cancelled", None, "preempted")
        kind = evidence.from_scheduler(job)
        if kind == "cancelled" or (kind is None and found.claim.cancelled):
            return found.as_state("cancelled", None, _since_when(found), **where)
        if kind is not None:
            return found.as_state("failed", kind, self._story(found, kind, job), **where)
        if found.attempts.last_end is not None:
            return self._by_end(found, found.attempts.last_end)
        return self._by_exit(found, job)

    def _by_exit(self, found: _Open, job: JobInfo) -> RunStatus:
        """The batch script could not record its end, but the scheduler knows its exit."""
        text = evidence.tail(_log(found.folder, found.submission))
        said = evidence.from_log(text)
        if said in ("timeout", "oom", "node"):
            return found.as_state("failed", said, self._story(found, said, job))
        if job.state == "COMPLETED":
            return found.as_state("failed", "lost", "its job completed, but wrote no result")
        if not found.began:
            how = f"signal {job.signal}" if job.signal else f"exit code {job.code}"
            return found.as_state("failed", "start", f"the job ended before the run began ({how})")
        if job.signal:
            return found.as_state("failed", "killed", f"killed by signal {job.signal}")
        return found.as_state("failed", "exit", f"exit code {job.code}")

    def _by_end(self, found: _Open, end: End) -> RunStatus:
        """From the exit record, and the output where the code alone does not say."""
        kind, what = evidence.from_code(end)
        said = evidence.from_log(evidence.tail(_log(found.folder, found.submission)))
        if kind in ("killed", "lost") or end.terminated:
            if said in ("timeout", "oom", "node"):
                return found.as_state("failed", said, self._story(found, said, None))
            if found.claim.cancelled or said == "cancelled":
                return found.as_state("cancelled", None, _since_when(found))
            if end.terminated and said in ("preempted", "requeue"):
                return found.as_state("cancelled", None, "preempted and not queued again")
        if kind == "exit" and not found.attempts.python_ran:
            return found.as_state("failed", "start", f"Python did not come up (exit {end.code})")
        if kind == "exit" and said == "oom":
            return found.as_state("failed", "oom", self._story(found, "oom", None))
        if end.code == records.INTERRUPTED:
            word = "failed" if not end.terminated else "cancelled"
            why = "stopped at its time limit, and could not be requeued"
            return found.as_state(word, "timeout" if word == "failed" else None, why)
        return found.as_state("failed", kind, what)

    def _unlisted(self, found: _Open, last: JobInfo | None) -> RunStatus:
        """squeue does not name the job: no answer, or it does not know it yet, or not any more."""
        end = found.attempts.last_end
        assert found.job_id is not None
        asked = self._queue
        if not asked.gone(found.job_id, found.submission.name, found.submission.time + 5):
            if asked.error and end is not None and end.code == 0:
                return self._by_end(found, end)
            state = "running" if found.began and end is None else "requeued" if end else "queued"
            why = f"the scheduler did not answer: {asked.error}" if asked.error else _silence(found)
            return found.as_state(state, None, why)
        array = found.job_id.partition("_")[0]
        known = self._scheduler.accounting({array}).get(found.job_id)
        if known is not None and known.name == found.submission.name and known.state != "PENDING":
            return self._by_job(found, known)
        if end is not None:
            return self._by_end(found, end)
        text = evidence.tail(_log(found.folder, found.submission))
        said = evidence.from_log(text)
        if found.claim.cancelled or said == "cancelled":
            return found.as_state("cancelled", None, _since_when(found))
        if said in ("timeout", "oom", "node"):
            return found.as_state("failed", said, self._story(found, said, None))
        if said in ("preempted", "requeue"):
            return found.as_state("cancelled", None, "preempted and not queued again")
        if found.began:
            why = f"job {found.job_id} is gone and left no exit record"
            return found.as_state("failed", "lost", why)
        # Nobody looked while the scheduler still knew. What waits seldom leaves in another way.
        why = (
            f"job {found.job_id} left the queue before it started: cancelled, or the scheduler lost it"
        )
        return found.as_state("cancelled", "unstarted", why)

    def _without_receipt(self, found: _Open) -> RunStatus:
        """No job id was written down: the submitter is at it, or died, or got no clear answer."""
        submitter = found.claim.submitter
        alive = submitter.alive() if submitter else False
        if alive or (alive is None and time.time() - found.claim.time < SUBMITTING_SECONDS):
            return found.as_state("queued", None, "being submitted")
        if not found.submission.intent:
            return found.as_state("planned", None, "its submitter died before it asked the scheduler")
        index = found.submission.index(found.folder)
        for job in self._queue.jobs.values():
            if job.name == found.submission.name and job.id.endswith(f"_{index}"):
                return self._by_job(found, job)
        if self._queue.error:
            return found.as_state(
                "queued", None, f"unknown whether it was submitted: {self._queue.error}"
            )
        return found.as_state("planned", None, "its submitter died; no job of that name is queued")

    @staticmethod
    def _story(found: _Open, kind: str, job: JobInfo | None) -> str:
        """How far it came, and on which node."""
        node = job.node if job else ""
        start = found.attempts.last_start
        node = node or (start.process.host if start else "")
        what = {
            "timeout": "ran into its time limit",
            "oom": "used more memory than resources.mem_gb allows",
            "node": "its node failed",
        }[kind]
        where = f" on {node}" if node else ""
        return f"{what}{where}{_since_when(found, ' ')}"


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
        return RunStatus(run, "diverged", None, _where(status), **known)
    if state == "failed":
        kind, reason = str(status.get("kind") or "error"), str(status.get("reason") or "")
        return RunStatus(run, "failed", kind, reason, **known)
    if state == "running" and _age(status) < STALE_SECONDS:
        return RunStatus(run, "running", None, "started by hand", **known)
    if state in ("running", "requeued"):
        return RunStatus(run, "interrupted", None, f"stopped{_at(status)}{_GOES_ON}", **known)
    return RunStatus(run, "planned", log_file=known["log_file"])


def _local(found: _Open) -> RunStatus:
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
        beating = alive is None and _age(found.status) < STALE_SECONDS
        if alive or beating:
            return found.as_state("running", None, _silence(found))
        if queue:
            return found.as_state("failed", "killed", "its process was killed")
        return found.as_state("interrupted", None, f"killed{_at(found.status)}{_GOES_ON}")
    if end.code == records.INTERRUPTED:
        if queue and not found.claim.cancelled:
            return found.as_state("requeued", None, "waits for a slot")
        if found.claim.cancelled:
            return found.as_state("cancelled", None, _since_when(found))
        return found.as_state("interrupted", None, f"stopped{_at(found.status)}{_GOES_ON}")
    if found.claim.cancelled:
        return found.as_state("cancelled", None, _since_when(found))
    kind, what = evidence.from_code(end)
    return found.as_state("failed", kind, what)


def _log(folder: Path, submission: Submission) -> Path:
    """The link in the run folder, or before a job made it the file that the scheduler writes."""
    link = records.log_file(folder)
    return link if link.exists() else (submission.log_file(folder) or link)


def _age(status: dict[str, Any]) -> float:
    """Seconds since the run's last sign of life."""
    beat = status.get("heartbeat")
    return time.time() - float(beat) if isinstance(beat, (int, float)) else float("inf")


def _silence(found: _Open) -> str:
    """A note where a running run has not been heard of for long."""
    age = _age(found.status)
    if not found.status or age < STALE_SECONDS:
        return ""
    return f"no sign of life for {age / 60:.0f} min"


def _where(status: dict[str, Any]) -> str:
    reason = str(status.get("reason") or "")
    return reason or f"epoch {status.get('epoch')}, step {status.get('step')}"


def _at(status: dict[str, Any]) -> str:
    return f" in epoch {status['epoch']}" if status.get("epoch") else ""


def _since_when(found: _Open, before: str = "") -> str:
    """How long the last job ran, and how far it came."""
    start, end = found.attempts.last_start, found.attempts.last_end
    parts = []
    if found.status.get("epoch"):
        parts.append(f"in epoch {found.status['epoch']}")
    if start and end:
        parts.append(f"after {(end.time - start.time) / 60:.1f} min")
    return before + ", ".join(parts) if parts else ""
