"""The verb `cancel`: end queued and running runs. `release` lets held ones start."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from ablations.slurm import commands as slurm
from ablations.slurm.scheduler import Scheduler
from ablations.store import attempts as records
from ablations.store import locks, states
from ablations.store.locks import Lock
from ablations.store.states import FolderStatus
from ablations.store.submissions import Submission, submission_folder
from ablations.study.arguments import add_steering, filtered, read_studies
from ablations.study.model import Study
from sdtps.system import files
from sdtps.system.errors import SubmissionError, counted


def cancel(runs: Sequence[FolderStatus], runs_dir: Path) -> list[FolderStatus]:
    """End the queued and running ones among `runs`; returns those that are ended or were told to.

    Left out are runs whose process only another machine, or the person who started it, can end.

    The lock is marked first, so that the end is known for a cancellation without accounting too, and
    so that a run which writes its checkpoint meanwhile does not come back. Where the scheduler refuses,
    the mark is taken back. Where a full disk takes no mark, the cluster's jobs are cancelled all the
    same.

    Raises:
        SubmissionError: the scheduler refused some of it; those runs are as they were.
        OSError: runs on local slots could not be marked, and so were not told to end.
    """
    work_of = cache(Submission)
    ours_to_end = [one.folder for one in runs if one.active and not one.elsewhere]
    held = {folder: lock for folder in ours_to_end if (lock := locks.read(folder)) is not None}
    # Where a refusal is to be expected, asked first: a job that starts meanwhile must find no mark.
    ours = {f: c for f, c in held.items() if c.mine or c.executor == "local" or os.getuid() == 0}
    unmarked = _mark(ours)
    ended, problems = [], []
    on_clusters: dict[str, dict[str, list[Path]]] = {}  # cluster to job to its runs
    for one in runs:
        if one.folder not in held:
            continue
        lock = held[one.folder]
        if lock.executor == "local":
            if one.folder not in unmarked and _end_local(one.folder, lock.submission):
                ended.append(one)
            continue
        ended.append(one)
        work = work_of(submission_folder(one.folder, lock.submission))
        if one.job_id and not _others_need_it(one.folder, work):
            on_clusters.setdefault(work.cluster, {}).setdefault(one.job_id, []).append(one.folder)
    refused: dict[Path, Lock] = {}
    for cluster, jobs in on_clusters.items():
        for job, why in slurm.cancel(jobs, cluster).items():
            refused |= {folder: held[folder] for folder in jobs[job]}
            problems.append(why)
    _mark({f: c for f, c in refused.items() if f in ours and not c.cancelled}, back=True)
    _mark({f: c for f, c in held.items() if f not in ours and f not in refused})
    if on_clusters:
        Scheduler(runs_dir).expire()
    if refused:
        raise SubmissionError(
            f"{counted(len(refused), 'run')} of {len(held)} were not cancelled and go on:\n  "
            + "\n  ".join(text[-500:] for text in dict.fromkeys(problems))
        )
    if local := [error for folder, error in unmarked.items() if held[folder].executor == "local"]:
        raise local[0]  # their queue would start them again
    return ended


def _mark(held: Mapping[Path, Lock], *, back: bool = False) -> dict[Path, OSError]:
    """Mark locks as cancelled (`back`: no longer); the error of each that could not be.

    A mark is a link to a file of the submission, as its lock is: ten thousand cost one file.
    """
    failed: dict[Path, OSError] = {}
    with contextlib.ExitStack() as files_held:
        for jobs in {folder.parent.parent / locks.JOBS for folder in held}:
            with contextlib.suppress(OSError):
                files_held.enter_context(locks.file_lock(jobs))
        marked: set[str] = set()
        for folder, lock in held.items():
            work = Submission(submission_folder(folder, lock.submission))
            source = work.lock_file if back else work.folder / "cancelled.json"
            try:
                if not back and lock.submission not in marked:
                    files.write_json(source, replace(lock, cancelled=True).json())
                    marked.add(lock.submission)
                locks.take(folder, source, lock)
            except OSError as error:
                failed[folder] = error
    return failed


def release(runs: Sequence[FolderStatus], runs_dir: Path) -> list[FolderStatus]:
    """Let the held ones among `runs` start; the others are left alone.

    Raises:
        SubmissionError: the scheduler did not release some of them; those stay held.
    """
    held = [s for s in runs if s.held and s.job_id]
    problems = slurm.release(dict.fromkeys(s.job_id for s in held if s.job_id))
    if held:
        Scheduler(runs_dir).expire()
    if problems:
        raise SubmissionError("scontrol release failed:\n  " + "\n  ".join(problems))
    return held


def _others_need_it(folder: Path, work: Submission) -> bool:
    """Runs that nobody cancelled share the job (resources.runs_per_gpu): it ends the others itself."""
    index = work.index(folder) if work.runs_per_job > 1 else None
    return index is not None and any(
        locks.holds(member, work.name) and not records.ended_by_itself(member, work.name)
        for member in work.members(index)
    )


def _end_local(folder: Path, name: str) -> bool:
    """Ask the run's process to end; False where it is another machine's."""
    start = records.read(folder, name).last_start
    alive = start.process.alive() if start is not None else False
    if start is not None and alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(start.process.pid, signal.SIGTERM)
    return alive is not None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_steering(parser)
    parser.add_argument("--held", action="store_true", help="only what the scheduler holds")
    add_unplanned(parser, "only runs that the manifest no longer plans; -v then names their folders")
    add_yes(parser)


def add_unplanned(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--unplanned", action="store_true", help=text)


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--yes", action="store_true", help="do it; otherwise only print what would be done"
    )


def _chosen(arguments: argparse.Namespace, runs_dir: Path) -> tuple[Study, list[FolderStatus]]:
    """The study and the runs that `cancel` is about: a whole study's unplanned runs are among them."""
    study = whole = read_studies(arguments)[0]
    folders: list[Path] = []
    if not arguments.unplanned:
        study = filtered(whole, arguments.variant, arguments.seed)
        folders = [run.folder(runs_dir) for run in study.runs()]
    if arguments.unplanned or not (arguments.variant or arguments.seed):
        folders += [f for f in states.unplanned(whole, runs_dir) if _named(f, arguments)]
    return study, states.of_folders(folders, Scheduler(runs_dir))


def _named(folder: Path, arguments: argparse.Namespace) -> bool:
    """Whether -v and -s name the folder of an unplanned run."""
    seeds = list(map(str, arguments.seed or ()))
    fits = any(fnmatchcase(folder.parent.name, text) for text in arguments.variant or ["*"])
    return fits and (not seeds or folder.name.removeprefix("seed").partition("-")[0] in seeds)


def command(arguments: argparse.Namespace) -> int:
    """The verb `cancel`; returns 1 where a run could not be ended from here, or may run unseen."""
    runs_dir = arguments.runs_dir.resolve()
    study, runs = _chosen(arguments, runs_dir)
    unknown = [one for one in runs if one.state == "unknown"]
    active = [one for one in runs if (one.held if arguments.held else one.active)]
    cancelled = cancel(active, runs_dir) if arguments.yes and active else []
    left = [one for one in active if one not in cancelled] if arguments.yes else []
    if arguments.json:
        key = "cancelled" if arguments.yes else "would_cancel"
        shown = cancelled if arguments.yes else active
        answer = {key: [one.name for one in shown], "left": [one.name for one in left]}
        print(json.dumps({**answer, "unknown": [one.name for one in unknown]}, indent=2))
        return 1 if left or unknown else 0
    for one in active:
        verb = "cancel" if arguments.yes else "would cancel"
        print(f"{verb}  {one.name}  {one.state}  {one.job_id or ''}".rstrip())
    if arguments.yes and active:
        print(f"Cancelled {counted(len(cancelled), 'run')}.")
    elif active:
        print(f"{counted(len(active), 'run')}. Give --yes to cancel.")
    elif not unknown:
        what = "held" if arguments.held else "queued or running"
        print(f"{study.name}: no run is {what}; nothing to cancel.")
    for one in left:
        where = f"on {one.node}" if one.node else "by hand"
        print(f"not cancelled: {one.name} runs {where}: end its process there", file=sys.stderr)
    for text in states.of_unknown(unknown):
        print(text, file=sys.stderr)
    return 1 if left or unknown else 0
