"""What submitters that died have left: jobs whose ids nobody wrote, claims of jobs that never were.

Called before each submission, so that a study never waits for a dead process.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from ablations.slurm import commands as slurm
from ablations.slurm.verdict import SUBMITTING_SECONDS
from ablations.store import attempts as records
from ablations.store import claims
from ablations.store.attempts import RECORDS
from ablations.store.claims import Claim
from ablations.store.submissions import JOBS, Submission, submission
from ablations.study.model import RunSpec
from sdtps.files import oddity
from sdtps.run.folder import RunFolder

ASIDE = "_aside"


def repair(runs: Sequence[RunSpec], runs_dir: Path) -> None:
    """Look up what dead submitters may have queued, by the jobs' unique names; release the rest.

    Claims stay where the scheduler does not answer: nothing is queued twice for want of an answer.
    """
    held: dict[str, list[tuple[Path, Claim]]] = {}
    for run in runs:
        folder = run.folder(runs_dir)
        _sweep_old(folder)
        claim = claims.read(folder)
        if claim is not None and _dead(claim) and RunFolder(folder).result() is None:
            held.setdefault(claim.submission, []).append((folder, claim))
    for name, members in held.items():
        work = submission(members[0][0], name or "unreadable")
        if work.job_id is None:
            _settle(work, members)
    for study in {run.study for run in runs}:
        _sweep_jobs(runs_dir / study / JOBS)


def _sweep_jobs(jobs: Path) -> None:
    """Remove what submitters left that died before they claimed anything."""
    for folder in jobs.glob("*"):
        if folder.is_symlink() or not folder.is_dir():
            continue
        young = time.time() - folder.stat().st_mtime < SUBMITTING_SECONDS
        if not young and not (folder / "submission.json").exists():
            Submission(folder).discard()


def _dead(claim: Claim) -> bool:
    """Its submitter cannot be about to write a receipt any more. `status` judges local queues."""
    if claim.executor == "local":
        return False
    alive = claim.submitter.alive() if claim.submitter else False
    if alive is None:
        return time.time() - claim.time > SUBMITTING_SECONDS
    return not alive and (claim.submission != "" or claim.time == 0.0)


def _settle(work: Submission, members: list[tuple[Path, Claim]]) -> None:
    if work.intent:  # the scheduler may have been asked
        started = [records.read(folder, work.name).last_start for folder, _ in members]
        jobs = {start.job.partition("_")[0] for start in started if start}
        try:
            job = min(jobs) if jobs else slurm.find_array(work.name)
        except slurm.NoAnswer:
            return
        if job is not None:
            work.write_receipt(job, found_by="name")
            return
    for folder, claim in members:
        claims.release(folder, claim)
    if work.folder.is_dir():
        work.discard()


def sweep(folder: Path, runs_dir: Path) -> None:
    """Clear a run folder that is ours now: a killed writer's files, and what lies where a job writes.

    A job would wait for ever at a FIFO, and fail at a directory: that one is put aside.
    """
    for file in folder.glob(".*.tmp"):
        if not file.is_dir():
            file.unlink(missing_ok=True)
    for path in (*folder.glob("*"), *folder.glob("submitit/*")):
        if path.is_dir():
            if path.relative_to(folder).as_posix() in RECORDS:
                path.rename(_aside(folder, runs_dir) / path.name)
        elif oddity(path):
            path.unlink(missing_ok=True)


def _sweep_old(folder: Path) -> None:
    """Remove temporary files that nobody has written to for long, of completed runs too."""
    try:
        with os.scandir(folder) as entries:
            found = [e for e in entries if e.name.startswith(".") and e.name.endswith(".tmp")]
    except OSError:
        return
    for entry in found:
        with contextlib.suppress(OSError):
            if time.time() - entry.stat().st_mtime > SUBMITTING_SECONDS:
                Path(entry).unlink()


def _aside(folder: Path, runs_dir: Path) -> Path:
    """A new folder for what a run no longer holds."""
    name = f"{folder.name.replace('seed', 'aside-', 1)}-{time.time_ns()}"
    target = runs_dir / ASIDE / folder.parent.parent.name / folder.parent.name / name
    target.mkdir(parents=True)
    return target


def put_aside(folder: Path, runs_dir: Path) -> None:
    """Move what a run holds, but for its claim, to runs/_aside/: it starts from nothing.

    The checkpoint goes first: if this is interrupted, nothing goes on from it.
    """
    target = _aside(folder, runs_dir)
    run = RunFolder(folder)
    first = [run.checkpoint_file, run.result_file, run.status_file]
    others = [p for p in sorted(folder.iterdir()) if p not in first and p != run.claim_file]
    for path in [*first, *others]:
        if path.exists():
            path.rename(target / path.name)
