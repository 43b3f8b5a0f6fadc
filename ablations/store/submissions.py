"""A submission on disk: runs/STUDY/_jobs/NAME/, shared by the runs of one job array or one local queue.

lock.json       what each run's lock.json is a link to
submission.json  the intent, written whole before the scheduler is asked
runs.txt         one run a line, VARIANT/seedK-HASH: the line number (from 0) is the array index; with
                 resources.runs_per_gpu: k, lines k i to k i + k - 1 are the runs of array index i
submission.sh    what sbatch was given
setup.sh         resources.setup, which submission.sh reads
receipt.json     the scheduler's answer: job id and cluster. Without it the job may exist or not
A_i.log          output of array element i
queue.json       heartbeat of a local queue

Every path is relative: a store can be moved and copied.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ablations.slurm import commands as slurm
from ablations.store import attempts, locks
from ablations.store.locks import JOBS, Lock
from ablations.study.model import RunSpec
from sdtps.run.folder import RunFolder, row_of
from sdtps.system import files

ASIDE = "_aside"
# A submitter on another host whose lock has no receipt: longer than sbatch may take.
SUBMITTING_SECONDS = 900.0


def new_name(study: str) -> str:
    """A job name nobody else has: what an unclear answer is looked up by.

    Short enough for columns, and of characters that no shell, file system or scheduler minds.
    """
    readable = re.sub(r"[^A-Za-z0-9]+", "-", study).strip("-")[:24] or "study"
    return f"sdtps-{readable}-{uuid.uuid4().hex[:10]}"


def key(run: Path) -> str:
    """VARIANT/seedK-HASH: how a submission names a run of its study."""
    return f"{run.parent.name}/{run.name}"


@dataclass(frozen=True)
class Submission:  # what is read is kept: make a new one to read again
    """One folder below _jobs."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def study_folder(self) -> Path:
        return self.folder.parent.parent

    @property
    def lock_file(self) -> Path:
        return self.folder / "lock.json"

    @cached_property
    def intent(self) -> dict[str, Any]:
        """submission.json; empty where the submitter died before it was written."""
        return read_json(self.folder / "submission.json")

    @cached_property
    def runs(self) -> dict[str, int]:
        """VARIANT/seedK-HASH to its place in runs.txt."""
        runs = self.intent.get("runs")
        return {key(Path(str(r))): k for k, r in enumerate(runs)} if isinstance(runs, list) else {}

    @cached_property
    def receipt(self) -> dict[str, Any]:
        return read_json(self.folder / "receipt.json")

    @property
    def job_id(self) -> str | None:
        """The id of the array, once the scheduler gave one."""
        value = self.receipt.get("job_id")
        return str(value) if value else None

    @property
    def cluster(self) -> str:
        """Name of the cluster that has the job; empty where it was not recorded."""
        return str(self.receipt.get("cluster") or "")

    @cached_property
    def elsewhere(self) -> str:
        """Where the store was when this was submitted, if this is a copy of it; else empty.

        A copy has another path and another inode; a moved store, or one that another machine sees under
        another path, keeps the inode.
        """
        if not self._earlier_store:
            return ""
        try:
            same = self.folder.stat().st_ino == self.intent["place"].get("inode")
        except OSError:
            same = True
        return "" if same else self._earlier_store

    @cached_property
    def moved(self) -> str:
        """Where the store was when this was submitted, if it was moved since; else empty."""
        return "" if self.elsewhere else self._earlier_store

    @property
    def _earlier_store(self) -> str:
        place = self.intent.get("place")
        if not isinstance(place, dict) or place.get("folder") == str(self.folder):
            return ""
        return str(Path(str(place.get("folder"))).parents[2])

    @cached_property
    def time(self) -> float:
        """When the scheduler answered; before that, when it was asked."""
        times = (self.receipt.get("time"), self.intent.get("time"))
        return next((float(t) for t in times if isinstance(t, (int, float)) and t), 0.0)

    @cached_property
    def runs_per_job(self) -> int:
        """Runs of one array element: resources.runs_per_gpu."""
        value = self.resources.get("runs_per_gpu", 1)
        return value if isinstance(value, int) and value > 0 else 1

    @property
    def resources(self) -> dict[str, Any]:
        found = self.intent.get("resources")
        return found if isinstance(found, dict) else {}

    def index(self, run: Path) -> int | None:
        """The array index of the run's job."""
        place = self.runs.get(key(run))
        return None if place is None else place // self.runs_per_job

    def element(self, run: Path) -> str | None:
        """`A_i`, the job id of the run's array element."""
        index = self.index(run)
        return None if self.job_id is None or index is None else f"{self.job_id}_{index}"

    def run(self, place: int) -> Path:
        """The run folder in that line of runs.txt, from 0."""
        return self.study_folder / list(self.runs)[place]

    def members(self, index: int) -> list[Path]:
        """The runs of array element `index`."""
        first = index * self.runs_per_job
        return [self.study_folder / run for run in list(self.runs)[first : first + self.runs_per_job]]

    def log_file(self, run: Path) -> Path | None:
        """Where the scheduler writes the element's output."""
        element = self.element(run)
        return None if element is None else self.folder / f"{element}.log"

    # -- written by the submitter ---------------------------------------------------------------

    def begin(self, lock: Lock) -> None:
        """The folder, with the file that locks link to."""
        self.folder.mkdir(parents=True)
        files.write_json(self.lock_file, lock.json())

    def write_intent(self, runs: list[Path], **fields: Any) -> None:
        """What is about to be asked of the scheduler. Written before it is asked."""
        keys = [key(run) for run in runs]
        files.write_text(self.folder / "runs.txt", "".join(f"{line}\n" for line in keys))
        place = {"folder": str(self.folder), "inode": self.folder.stat().st_ino}
        intent = {"name": self.name, "time": time.time(), "place": place, **fields, "runs": keys}
        files.write_json(self.folder / "submission.json", intent)

    def write_receipt(self, job_id: str, **fields: Any) -> None:
        """The scheduler's answer."""
        receipt = {"job_id": job_id, "time": time.time(), **fields}
        files.write_json(self.folder / "receipt.json", receipt)
        for known in ("receipt", "time"):
            self.__dict__.pop(known, None)

    def beat(self) -> None:
        """The local queue lives."""
        files.write_json(self.folder / "queue.json", {"heartbeat": time.time()})

    @property
    def heartbeat(self) -> float | None:
        """When the local queue last said so."""
        value = read_json(self.folder / "queue.json").get("heartbeat")
        return float(value) if isinstance(value, (int, float)) else None

    def discard(self) -> None:
        """Remove a submission that came to nothing. Its locks must be released already."""
        shutil.rmtree(self.folder, ignore_errors=True)


def submission_folder(run: Path, name: str) -> Path:
    """Where the submission called `name` is that holds `run` (RUNS/STUDY/VARIANT/seedK-HASH)."""
    return run.parent.parent / JOBS / name


def read_json(path: Path) -> dict[str, Any]:
    """An object, or an empty one where there is none to be read."""
    try:
        return row_of(files.read_bytes(path) or b"") or {}
    except OSError:
        return {}


# -- a new submission and its locks -----------------------------------------------------------------


@dataclass
class Locked:
    """A new submission and the runs that it has locked, until they are queued or given back."""

    submission: Submission
    runs: list[RunSpec] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)  # theirs
    fresh: set[Path] = field(default_factory=set)  # folders that did not exist before
    _earlier: dict[Path, Lock] = field(default_factory=dict)

    def take(self, folder: Path, earlier: Lock | None) -> bool:
        """Lock a run that is free, or whose lock `earlier` has ended; False: another was first."""
        fresh = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        won = locks.take(folder, self.submission.lock_file, earlier)
        if won:
            self.folders.append(folder)
            if fresh:
                self.fresh.add(folder)
            if earlier is not None:
                self._earlier[folder] = earlier
        return won

    @contextlib.contextmanager
    def given_back_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        """Nothing was queued: leave every run as it was found, and no file of ours.

        What a full disk does not let go the next submission repairs: its submitter will be dead.
        """
        for folder in self.folders:
            with contextlib.suppress(OSError):
                self._give_back(folder)
        self.submission.discard()

    def _give_back(self, folder: Path) -> None:
        mine = locks.read(folder)
        if mine is None or mine.submission != self.submission.name:
            return
        earlier = self._earlier.get(folder)
        if earlier is not None and earlier.submission:
            locks.rewrite(folder, mine, earlier)
            return
        if folder in self.fresh:
            for file in (RunFolder(folder).config_file, RunFolder(folder).run_file):
                file.unlink(missing_ok=True)
        locks.release(folder, mine)
        if folder in self.fresh:  # the run folder and its variant's, where nothing is left in them
            with contextlib.suppress(OSError):
                folder.rmdir()
                folder.parent.rmdir()


# -- recovery from crashed submissions ---------------------------------------------------------------


def repair(folders: Sequence[Path]) -> None:
    """Look up what dead submitters may have queued, by the jobs' unique names; release the rest.

    Called before each submission, so that a study never waits for a dead process. Locks stay where the
    scheduler does not answer: nothing is queued twice for want of an answer.
    """
    held: dict[str, list[tuple[Path, Lock]]] = {}
    for folder in folders:
        _remove_temporary(folder, SUBMITTING_SECONDS)  # of completed runs too
        lock = locks.read(folder)
        if lock is not None and _dead(lock) and RunFolder(folder).result() is None:
            held.setdefault(lock.submission, []).append((folder, lock))
    for name, members in held.items():
        work = Submission(submission_folder(members[0][0], name or "unreadable"))
        if work.job_id is None and not work.elsewhere:
            _settle(work, members)
    for jobs in {folder.parent.parent / JOBS for folder in folders}:
        _sweep_jobs(jobs)


def _sweep_jobs(jobs: Path) -> None:
    """Remove what submitters left that died before they locked anything."""
    for folder in jobs.glob("*"):
        if folder.is_symlink() or not folder.is_dir():
            continue
        young = time.time() - folder.stat().st_mtime < SUBMITTING_SECONDS
        if not young and not (folder / "submission.json").exists():
            Submission(folder).discard()


def _dead(lock: Lock) -> bool:
    """Its submitter cannot be about to write a receipt any more. `states` judges local queues."""
    if lock.executor == "local":
        return False
    alive = lock.submitter.alive() if lock.submitter else False
    if alive is None:
        return time.time() - lock.time > SUBMITTING_SECONDS
    return not alive and (lock.submission != "" or lock.time == 0.0)


def _settle(work: Submission, members: list[tuple[Path, Lock]]) -> None:
    if work.intent:  # the scheduler may have been asked
        started = [attempts.read(folder, work.name).last_start for folder, _ in members]
        jobs = {start.job.partition("_")[0] for start in started if start}
        cluster = str(work.intent.get("cluster") or "")
        try:
            job = min(jobs) if jobs else slurm.find_array(work.name, cluster)
        except slurm.NoAnswer:
            return
        if job is not None:
            work.write_receipt(job, cluster=cluster, found_by="name")
            return
    for folder, lock in members:
        locks.release(folder, lock)
    if work.folder.is_dir():
        work.discard()


def sweep(folder: Path, runs_dir: Path) -> None:
    """Clear a run folder that is ours now: a killed writer's files, and what is no file."""
    _remove_temporary(folder, older_s=float("-inf"))
    for name in attempts.RECORDS:
        path = folder / name
        if path.is_dir():
            path.rename(_aside(folder, runs_dir) / path.name)
        elif files.oddity(path):
            path.unlink(missing_ok=True)


def _remove_temporary(folder: Path, older_s: float) -> None:
    """Remove temporary files whose writers were killed."""
    for file in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > older_s:
                file.unlink()


def _aside(folder: Path, runs_dir: Path) -> Path:
    """A new folder for what a run no longer holds."""
    name = f"{folder.name.replace('seed', 'aside-', 1)}-{time.time_ns()}"
    target = runs_dir / ASIDE / folder.parent.parent.name / folder.parent.name / name
    target.mkdir(parents=True)
    return target


def put_aside(folder: Path, runs_dir: Path) -> None:
    """Move what a run holds, but for its lock, to runs/_aside/: it starts from nothing.

    The checkpoint goes first: if this is interrupted, nothing resumes from it.
    """
    target = _aside(folder, runs_dir)
    run = RunFolder(folder)
    first = [run.checkpoint_file, run.result_file, run.status_file]
    others = [p for p in sorted(folder.iterdir()) if p not in first and p != run.lock_file]
    for path in [*first, *others]:
        if path.exists():
            path.rename(target / path.name)


def put_aside_whole(folder: Path, runs_dir: Path) -> None:
    """Move a run that another stands for to runs/_aside/; a job that should come finds no lock."""
    target = _aside(folder, runs_dir)
    target.rmdir()
    folder.rename(target)
