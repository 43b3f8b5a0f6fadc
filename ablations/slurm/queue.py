"""One squeue for everybody who watches: its answer is shared through a file in the runs folder.

Ended jobs are kept in it longer than the controller remembers them, so that an end that anybody saw is
known to all. Losing the file loses nothing but that.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ablations.slurm import commands as slurm
from ablations.slurm.commands import JobInfo, NoAnswer
from sdtps.files import read_bytes, write_json

REFRESH_SECONDS = 15.0
SACCT_REFRESH_SECONDS = 60.0
NO_SACCT_SECONDS = 3600.0  # a cluster without accounting is asked once an hour
_MOST_ENDED = 50_000


@dataclass
class Snapshot:
    """What the scheduler said last, and when.

    Attributes:
        error: why it did not answer just now; the jobs then are those of its last answer.
        jobs: by id (`A_i`), those in squeue and those seen to end earlier.
        since: when the first of the last two answers was given; both count for `gone`.
    """

    time: float = 0.0
    error: str | None = None
    jobs: dict[str, JobInfo] = field(default_factory=dict)
    since: float = 0.0

    def gone(self, job_id: str, name: str, submitted: float) -> bool:
        """The scheduler has forgotten the job: its last two answers, both after `submitted`, lack it.

        One is not enough: a controller that has just started may answer with nothing.
        """
        return self.error is None and self.find(job_id, name) is None and self.since > submitted

    def find(self, job_id: str | None, name: str) -> JobInfo | None:
        """The job of that id and name: ids are used again by and by, names are not."""
        job = self.jobs.get(job_id) if job_id else None
        return job if job is not None and job.name == name else None


class Scheduler:
    """The shared view of the queue. `runs_dir` holds the cache; an unwritable one is done without."""

    def __init__(self, runs_dir: Path, refresh_s: float = REFRESH_SECONDS) -> None:
        self.refresh_s = refresh_s
        self._file = Path(runs_dir) / f".squeue-{os.getuid()}.json"
        self._expired_file = self._file.with_suffix(".expired")
        self._no_sacct_until = 0.0
        self._asked: dict[str, float] = {}
        self._accounted: dict[str, JobInfo] = {}

    def expire(self) -> None:
        """Something was asked of the scheduler: answers from before are not to be taken any more.

        A file of its own says so: an answer that somebody else is just waiting for is one from before.
        """
        with contextlib.suppress(OSError):
            self._expired_file.touch()
            os.utime(self._expired_file, (time.time(), time.time()))  # not the file server's clock

    def _is_fresh(self, snapshot: Snapshot) -> bool:
        try:
            expired = self._expired_file.stat().st_mtime
        except OSError:
            expired = 0.0
        return time.time() - snapshot.time < self.refresh_s and snapshot.time > expired

    def queue(self) -> Snapshot:
        """The newest answer, asked for again only when it is older than `refresh_s`, or expired."""
        cached = self._read()
        if self._is_fresh(cached):
            return cached
        with self._lock() as alone:
            if not alone:  # somebody is asking at this moment
                return self._read()
            cached = self._read()
            return cached if self._is_fresh(cached) else self._refresh(cached)

    def accounting(self, jobs: set[str]) -> dict[str, JobInfo]:
        """What sacct knows of these array ids; nothing where there is no accounting."""
        now = time.time()
        wanted = {j for j in jobs if now - self._asked.get(j, 0.0) > SACCT_REFRESH_SECONDS}
        if wanted and now > self._no_sacct_until:
            try:
                self._accounted |= slurm.sacct(wanted)
                self._asked |= dict.fromkeys(wanted, now)
            except NoAnswer as error:
                disabled = "disabled" in str(error) or "cannot be run" in str(error)
                pause = NO_SACCT_SECONDS if disabled else SACCT_REFRESH_SECONDS
                self._no_sacct_until = now + pause
        return self._accounted

    def _refresh(self, cached: Snapshot) -> Snapshot:
        now = time.time()
        try:
            listed = slurm.squeue()
        except NoAnswer as error:
            fresh = Snapshot(now, str(error), cached.jobs, cached.since)
        else:
            # A job missing for the first time is kept as it was: see `gone`.
            missing = {k: j for k, j in cached.jobs.items() if k not in listed}
            ended = {k: j for k, j in missing.items() if j.ended}
            kept = dict(list(ended.items())[-_MOST_ENDED:])
            doubtful = {
                k: replace(j, missed=True) for k, j in missing.items() if not (j.ended or j.missed)
            }
            before = cached.time if cached.error is None else 0.0
            fresh = Snapshot(now, None, {**kept, **doubtful, **listed}, before)
        self._write(fresh)
        return fresh

    def _read(self) -> Snapshot:
        try:
            value: Any = json.loads(read_bytes(self._file) or b"")
            if value["cluster"] != _cluster():
                return Snapshot()
            jobs = {row["id"]: JobInfo(**row) for row in value["jobs"]}
            return Snapshot(float(value["time"]), value["error"], jobs, float(value["since"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return Snapshot()

    def _write(self, snapshot: Snapshot) -> None:
        value = {
            "time": snapshot.time,
            "error": snapshot.error,
            "cluster": _cluster(),
            "since": snapshot.since,
            "jobs": [asdict(job) for job in snapshot.jobs.values()],
        }
        with contextlib.suppress(OSError):
            write_json(self._file, value, indent=None)

    @contextlib.contextmanager
    def _lock(self) -> Any:
        """True for one process at a time; whoever comes second reads what the first one wrote."""
        try:
            # Without waiting, should it be a FIFO.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
            handle = os.open(self._file.with_suffix(".lock"), flags, 0o644)
        except OSError:
            yield True
            return
        with open(handle, "ab") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                deadline = time.time() + slurm.QUERY_SECONDS
                while time.time() < deadline:
                    time.sleep(0.1)
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
                        break
                yield False
                return
            except OSError:
                pass
            yield True


def _cluster() -> str:
    """Which cluster the client commands speak to, as far as the environment says."""
    return os.environ.get("SLURM_CONF", "")
