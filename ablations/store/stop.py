"""The verbs `cancel` and `clean`: end runs, release held ones, delete folders. Only what is named."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ablations.slurm import commands as slurm
from ablations.slurm.queue import Scheduler
from ablations.store import attempts as records
from ablations.store import claims, life
from ablations.store.life import RunStatus
from ablations.store.submissions import submission
from ablations.study.arguments import add_steering, read_study
from ablations.study.model import Study
from sdtps.run.folder import RunFolder
from sdtps.system.errors import SubmissionError, visible

CLEANED_BY_DEFAULT = ("failed", "cancelled")
CLEANED = ("failed", "cancelled", "diverged", "interrupted", "completed")


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
        if not status.active or status.elsewhere:  # a copy has no jobs of its own
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
    parser.add_argument(
        "--yes", action="store_true", help="do it; otherwise only print what would be done"
    )


def command(arguments: argparse.Namespace) -> int:
    """The verb `cancel`; returns 1 where a run could not be ended from here."""
    from sdtps.system.errors import counted

    study, runs_dir = read_study(arguments), arguments.runs_dir.resolve()
    active = [s for s in life.run_states(study.runs(), runs_dir) if s.active]
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


# -- deleting run folders ------------------------------------------------------------------------


@dataclass(frozen=True)
class Doomed:
    """One folder that would be deleted, unless equal runs that were not trained are links to it."""

    folder: Path
    why: str
    size: int  # bytes
    links: tuple[Path, ...] = ()


def select_folders(
    study: Study,
    runs_dir: Path,
    statuses: Sequence[RunStatus],
    *,
    states: Iterable[str] = CLEANED_BY_DEFAULT,
    unplanned: bool = False,
) -> list[Doomed]:
    """Folders of planned runs in these states, and with `unplanned` those that no run of the study has.

    What is active or unknown is left out whatever is asked, and so is what was imported.
    """
    wanted = frozenset(states) & frozenset(CLEANED)
    doomed = []
    for status in statuses:
        folder = status.run.folder(runs_dir)
        if status.state in wanted and folder.is_dir():
            word = f"{status.state} ({status.kind})" if status.kind else status.state
            doomed.append(Doomed(folder, word, size_of(folder)))
    if unplanned:
        planned = {run.folder(runs_dir) for run in study.runs()}
        folders = [
            folder
            for folder in sorted((runs_dir / study.name).glob("*/seed*"))
            if folder.is_dir() and folder not in planned and not RunFolder(folder).run().get("imported")
        ]
        for folder, found in zip(folders, _states(folders, runs_dir), strict=True):
            if not _may_live(found):
                doomed.append(Doomed(folder, f"no variant plans it ({found.state})", size_of(folder)))
    links = _links([entry.folder for entry in doomed], runs_dir)
    return [replace(entry, links=tuple(links.get(entry.folder, ()))) for entry in doomed]


def _links(folders: Sequence[Path], runs_dir: Path) -> dict[Path, list[Path]]:
    """Run folders elsewhere in the store that are links to one of `folders`, and stay."""
    found: dict[Path, list[Path]] = {}
    targets = {folder.resolve(): folder for folder in folders if not folder.is_symlink()}
    if targets:
        for link in sorted(runs_dir.glob("*/*/seed*")):
            if link.is_symlink() and link not in folders and link.resolve() in targets:
                found.setdefault(targets[link.resolve()], []).append(link)
    return found


def _states(folders: Sequence[Path], runs_dir: Path) -> list[life.Life]:
    return life.of_folders(folders, Scheduler(runs_dir)) if folders else []


def _may_live(found: life.Life) -> bool:
    return found.active or found.state == "unknown"


def size_of(folder: Path) -> int:
    """Bytes in the folder's files."""
    if folder.is_symlink():
        return 0
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def delete_folders(doomed: Sequence[Doomed], runs_dir: Path) -> list[Doomed]:
    """Delete the folders and return those that are gone; each leaves its place in one step first.

    States are told once more just before: what has come to life since it was selected stays.
    """
    bin_folder = runs_dir / "_deleting"
    with contextlib.suppress(OSError):  # a full disk takes no folder, and is cleaned all the same
        bin_folder.mkdir(parents=True, exist_ok=True)
    gone = []
    folders = [entry.folder for entry in doomed]
    for entry, found in zip(doomed, _states(folders, runs_dir), strict=True):
        if _may_live(found) or entry.links:
            continue
        if entry.folder.is_symlink():  # taken over from another study: only the link goes
            entry.folder.unlink()
            gone.append(entry)
            continue
        name = f"{entry.folder.name.replace('seed', '', 1)}-{time.time_ns()}"
        place = bin_folder / name if bin_folder.is_dir() else entry.folder.with_name(f".{name}")
        try:
            target = entry.folder.rename(place)
        except FileNotFoundError:
            continue
        gone.append(entry)
        shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(bin_folder, ignore_errors=True)
    return gone


def clean_add_arguments(parser: argparse.ArgumentParser) -> None:
    add_steering(parser)
    parser.add_argument(
        "--state",
        action="append",
        choices=CLEANED,
        default=[],
        help=f"runs in this state; may be repeated [{', '.join(CLEANED_BY_DEFAULT)}]",
    )
    parser.add_argument(
        "--unplanned", action="store_true", help="also runs that the manifest no longer plans"
    )
    parser.add_argument(
        "--yes", action="store_true", help="do it; otherwise only print what would be done"
    )


def clean_command(arguments: argparse.Namespace) -> int:
    """The verb `clean`."""
    from sdtps.system.errors import counted

    study, runs_dir = read_study(arguments), arguments.runs_dir.resolve()
    doomed = select_folders(
        study,
        runs_dir,
        life.run_states(study.runs(), runs_dir),
        states=arguments.state or CLEANED_BY_DEFAULT,
        unplanned=arguments.unplanned,
    )
    if arguments.json:
        free = [entry for entry in doomed if not entry.links]
        gone = delete_folders(free, runs_dir) if arguments.yes else free
        rows = [
            {"folder": str(d.folder.relative_to(runs_dir)), "why": d.why, "bytes": d.size} for d in gone
        ]
        left = {
            str(entry.folder.relative_to(runs_dir)): _kept(entry, runs_dir)
            for entry in doomed
            if entry not in gone
        }
        key = "deleted" if arguments.yes else "would_delete"
        print(json.dumps({key: rows, "left": left}, indent=2))
        return 0
    if not doomed:
        print(f"{study.name}: no such run folder; nothing to delete.")
        return 0
    free = [entry for entry in doomed if not entry.links]
    for entry in free:
        verb = "delete" if arguments.yes else "would delete"
        name = visible(str(entry.folder.relative_to(runs_dir)))
        print(f"{verb}  {name}  {entry.why}  {entry.size / 1e6:.1f} MB")
    gone = delete_folders(free, runs_dir) if arguments.yes else free
    for entry in doomed:
        if entry not in gone:
            name = visible(str(entry.folder.relative_to(runs_dir)))
            print(f"kept  {name}  {visible(_kept(entry, runs_dir))}")
    number, total = counted(len(gone), "folder"), sum(entry.size for entry in gone) / 1e6
    if arguments.yes:
        print(f"Deleted {number}, {total:.1f} MB.")
    else:
        print(f"{number}, {total:.1f} MB. Give --yes to delete.")
    return 0


def _kept(entry: Doomed, runs_dir: Path) -> str:
    """Why a folder that was asked for is not deleted."""
    if not entry.links:
        return "it has come to life again"
    first = entry.links[0].relative_to(runs_dir)
    more = f" and {len(entry.links) - 1} more" if len(entry.links) > 1 else ""
    how = f"sdtps clean {first.parts[0]} --state completed"
    return f"it stands for {first}{more}, which was not trained: first delete that link ({how})"
