"""Answers of squeue, shared through a file in the runs folder by all who watch its runs.

A process asks squeue only where the file's answer is too old, and writes the new answer there. Ended
jobs are kept in it longer than the controller remembers them, so that an end that anybody saw is known
to all. Losing the file loses nothing but that.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from filelock import FileLock
from pydantic import TypeAdapter

from ablations.slurm import commands as slurm
from ablations.slurm.commands import JobInfo, NoAnswer
from ablations.study.site import read_site
from sdtps.system import files

REFRESH_SECONDS = 15.0
FAILED_SECONDS = 60.0  # before one that did not answer is asked again
SACCT_REFRESH_SECONDS = 60.0
NO_SACCT_SECONDS = 3600.0  # a cluster without accounting is asked once an hour
STILL_TRUE_SECONDS = 600.0  # how long the last answer stands where a new one fails
_MOST_ENDED = 50_000

Array = tuple[str, str]  # (name of its cluster, id of the job array)


@dataclass
class Answers:
    """What one cluster's scheduler said.

    Attributes:
        time: of the last question. error: why it was not answered; empty: it was.
        answered: array id to the times of the last two answers about it, the earlier first.
        jobs: by element (`A_i`): those listed last, and those seen to end earlier.
    """

    time: float = 0.0
    error: str = ""
    answered: dict[str, tuple[float, float]] = field(default_factory=dict)
    jobs: dict[str, JobInfo] = field(default_factory=dict)

    def answers(self, array: str) -> tuple[float, float]:
        return self.answered.get(array, (0.0, 0.0))

    def fresh(self, array: str, refresh_s: float, expired: float) -> bool:
        """No new question is needed. Times in the future are another machine's clock: not fresh."""
        now = time.time()
        if self.error:
            return 0 <= now - self.time < min(FAILED_SECONDS, 4 * refresh_s) and self.time > expired
        last = self.answers(array)[1]
        return 0 <= now - last < refresh_s and last > expired

    def find(self, element: str, name: str, *, whole: bool = False) -> JobInfo | None:
        """The job of that id and name: ids are used again by and by, names are not.

        Args:
            whole: take the whole array's row too, where it has ended: squeue lists an array that was
                cancelled before any of it started as one job.
        """
        job = self.jobs.get(element)
        if whole and (job is None or job.missed):
            array = self.jobs.get(element.partition("_")[0])
            job = array if array is not None and array.ended else job
        return job if job is not None and job.name == name else None

    def gone(self, element: str, name: str, submitted: float) -> bool:
        """The scheduler has forgotten the job: its last two answers, both after `submitted`, lack it.

        One is not enough: a controller that has just started may answer with nothing.
        """
        since = self.answers(element.partition("_")[0])[0]
        known = submitted < since <= time.time()
        return not self.error and self.find(element, name) is None and known


@dataclass
class _Kept:
    """The file's content.

    Attributes:
        conf: SLURM_CONF of those who asked: the answers are of its clusters.
        clusters: by name, as clusters may share the store.
    """

    conf: str
    clusters: dict[str, Answers]


_FORMAT = TypeAdapter(_Kept)


class Scheduler:
    """The shared view of the queue.

    Args:
        runs_dir: holds the cache; an unwritable one is done without.
        patience_s: how long an answer is waited for [as the site file says]: a controller that is down
            must not keep anybody waiting.
    """

    def __init__(
        self, runs_dir: Path, refresh_s: float = REFRESH_SECONDS, patience_s: float | None = None
    ) -> None:
        self.refresh_s = refresh_s
        self._given_patience_s = patience_s
        self._file = Path(runs_dir) / f".squeue-{os.getuid()}.json"
        self._expired_file = self._file.with_suffix(".expired")
        # sacct is not asked before this time; each array's last answer, and when it was given.
        self._no_sacct_until = 0.0
        self._accounted: dict[Array, tuple[float, dict[str, JobInfo]]] = {}

    @cached_property
    def patience_s(self) -> float:
        return self._given_patience_s or read_site().squeue_seconds

    def expire(self) -> None:
        """Something was asked of the scheduler: answers from before are not to be taken any more.

        A file of its own says so: an answer that somebody else is just waiting for is one from before.
        """
        with contextlib.suppress(OSError):
            self._expired_file.touch()
            os.utime(self._expired_file, (time.time(), time.time()))  # not the file server's clock

    def look(self, arrays: Iterable[Array]) -> dict[str, Answers]:
        """The newest answers about these arrays by cluster, asked anew where they are too old."""
        needed: dict[str, set[str]] = {}
        for cluster, array in arrays:
            needed.setdefault(cluster, set()).add(array)
        if not needed:
            return {}
        known = self._read()
        if not self._stale(known, needed):
            return known
        with contextlib.ExitStack() as held:
            # One asks and the others read its answer; a store that takes no lock is done without.
            with contextlib.suppress(OSError):
                lock = FileLock(self._file.with_suffix(".lock"), timeout=2 * self.patience_s)
                held.enter_context(lock)
            known = self._read()
            for cluster, ids in self._stale(known, needed).items():
                known[cluster] = self._ask(cluster, ids, known.get(cluster, Answers()))
            self._write(known)
        return known

    def accounting(self, array: Array) -> dict[str, JobInfo]:
        """What sacct knows of the array's elements; nothing where there is no accounting."""
        now = time.time()
        cluster, job = array
        time_of, jobs = self._accounted.get(array, (0.0, {}))
        if now - time_of > SACCT_REFRESH_SECONDS and now > self._no_sacct_until:
            try:
                jobs = slurm.sacct([job], cluster=cluster, timeout_s=self.patience_s)
                self._accounted[array] = now, jobs
            except NoAnswer as error:
                disabled = "disabled" in str(error) or "cannot be run" in str(error)
                self._no_sacct_until = now + (NO_SACCT_SECONDS if disabled else SACCT_REFRESH_SECONDS)
        return jobs

    # -- inside ---------------------------------------------------------------------------------

    def _stale(self, known: dict[str, Answers], needed: dict[str, set[str]]) -> dict[str, set[str]]:
        """The arrays of `needed` that must be asked about, by cluster."""
        try:
            expired = self._expired_file.stat().st_mtime
        except OSError:
            expired = 0.0
        expired = expired if expired <= time.time() else 0.0
        return {
            cluster: ids
            for cluster, ids in needed.items()
            if not all(
                known.get(cluster, Answers()).fresh(array, self.refresh_s, expired) for array in ids
            )
        }

    def _ask(self, cluster: str, ids: set[str], before: Answers) -> Answers:
        now = time.time()
        try:
            listed = slurm.squeue(ids, cluster=cluster, timeout_s=self.patience_s)
        except NoAnswer as error:
            return Answers(now, str(error)[-500:], before.answered, before.jobs)
        kept = {}
        for element, job in before.jobs.items():
            if element in listed:
                continue
            if element.partition("_")[0] not in ids or job.ended:
                kept[element] = job
            elif not job.missed:  # missing for the first time: see `gone`
                kept[element] = replace(job, missed=True)
        recent = dict(list(kept.items())[-_MOST_ENDED:])
        answered = {array: (before.answers(array)[1], now) for array in ids}
        return Answers(now, "", before.answered | answered, recent | listed)

    def _read(self) -> dict[str, Answers]:
        try:
            kept = _FORMAT.validate_json(files.read_bytes(self._file) or b"")
        except (OSError, ValueError):
            return {}
        return kept.clusters if kept.conf == os.environ.get("SLURM_CONF", "") else {}

    def _write(self, known: dict[str, Answers]) -> None:
        kept = _Kept(os.environ.get("SLURM_CONF", ""), known)
        with contextlib.suppress(OSError):
            files.write_bytes(self._file, _FORMAT.dump_json(kept))
