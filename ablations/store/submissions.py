"""A submission on disk: runs/STUDY/_jobs/NAME/, shared by the runs of one job array or one local queue.

claim.json       what each run's claim.json is a link to
submission.json  the intent, written whole before the scheduler is asked
runs.txt         one run folder a line: the line number (from 0) is the array index; with
                 resources.runs_per_gpu: k, lines k i to k i + k - 1 are the runs of array index i
submission.sh    what sbatch was given
receipt.json     the scheduler's answer: the job id. Without it nobody knows whether the job exists
A_i.log          output of array element i
"""

from __future__ import annotations

import json
import re
import shutil
import time
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ablations.store.claims import Claim
from sdtps.files import read_bytes, write_json, write_text

JOBS = "_jobs"


def new_name(study: str) -> str:
    """A job name nobody else has: what an unclear answer is looked up by.

    Short enough for columns, and of characters that no shell, file system or scheduler minds.
    """
    readable = re.sub(r"[^A-Za-z0-9]+", "-", study).strip("-")[:24] or "study"
    return f"sdtps-{readable}-{uuid.uuid4().hex[:10]}"


@dataclass(frozen=True)
class Submission:  # what is read is kept: make a new one to read again
    """One folder below _jobs."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def claim_file(self) -> Path:
        return self.folder / "claim.json"

    @property
    def script_file(self) -> Path:
        return self.folder / "submission.sh"

    @property
    def runs_file(self) -> Path:
        return self.folder / "runs.txt"

    @cached_property
    def intent(self) -> dict[str, Any]:
        """submission.json; empty where the submitter died before it was written."""
        return _json(self.folder / "submission.json")

    @cached_property
    def runs(self) -> dict[str, int]:
        """Run folder (absolute) to array index."""
        runs = self.intent.get("runs")
        return {str(p): index for index, p in enumerate(runs)} if isinstance(runs, list) else {}

    @cached_property
    def job_id(self) -> str | None:
        """The id of the array, once the scheduler gave one."""
        value = _json(self.folder / "receipt.json").get("job_id")
        return str(value) if value else None

    @cached_property
    def time(self) -> float:
        """When the scheduler answered; before that, when it was asked."""
        receipt = _json(self.folder / "receipt.json")
        times = (receipt.get("time"), self.intent.get("time"))
        return next((float(t) for t in times if isinstance(t, (int, float)) and t), 0.0)

    @cached_property
    def runs_per_job(self) -> int:
        """Runs of one array element: resources.runs_per_gpu."""
        resources = self.intent.get("resources")
        value = resources.get("runs_per_gpu", 1) if isinstance(resources, dict) else 1
        return value if isinstance(value, int) and value > 0 else 1

    def index(self, run: Path) -> int | None:
        """The array index of the run's job."""
        place = self.runs.get(str(run))
        return None if place is None else place // self.runs_per_job

    def element(self, run: Path) -> str | None:
        """`A_i`, the job id of the run's array element."""
        index = self.index(run)
        return None if self.job_id is None or index is None else f"{self.job_id}_{index}"

    def members(self, index: int) -> list[Path]:
        """The runs of array element `index`."""
        first = index * self.runs_per_job
        return [Path(run) for run in list(self.runs)[first : first + self.runs_per_job]]

    def log_file(self, run: Path) -> Path | None:
        """Where the scheduler writes the element's output."""
        element = self.element(run)
        return None if element is None else self.folder / f"{element}.log"

    # -- written by the submitter ---------------------------------------------------------------

    def begin(self, claim: Claim) -> None:
        """The folder, with the file that claims link to."""
        self.folder.mkdir(parents=True)
        write_json(self.claim_file, claim.json())

    def write_intent(self, runs: list[Path], **fields: Any) -> None:
        """What is about to be asked of the scheduler. Written before it is asked."""
        paths = [str(run) for run in runs]
        write_text(self.runs_file, "".join(f"{path}\n" for path in paths))
        intent = {"name": self.name, "time": time.time(), **fields, "runs": paths}
        write_json(self.folder / "submission.json", intent)

    def write_receipt(self, job_id: str, **fields: Any) -> None:
        """The scheduler's answer."""
        write_json(self.folder / "receipt.json", {"job_id": job_id, "time": time.time(), **fields})
        for known in ("job_id", "time"):
            self.__dict__.pop(known, None)

    def discard(self) -> None:
        """Remove a submission that came to nothing. Its claims must be released already."""
        shutil.rmtree(self.folder, ignore_errors=True)


def submission(run: Path, name: str) -> Submission:
    """The submission called `name` of the study that `run` (RUNS/STUDY/VARIANT/seedK-HASH) is of."""
    return Submission(run.parent.parent / JOBS / name)


@dataclass
class Cache:
    """Each submission read once, however many runs ask."""

    _known: dict[str, Submission] = field(default_factory=dict)  # names are unique

    def get(self, run: Path, name: str) -> Submission:
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = submission(run, name)
        return found


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_bytes(path) or b"")
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
