"""The state of each run, and how it is known. Read-only; no other module decides states.

A run's own files speak first: result.json, status.json with its heartbeat, submitit/attempts.txt,
lock.json. Only where they leave it open is the scheduler asked. A heartbeat younger than FRESH_SECONDS
(30 s) means running, whatever SLURM says. One younger than SILENT_SECONDS (120 s) means running unless
SLURM lists the job; then the state that SLURM gives counts. What cannot be known here (no answer of the
scheduler, another cluster, a colleague's hidden jobs, a copy of the store) is `unknown`, with where to
ask. An unknown run is never submitted again, deleted or cancelled unless somebody asks for it.

    completed    result.json exists; nothing else means this
    running      its heartbeat is fresh, or the scheduler runs its job
    requeued     interrupted with a checkpoint, and its job waits to start again
    queued       locked, and its job waits or is about to be submitted
    planned      nothing there, or what is there came to nothing: a submission would run it
    interrupted  stopped with a checkpoint by its own queue or by hand; a submission resumes it
    unknown      cannot be told from here; the detail says where to ask
    diverged     a loss that is NaN or infinite
    failed       kind: error (an exception), exit, crash (SIGSEGV ...), oom, timeout, node, killed,
                 disk (full), preempted, requeues (more than resources.max_requeues), start (dead
                 before Python began), lost (gone without a record), result (result.json is damaged),
                 unreadable (a file that may not be read)
    cancelled    by somebody; kind unstarted: it left the queue before it started, unseen
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ablations.slurm import commands as slurm
from ablations.slurm import endings
from ablations.slurm.commands import JobInfo
from ablations.slurm.scheduler import STILL_TRUE_SECONDS, Answers, Array, Scheduler
from ablations.store import attempts as records
from ablations.store import locks
from ablations.store.attempts import Attempts, End
from ablations.store.locks import Lock
from ablations.store.submissions import SUBMITTING_SECONDS, Submission, submission_folder
from ablations.study.model import RunSpec, Study
from sdtps.run.folder import HEARTBEAT_SECONDS, RunFolder
from sdtps.system import files
from sdtps.system.errors import counted

STATES = (
    *("completed", "running", "requeued", "queued", "planned", "interrupted", "unknown"),
    *("diverged", "failed", "cancelled"),
)
ACTIVE = frozenset({"queued", "running", "requeued"})
UNFINISHED = ACTIVE | {"planned", "interrupted", "unknown"}
ENDED_BADLY = frozenset({"diverged", "failed", "cancelled"})

# A heartbeat younger than this is believed whatever SLURM says.
FRESH_SECONDS = 2 * HEARTBEAT_SECONDS
# A heartbeat this old no longer shows that a run is alive; it does not prove that it ended.
SILENT_SECONDS = 8 * HEARTBEAT_SECONDS
# A job that PreemptMode=REQUEUE brings back leaves the scheduler's state PREEMPTED within seconds.
PREEMPTED_SECONDS = 180.0
# Killed from outside so often, a run is not resumed by itself any more.
MOST_KILLS = 3

DAMAGED = "result.json cannot be read; --retry failed puts it aside and runs again from the start"
CANARIES = "_canaries"  # a run store of their own, below the runs folder
_RESUMES = "; a submission resumes it"
_CERTAIN = ("disk", "timeout", "oom", "node")  # what a job's log says for certain
_NOBODY = Lock("", "", None, 0.0)
_NO_RESULT = frozenset({"planned", "interrupted", "diverged", "failed", "cancelled"})


@dataclass(frozen=True, kw_only=True)
class FolderStatus:
    """A run's state and what is known of it.

    Attributes:
        folder: of the run.
        detail: one line for people, empty where the state says all.
        epoch, progress: of the newest attempt; progress in [0, 1].
        eta: seconds to go, by the run's own estimate.
        log_file: where the newest job's output is.
        held: queued or requeued, and nothing starts it until somebody releases its job.
        status: status.json of the attempt that counts.
        elsewhere: the store that this one is a copy of, where the run was submitted from that one.
        often: killed from outside so often that only somebody who asks for it resumes it.
    """

    state: str
    folder: Path = Path()
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
    status: dict[str, Any] = field(default_factory=dict, compare=False)
    elsewhere: str = ""
    often: bool = False

    @property
    def name(self) -> str:
        """STUDY/VARIANT/seedK-HASH: its place below the runs folder."""
        return "/".join(self.folder.parts[-3:])

    @property
    def reason(self) -> str:
        """Kind and detail in one line."""
        return ": ".join(part for part in (self.kind, self.detail) if part)

    @property
    def resumes(self) -> bool:
        """The failure says nothing about the run itself; a plain submission resumes it."""
        return self.state == "failed" and self.kind in endings.NOT_ITS_FAULT and not self.often

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def may_run(self) -> bool:
        """It is active, or nobody here can tell that it is not."""
        return self.active or self.state == "unknown"

    @cached_property
    def log_tail(self) -> str:
        """The last lines of the job's output, or of train.log where the job said nothing."""
        own = None if self.log_file is None else self.log_file.parent.parent / "train.log"
        return endings.tail(self.log_file) or endings.tail(own)


@dataclass(frozen=True)
class RunStatus(FolderStatus):
    """The state of a planned run, and what is known of it."""

    run: RunSpec


# -- doors --------------------------------------------------------------------------------------


def run_states(
    runs: Sequence[RunSpec], runs_dir: Path | str, scheduler: Scheduler | None = None
) -> list[RunStatus]:
    """The state of each run, in order. The scheduler is asked where a run's records leave it open."""
    runs_dir = Path(runs_dir).resolve()
    for folder in {runs_dir, *(runs_dir / run.study for run in runs)}:
        if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "cannot be read", str(folder))
    found = of_folders([run.folder(runs_dir) for run in runs], scheduler or Scheduler(runs_dir))
    return [RunStatus(run=run, **vars(one)) for run, one in zip(runs, found, strict=True)]


def of_folders(folders: Sequence[Path], scheduler: Scheduler) -> list[FolderStatus]:
    """The state of each run folder, in order: by its records, and where they leave it open by SLURM.

    Records are read again after the scheduler was asked: else a run could end in between, and "ended"
    would meet records without an end.
    """
    reader = _Reader()
    found = [reader.look(folder) for folder in folders]
    arrays = {one.array for one in found if isinstance(one, _Records) and one.array is not None}
    cluster = _OnCluster(scheduler, scheduler.look(arrays))
    newest = [reader.look(one.folder) if isinstance(one, _Records) else one for one in found]
    return [one if isinstance(one, FolderStatus) else cluster.settle(one) for one in newest]


def unplanned(study: Study, runs_dir: Path) -> list[Path]:
    """Run folders of the study that none of its runs has: of variants that left the manifest."""
    planned = {run.folder(runs_dir) for run in study.runs()}
    return [
        folder
        for folder in sorted((runs_dir / study.name).glob("*/seed*"))
        if folder not in planned and folder.is_dir() and not RunFolder(folder).run().get("imported")
    ]


def from_records(folder: Path) -> FolderStatus:
    """The state by the run's own files alone; `unknown` where only the scheduler could tell."""
    found = _Reader().look(folder)
    if isinstance(found, FolderStatus):
        return found
    return found.by_records("only its cluster can tell: sdtps status there")


def of_unknown(runs: Sequence[FolderStatus]) -> list[str]:
    """For people: how many runs are unknown, why, and what can be done."""
    reasons = Counter(one.detail for one in runs if one.state == "unknown")
    return [
        f"{counted(n, 'run')} may be running; the state is unknown: {why}. "
        "Look there; where none of them runs, `retry STUDY --unknown` runs them again."
        for why, n in reasons.items()
    ]


def memory_asked(folder: Path) -> float | None:
    """resources.mem_gb of the run's last submission, where it is known."""
    lock = locks.read(folder)
    given = (
        Submission(submission_folder(folder, lock.submission)).resources.get("mem_gb") if lock else None
    )
    return float(given) if isinstance(given, (int, float)) else None


def silent(status: dict[str, Any]) -> bool:
    """No heartbeat within SILENT_SECONDS. One from the future is no sign of life: clocks differ."""
    return not 0 <= age(status) + HEARTBEAT_SECONDS < SILENT_SECONDS + HEARTBEAT_SECONDS


def age(status: dict[str, Any]) -> float:
    """Seconds since the run's last heartbeat."""
    beat = status.get("heartbeat")
    return time.time() - float(beat) if isinstance(beat, (int, float)) else float("inf")


# -- own records --------------------------------------------------------------------------------


class _Reader:
    """Looks at run folders, and at each submission once."""

    def __init__(self) -> None:
        self._submissions = cache(Submission)  # each is read once
        self._locks: dict[int, Lock] = {}  # by inode: locks are links to one file

    def look(self, folder: Path) -> FolderStatus | _Records:
        """The state by the run's own records, or what the scheduler must be asked for."""
        try:
            return self._look(folder)
        except OSError as error:  # one such file must not hide the other runs
            name = Path(error.filename or folder).name
            why = f"{name}: {error.strerror}"
            return FolderStatus(state="failed", folder=folder, kind="unreadable", detail=why)

    def _look(self, folder: Path) -> FolderStatus | _Records:
        try:
            with os.scandir(folder) as entries:
                names = {entry.name: entry for entry in entries}
        except FileNotFoundError:  # also of a link to an equal run that was deleted
            return FolderStatus(state="planned", folder=folder)
        except NotADirectoryError:
            raise OSError(errno.ENOTDIR, f"is {files.oddity(folder)}", str(folder)) from None
        run = RunFolder(folder)
        if "result.json" in names and (result := run.result()) is not None:
            return _completed(run, result)
        status = (run.status() if "status.json" in names else None) or {}
        lock = self._lock(folder, names["lock.json"]) if "lock.json" in names else None
        holder = lock or _NOBODY
        work = self._submissions(submission_folder(folder, holder.submission or "unreadable"))
        attempts = records.read(folder, holder.submission) if "submitit" in names else Attempts()
        if lock is not None and attempts.last_start is None:
            status = {}  # it speaks of an earlier submission
        damaged, odd = "result.json" in names, _odd_files(folder, names)
        found = _Records(folder, holder, work, attempts, status, damaged, odd)
        return _unlocked(found) if lock is None else _recorded(found)

    def _lock(self, folder: Path, entry: os.DirEntry[str]) -> Lock | None:
        lock = self._locks.get(entry.inode())
        if lock is None:
            lock = locks.read(folder)
            if lock is not None and lock.submission:
                self._locks[entry.inode()] = lock
        return lock


def _recorded(found: _Records) -> FolderStatus | _Records:
    """The state of a run that a submission holds, where its records say it."""
    lock, work, end = found.lock, found.submission, found.attempts.last_end
    if ended := found.told_end():
        return ended
    if found.status.get("state") == "completed" and end is not None:
        # result.json is written after it: that write failed or was killed.
        return found.in_state("interrupted", None, f"ended before result.json{_RESUMES}")
    if lock.executor == "local":
        return _local(found)
    if found.beats and age(found.status) < FRESH_SECONDS:
        return found.in_state("running")  # whatever a scheduler says
    if end is not None and end.code not in (0, endings.INTERRUPTED) and not end.terminated:
        # It ended by itself: the scheduler need not be asked. (Exit 0 without a result is no such
        # end: srun says it of a run whose node went down.)
        return found.by_end(end)
    if end is not None and lock.cancelled and work.runs_per_job > 1:
        return found.by_end(end)  # its job still runs other runs
    if work.elsewhere:
        return found.by_records(f"this store is a copy of {work.elsewhere}: sdtps status there")
    return found


def _odd_files(folder: Path, names: dict[str, os.DirEntry[str]]) -> str:
    """What is no file under the name of a record; empty: nothing."""
    suspects = [n for n in records.RECORDS if n in names and not names[n].is_file()]
    if "submitit" in names:
        suspects += [n for n in records.RECORDS if "/" in n]
    found = ((name, files.oddity(folder / name)) for name in suspects)
    return "; ".join(f"{name} is {what}" for name, what in found if what)


@dataclass(frozen=True)
class _Records:
    """What the files of a run that is not completed say.

    Attributes:
        lock: whose run it is; _NOBODY's where no submission holds it.
        status: of the current job; empty before it wrote any.
        damaged: something is called result.json, and is no result.
        odd: what is no file under the name of a record.
    """

    folder: Path
    lock: Lock
    submission: Submission
    attempts: Attempts
    status: dict[str, Any]
    damaged: bool
    odd: str

    @property
    def began(self) -> bool:
        return self.attempts.last_start is not None

    @property
    def beats(self) -> bool:
        """It said that it runs, not long ago, and no end of it is recorded."""
        ended = self.attempts.last_end is not None
        return self.status.get("state") == "running" and not ended and not silent(self.status)

    @cached_property
    def job_id(self) -> str | None:
        job = self.submission.element(self.folder) if self.lock.executor != "local" else None
        start = self.attempts.last_start
        return job or (start.job if start else None)

    @cached_property
    def array(self) -> Array | None:
        """The job array to ask about, and its cluster."""
        if self.submission.job_id is None:
            return None
        return self.submission.cluster or slurm.cluster_name(), self.submission.job_id

    def in_state(self, state: str, kind: str | None = None, why: str = "", **more: Any) -> FolderStatus:
        """The state, with what the run itself says filled in."""
        start = self.attempts.last_start
        known: dict[str, Any] = {
            "attempt": self.status.get("attempt"),
            "epoch": self.status.get("epoch"),
            "progress": self.status.get("progress"),
            "eta": self.status.get("eta_s") if state == "running" else None,
            "job_id": self.job_id,
            "node": start.process.host if start else None,
            "log_file": self.log_file,
            "status": self.status,
            "elsewhere": self.submission.elsewhere,
            "folder": self.folder,
        }
        if kind == "killed" and self.attempts.kills >= MOST_KILLS:
            known["often"] = True
            why = f"{why}, {self.attempts.kills} times by now"
        why = "; ".join(filter(None, (why, self.odd)))
        if self.damaged and state in _NO_RESULT:
            state, kind, why = "failed", "result", DAMAGED
        return FolderStatus(state=state, kind=kind, detail=why, **{**known, **more})

    def told_end(self) -> FolderStatus | None:
        """Diverged or failed, as the run itself wrote down."""
        status, reason = self.status, str(self.status.get("reason") or "")
        if status.get("state") == "diverged":
            where = f"epoch {status.get('epoch')}, step {status.get('step')}"
            return self.in_state("diverged", None, reason or where)
        if status.get("state") == "failed":
            return self.in_state("failed", str(status.get("kind") or "error"), reason)
        return None

    @property
    def log_file(self) -> Path:
        """The link in the run folder, or before a job made it the file that the scheduler writes."""
        link = records.log_file(self.folder)
        if self.began and link.exists():
            return link
        return self.submission.log_file(self.folder) or link

    def silence(self) -> str:
        """A note where a running run has not been heard of for long."""
        if not self.status or not silent(self.status):
            return ""
        return f"no heartbeat for {age(self.status) / 60:.0f} min"

    def course(self) -> str:
        """How far the run came, and how long its last job ran."""
        start, end = self.attempts.last_start, self.attempts.last_end
        took = f"after {(end.time - start.time) / 60:.1f} min" if start and end else ""
        return ", ".join(filter(None, (_in_epoch(self.status).strip(), took)))

    def cancelled(self, **more: Any) -> FolderStatus:
        return self.in_state("cancelled", None, self.failed_canary() or self.course(), **more)

    def failed_canary(self) -> str:
        """Why a run never started whose canaries had to succeed first."""
        after = str(self.submission.intent.get("after") or "")
        if self.began or self.lock.cancelled or not after.startswith("afterok:"):
            return ""
        study = self.submission.study_folder
        store = study.parent / CANARIES / study.name
        return f"its canary failed, so it was not started: sdtps logs {store}/VARIANT/seedK-HASH"

    def ended_by(self, kind: str, job: JobInfo | None = None, **more: Any) -> FolderStatus:
        """Failed by what the cluster did: what ended it, on which node, how far it came."""
        start = self.attempts.last_start
        node = (job.node if job else "") or (start.process.host if start else "")
        what = {
            "disk": "found no space left on a disk",
            "timeout": "ran into its time limit",
            "oom": "used more memory than resources.mem_gb allows",
            "node": "its node failed",
            "preempted": "preempted, and not queued again",
        }[kind]
        words = filter(None, (what, node and f"on {node}", self.course()))
        return self.in_state("failed", kind, " ".join(words), **more)

    @cached_property
    def said(self) -> str | None:
        """What the job's output says of its end."""
        return endings.from_log(endings.tail(self.log_file))

    def unstarted(self) -> FolderStatus | None:
        """Failed, where its job looked for the run where the store was when it was submitted."""
        where = self.submission.moved
        why = f"the store was at {where} when it was submitted: its job found no run there"
        return self.in_state("failed", "start", why) if where else None

    def by_end(self, end: End) -> FolderStatus:
        """From the exit record, and the output where the code alone does not say."""
        kind, what = endings.from_code(end.code)
        if end.code == endings.NOT_OURS and self.lock.cancelled:
            return self.cancelled()
        said = self.said
        if kind == "killed" or end.code == 0 or end.terminated:
            if said in _CERTAIN:
                return self.ended_by(said)
            if self.lock.cancelled or said == "cancelled":
                return self.cancelled()
            if end.terminated and said in ("preempted", "requeue"):
                return self.ended_by("preempted")
        if kind == "exit" and end.code != 0 and not self.attempts.python_ran:
            return self.in_state("failed", "start", f"Python did not come up (exit {end.code})")
        if kind == "exit" and said in ("oom", "disk"):
            return self.ended_by(said)
        if end.code == endings.INTERRUPTED:
            if end.terminated:
                return self.in_state("cancelled", None, "told to stop, and not queued again")
            why = "stopped at its time limit, and could not be requeued"
            return self.in_state("failed", "timeout", why)
        return self.in_state("failed", kind, what)

    def by_records(self, ask: str) -> FolderStatus:
        """Without a scheduler's answer: what is certain, else `unknown` with where to ask."""
        end = self.attempts.last_end
        if self.beats:
            return self.in_state("running")
        if end is not None and end.code == 0:
            return self.by_end(end)
        if self.lock.cancelled and (end is not None or not self.began):
            return self.cancelled()
        if end is not None and end.code == endings.INTERRUPTED:
            ask = f"stopped with a checkpoint{_in_epoch(self.status)}; {ask}"
            return self.in_state("unknown", None, ask)
        if end is not None:
            return self.by_end(end)
        quiet = self.silence() or ("began" if self.began else "queued when last heard of")
        return self.in_state("unknown", None, f"{quiet}; {ask}")


def _in_epoch(status: dict[str, Any]) -> str:
    return f" in epoch {status['epoch']}" if status.get("epoch") else ""


def _completed(run: RunFolder, result: dict[str, Any]) -> FolderStatus:
    best = result.get("best")
    epoch = best.get("epoch") if isinstance(best, dict) else None
    return FolderStatus(
        state="completed",
        folder=run.path,
        epoch=epoch if isinstance(epoch, int) else None,
        progress=1.0,
        attempt=result.get("attempt"),
        log_file=records.log_file(run.path),
    )


def _unlocked(found: _Records) -> FolderStatus:
    """A run that somebody started by hand, that its queue gave back, or that was imported."""
    state = found.status.get("state")
    if ended := found.told_end():
        return ended
    if state == "cancelled":
        return found.in_state("cancelled", None, str(found.status.get("reason") or ""))
    if state == "running" and not silent(found.status):
        return found.in_state("running", None, "started by hand")
    if state in ("running", "requeued", "completed"):
        return found.in_state("interrupted", None, f"stopped{_in_epoch(found.status)}{_RESUMES}")
    return found.in_state("planned")


def _local(found: _Records) -> FolderStatus:
    """A run of a local queue, which is the submitter."""
    start, end = found.attempts.last_start, found.attempts.last_end
    copied = found.submission.elsewhere
    if copied and end is None:  # the processes are those of the original
        return found.by_records(f"this store is a copy of {copied}: sdtps status there")
    queue = None if copied else _queue_runs(found)
    host = found.lock.submitter.host if found.lock.submitter else "its host"
    cannot_tell = f"its local queue on {host} is silent: sdtps status there"
    if end is None and start is not None:
        alive = start.process.alive()
        if alive or (alive is None and found.beats):
            return found.in_state("running", None, found.silence())
        if queue:
            return found.in_state("failed", "killed", "its process was killed")
        if alive is None and queue is None:
            return found.in_state("unknown", None, cannot_tell)
        return found.in_state("interrupted", None, f"killed{_in_epoch(found.status)}{_RESUMES}")
    if found.lock.cancelled:
        return found.cancelled()
    if end is None:
        if queue:
            return found.in_state("queued")
        if queue is None:
            return found.in_state("unknown", None, cannot_tell)
        return found.in_state("planned", None, "its local queue was stopped before it began")
    if end.code == endings.INTERRUPTED:
        if queue:
            return found.in_state("requeued", None, "waits for a slot")
        return found.in_state("interrupted", None, f"stopped{_in_epoch(found.status)}{_RESUMES}")
    kind, what = endings.from_code(end.code)
    return found.in_state("failed", kind, what)


def _queue_runs(found: _Records) -> bool | None:
    """Whether the local queue runs; None: it is another host's, and silent."""
    submitter = found.lock.submitter
    alive = submitter.alive() if submitter else False
    if alive is not None:
        return alive
    beat = found.submission.heartbeat or found.lock.time
    return None if silent({"heartbeat": beat}) else True


# -- the scheduler's word ------------------------------------------------------------------------


class _OnCluster:
    """Settles open runs with the scheduler's answers.

    Both are needed: a scheduler without accounting soon forgets how a job ended, and a job whose node
    died could write nothing down.
    """

    def __init__(self, scheduler: Scheduler, answers: dict[str, Answers]) -> None:
        self._scheduler = scheduler
        self._answers = answers
        self._named = cache(_named)  # each submission is asked about once

    def settle(self, found: _Records) -> FolderStatus:
        """The state of a run on the cluster."""
        if found.array is None:
            return self._without_receipt(found)
        assert found.job_id is not None
        answers = self._answers.get(found.array[0], Answers(error="it was not asked"))
        job = answers.find(found.job_id, found.submission.name, whole=not found.began)
        listed = job is not None and not job.missed and not answers.error
        if found.beats and not listed:
            return found.in_state("running")  # silence of a scheduler is not death
        if answers.error:
            return self._no_answer(found, answers, job)
        if job is not None and not job.missed:
            return self._by_job(found, job)
        return self._unlisted(found, answers, job)

    def _no_answer(self, found: _Records, answers: Answers, job: JobInfo | None) -> FolderStatus:
        """The last answer counts for ten minutes; then the state is unknown."""
        assert found.array is not None
        cluster, array = found.array
        where = "here" if cluster == slurm.cluster_name() else f"on {cluster}"
        why = f"the scheduler does not answer: {answers.error.strip()[:200]}"
        old = time.time() - answers.answers(array)[1]
        if job is not None and (job.ended or old < STILL_TRUE_SECONDS):
            told = self._by_job(found, job)
            note = f"as of {old / 60:.0f} min ago; {why}"
            if job.ended:
                return told
            return replace(told, detail="; ".join(filter(None, (told.detail, note))))
        return found.by_records(f"{why} (asked {where})")

    def _by_job(self, found: _Records, job: JobInfo) -> FolderStatus:
        where = {"node": job.node or None}
        start, end = found.attempts.last_start, found.attempts.last_end
        newer = start is not None and end is None and start.restart >= job.restarts
        if job.state in ("PENDING", "CONFIGURING") and newer and not job.held:
            # It has begun since the scheduler was asked: answers are some seconds old.
            return found.in_state("running", None, found.silence())
        if job.state == "PREEMPTED":
            return self._preempted(found, job)
        if job.waiting:
            if found.lock.cancelled and found.submission.runs_per_job > 1:
                return found.in_state("cancelled")  # its job waits for the sake of other runs
            why = job.reason or job.state
            if "DependencyNeverSatisfied" in why:
                why = "the job that it waits for failed, and it will never start: cancel it"
            waits = f"held ({why}): nothing starts it until it is released" if job.held else ""
            if found.began or job.restarts:
                return self._waits_again(found, job, waits or f"waits to start again ({why})")
            return found.in_state("queued", None, waits or (why if job.reason else ""), held=job.held)
        if not job.ended:
            return found.in_state("running", None, found.silence(), **where)
        kind = endings.OF_STATE.get(job.state)
        if kind == "cancelled" or (kind is None and found.lock.cancelled):
            return found.cancelled(**where)
        if kind is not None:
            return found.ended_by(kind, job, **where)
        if end is not None:
            return found.by_end(end)
        return self._by_exit(found, job)

    @staticmethod
    def _waits_again(found: _Records, job: JobInfo, detail: str) -> FolderStatus:
        again = found.status.get("attempt") or max(job.restarts, len(found.attempts.starts))
        return found.in_state("requeued", None, detail, attempt=again + 1, held=job.held)

    def _preempted(self, found: _Records, job: JobInfo) -> FolderStatus:
        """On its way back (PreemptMode=REQUEUE), or ended (CANCEL): the latter stays PREEMPTED."""
        start, end = found.attempts.last_start, found.attempts.last_end
        began = start.time if start else found.submission.time
        last = max(began, end.time if end else 0.0, time.time() - age(found.status))
        if time.time() - last < PREEMPTED_SECONDS:
            return self._waits_again(found, job, "preempted; it may be queued again")
        return found.ended_by("preempted", job)

    @staticmethod
    def _by_exit(found: _Records, job: JobInfo) -> FolderStatus:
        """The batch script could not record its end, but the scheduler knows its exit."""
        if found.said in _CERTAIN:
            return found.ended_by(found.said, job)
        if not found.began and job.state != "COMPLETED":
            how = f"signal {job.signal}" if job.signal else f"exit code {job.code}"
            why = f"the job ended before the run began ({how})"
            return found.unstarted() or found.in_state("failed", "start", why)
        code = 128 + job.signal if job.signal else job.code
        return found.in_state("failed", *endings.from_code(code))

    def _unlisted(self, found: _Records, answers: Answers, last: JobInfo | None) -> FolderStatus:
        """squeue does not name the job: it does not know it yet, or not any more, or hides it."""
        end = found.attempts.last_end
        assert found.job_id is not None and found.array is not None
        if not answers.gone(found.job_id, found.submission.name, found.submission.time + 5):
            state = "running" if found.began and end is None else "requeued" if end else "queued"
            return found.in_state(state, None, found.silence())
        known = self._scheduler.accounting(found.array).get(found.job_id)
        if known is not None and known.name == found.submission.name and known.state != "PENDING":
            return self._by_job(found, known)
        if end is not None and end.code != endings.INTERRUPTED:
            return found.by_end(end)
        said = found.said
        other = answers.jobs.get(found.job_id)
        if other is not None and not other.ended and not other.missed:
            what = f"job {other.id} is called {other.name}, not {found.submission.name}"
            return found.by_records(f"{what}: the cluster renames jobs, or uses ids again")
        if found.lock.cancelled or said == "cancelled":
            return found.cancelled()
        if said in _CERTAIN:
            return found.ended_by(said)
        if not found.lock.mine:
            # A cluster with PrivateData=jobs hides other people's jobs.
            owner = found.lock.user
            return found.by_records(f"the scheduler shows no job of {owner}'s: ask {owner}")
        if end is not None:
            return found.by_end(end)
        if said in ("preempted", "requeue"):
            return found.ended_by("preempted")
        if found.began:
            why = f"job {found.job_id} is gone and left no exit record"
            return found.in_state("failed", "lost", why)
        # Nobody looked while the scheduler still knew. What waits seldom leaves in another way.
        why = f"job {found.job_id} left the queue before it started: cancelled or forgotten"
        why = found.failed_canary() or why
        return found.unstarted() or found.in_state("cancelled", "unstarted", why)

    def _without_receipt(self, found: _Records) -> FolderStatus:
        """No job id was written down: the submitter is at it, or died, or got no clear answer."""
        submitter = found.lock.submitter
        alive = submitter.alive() if submitter else False
        if alive or (alive is None and time.time() - found.lock.time < SUBMITTING_SECONDS):
            return found.in_state("queued", None, "being submitted")
        if not found.submission.intent:
            # What it was before still holds: a diverged run must not resume from its checkpoint.
            before = _unlocked(replace(found, status=RunFolder(found.folder).status() or {}))
            why = "its submitter died before it asked the scheduler"
            return before if before.state != "planned" else found.in_state("planned", None, why)
        index = found.submission.index(found.folder)
        jobs = self._named(found.submission.name, str(found.submission.intent.get("cluster") or ""))
        if isinstance(jobs, str):
            return found.by_records(f"it is unclear whether it was submitted: {jobs}")
        for job in jobs.values():
            if job.name == found.submission.name and job.id.endswith(f"_{index}"):
                return self._by_job(found, job)
        if found.began:
            return found.by_records("its submitter died, and no job of that name is queued")
        return found.in_state("planned", None, "its submitter died; no job of that name is queued")


def _named(name: str, cluster: str) -> dict[str, JobInfo] | str:
    """The jobs of that name; or why there is no answer."""
    try:
        return slurm.squeue(name=name, cluster=cluster)
    except slurm.NoAnswer as answer:
        return str(answer)
