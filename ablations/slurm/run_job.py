"""Runs as submitit's jobs: handles on run folders, whoever submitted them.

    jobs = [RunJob(run.folder("runs")) for run in study.runs()]
    jobs[0].state, jobs[0].done(), jobs[0].result()      # result(): result.json
    submitit.helpers.monitor_jobs(jobs)

States come from `ablations.store.states`: one question to squeue for all jobs.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from submitit.core import core, utils

from ablations.slurm.scheduler import Scheduler
from ablations.store import attempts, cancel, states
from ablations.store.states import FolderStatus
from sdtps.run.folder import RunFolder
from sdtps.system.errors import SubmissionError

# What submitit calls our states, where it is not the same in capitals. Jobs in READY, PENDING, RUNNING,
# REQUEUED and UNKNOWN are not done.
WORDS = {
    "planned": "READY",
    "queued": "PENDING",
}


class RunPaths(utils.JobPaths):
    """Where a run's log and result are."""

    @property
    def stdout(self) -> Path:
        return attempts.log_file(self.folder)

    stderr = stdout

    @property
    def result_pickle(self) -> Path:
        return RunFolder(self.folder).result_file


class RunWatcher(core.InfoWatcher):
    """The states of all runs that jobs were made for; a job is known to it by its run's folder."""

    def __init__(self, delay_s: int = 60) -> None:
        super().__init__(delay_s)
        self.known: dict[Path, FolderStatus] = {}

    def register_job(self, job_id: str) -> None:
        self.known.setdefault(Path(job_id), FolderStatus(state="planned", folder=Path(job_id)))
        super().register_job(job_id)

    def update(self) -> None:
        """Look at every run that is not completed."""
        stores: dict[Path, list[Path]] = {}
        for folder, known in self.known.items():
            if known.state != "completed":
                stores.setdefault(folder.parents[2], []).append(folder)
        for store, folders in stores.items():
            self.known |= zip(folders, states.of_folders(folders, Scheduler(store)), strict=True)
        self._last_status_check = time.time()

    def get_info(self, job_id: str, mode: str = "force") -> dict[str, str]:
        if Path(job_id) not in self.known:
            self.register_job(job_id)
        self.update_if_long_enough(mode)
        known = self.known[Path(job_id)]
        state = WORDS.get(known.state, known.state.upper())
        return {"State": state, "JobID": known.job_id or "", "NodeList": known.node or ""}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return self.get_info(job_id, mode)["State"]


class RunJob(core.Job[dict[str, Any]]):
    """A handle on one run.

    Args:
        folder: the run's, RUNS/STUDY/VARIANT/seedK-HASH.
    """

    watcher = RunWatcher()

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).absolute()
        super().__init__(self.folder, str(self.folder))
        self._paths = RunPaths(self.folder)

    def _register_in_watcher(self) -> None:
        self.watcher.register_job(str(self.folder))

    @property
    def status(self) -> FolderStatus:
        """State, kind, detail, epoch, progress; as of now."""
        self.watcher.get_info(str(self.folder), mode="force")
        return type(self).watcher.known[self.folder]

    @property
    def job_id(self) -> str:
        """The scheduler's id, once it gave one (locally a process id); until then the run's name."""
        known = self.watcher.known.get(self.folder)
        return (known.job_id if known else None) or "/".join(self.folder.parts[-3:])

    @property
    def state(self) -> str:
        return self.watcher.get_state(str(self.folder))

    def get_info(self, mode: str = "force") -> dict[str, str]:
        return self.watcher.get_info(str(self.folder), mode=mode)

    def done(self, force_check: bool = False) -> bool:
        """Whether the run has ended; one that was never submitted has not."""
        mode = "force" if force_check else "standard"
        return self.paths.result_pickle.exists() or self.watcher.is_done(str(self.folder), mode)

    def cancel(self, check: bool = True) -> None:
        """As the verb `cancel`.

        Raises:
            SubmissionError: the scheduler refused, and `check`.
        """
        refused = () if check else (SubmissionError,)
        with contextlib.suppress(*refused):
            cancel.cancel([self.status], self.folder.parents[2])

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        result = RunFolder(self.folder).result()
        if result is not None:
            return "success", result
        known = self.status
        return "error", "\n".join(
            filter(None, (f"{known.name}: {known.state}", known.reason, known.log_tail))
        )
