"""Cancel runs and release held ones: those that are named, whatever else the user has queued."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ablations.slurm import commands as slurm
from ablations.slurm.queue import Scheduler
from ablations.store import attempts as records
from ablations.store import claims
from ablations.store.life import RunStatus
from ablations.store.submissions import submission
from ablations.study.arguments import add_steering, read_study
from sdtps.errors import SubmissionError


def cancel(statuses: Sequence[RunStatus], runs_dir: Path) -> list[RunStatus]:
    """End the queued and running ones among `statuses`; returns those that are ended or were told to.

    Left out are runs whose process only another machine, or the person who started it, can end.

    The claim is marked first, so that the end is known for a cancellation without accounting too, and
    so that a run which writes its checkpoint meanwhile does not come back. Where a full disk takes no
    mark, the cluster's jobs are cancelled all the same.

    Raises:
        SubmissionError: the scheduler did not take some of it; the runs stay marked.
        OSError: runs on local slots could not be marked, and so were not told to end.
    """
    ended = []
    unmarked: OSError | None = None
    elements: dict[str, dict[str, tuple[Path, str]]] = {}
    for status in statuses:
        if not status.active:
            continue
        folder = status.run.folder(Path(runs_dir).resolve())
        claim = claims.read(folder)
        if claim is None:
            continue
        try:
            claims.rewrite(folder, claim, replace(claim, cancelled=True))
        except OSError as error:
            if claim.executor == "local":  # its queue would start it again
                unmarked = error
                continue
        if claim.executor == "local" and not _end_local(folder, claim.submission):
            continue
        ended.append(status)
        if claim.executor != "local" and status.job_id:
            where = submission(folder, claim.submission).cluster
            where = "" if where == slurm.cluster_name() else where
            elements.setdefault(where, {})[status.job_id] = (folder, claim.submission)
    problems: list[str] = []
    done = True
    for cluster, jobs in elements.items():
        ids = [job for job, of in jobs.items() if not _others_need_it(*of)]
        done &= slurm.cancel(ids, cluster or None, say=problems.append)
    if elements:
        Scheduler(runs_dir).expire()
    if not done:
        raise SubmissionError("scancel failed; try again:\n  " + "\n  ".join(problems))
    if unmarked is not None:
        raise unmarked
    return ended


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
    return any(
        claims.holds(member, name) and not records.ended_by_itself(member, name)
        for member in whole.members(index)
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
    parser.add_argument("--yes", action="store_true", help="do it; otherwise only say what would be")


def command(arguments: argparse.Namespace) -> int:
    """The verb `cancel`; returns 1 where a run could not be ended from here."""
    from ablations.store.life import run_states
    from sdtps.errors import counted

    study, runs_dir = read_study(arguments), arguments.runs_dir.resolve()
    active = [s for s in run_states(study.runs(), runs_dir) if s.active]
    if arguments.held:
        active = [s for s in active if s.held]
    if arguments.json:
        cancelled = cancel(active, runs_dir) if arguments.yes and active else []
        kept = [s.run.name for s in active if s not in cancelled] if arguments.yes else []
        names = [s.run.name for s in (cancelled if arguments.yes else active)]
        key = "cancelled" if arguments.yes else "would_cancel"
        print(json.dumps({key: names, "left": kept}, indent=2))
        return 1 if kept else 0
    if not active:
        what = "held" if arguments.held else "queued or running"
        print(f"{study.name}: no run is {what}; nothing to cancel.")
        return 0
    for one in active:
        verb = "cancel" if arguments.yes else "would cancel"
        print(f"{verb}  {one.run.name}  {one.state}  {one.job_id or ''}".rstrip())
    if not arguments.yes:
        print(f"{counted(len(active), 'run')}. Give --yes to cancel.")
        return 0
    cancelled = cancel(active, runs_dir)
    print(f"Cancelled {counted(len(cancelled), 'run')}.")
    left = [s for s in active if s not in cancelled]
    for one in left:
        where = f"on {one.node}" if one.node else "by hand"
        print(f"not cancelled: {one.run.name} runs {where}: end its process there", file=sys.stderr)
    return 1 if left else 0
