"""Ending runs and letting held ones go: those that are named, whatever else the user has queued."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ablations import claims, records, slurm
from ablations.queue_cache import Scheduler
from ablations.runstatus import RunStatus
from ablations.submissions import submission
from sdtps.errors import SubmissionError


def cancel(statuses: Sequence[RunStatus], runs_dir: Path) -> list[RunStatus]:
    """End the queued and running ones among `statuses`; the others are left alone.

    The claim is marked first, so that the end is known for a cancellation without accounting too, and
    so that a run which writes its checkpoint meanwhile does not come back.

    Raises:
        SubmissionError: the scheduler did not take some of it; the runs stay marked.
    """
    active = [s for s in statuses if s.active]
    elements: dict[str, tuple[Path, str]] = {}
    for status in active:
        folder = status.run.folder(Path(runs_dir).resolve())
        claim = claims.read(folder)
        if claim is None:
            continue
        claims.rewrite(folder, claim, replace(claim, cancelled=True))
        if claim.executor == "local":
            _end_local(folder, claim.submission)
        elif status.job_id:
            elements[status.job_id] = (folder, claim.submission)
    elements = {job: of for job, of in elements.items() if not _others_need_it(*of)}
    problems: list[str] = []
    done = slurm.cancel(list(elements), say=problems.append)
    if elements:
        Scheduler(runs_dir).expire()
    if not done:
        raise SubmissionError("scancel failed; try again:\n  " + "\n  ".join(problems))
    return active


def release(statuses: Sequence[RunStatus], runs_dir: Path) -> list[RunStatus]:
    """Let the held ones among `statuses` start; the others are left alone.

    Raises:
        SubmissionError: the scheduler did not release some of them; those stay held.
    """
    held = [s for s in statuses if s.held and s.job_id]
    problems = slurm.release(dict.fromkeys(s.job_id for s in held if s.job_id))
    if held:
        Scheduler(runs_dir).expire()
    if problems:
        raise SubmissionError("scontrol release failed:\n  " + "\n  ".join(problems))
    return held


def _others_need_it(folder: Path, name: str) -> bool:
    """Runs that nobody cancelled share the job (resources.runs_per_gpu): it ends the others itself."""
    whole = submission(folder, name)
    index = whole.index(folder)
    if index is None or whole.runs_per_job == 1:
        return False
    for member in whole.members(index):
        claim = claims.read(member)
        mine = claim is not None and claim.submission == name and not claim.cancelled
        if mine and not records.ended_by_itself(member, name):
            return True
    return False


def _end_local(folder: Path, submission: str) -> None:
    start = records.read(folder, submission).last_start
    if start is not None and start.process.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(start.process.pid, signal.SIGTERM)
