"""Delete run folders: what would go is shown first, and runs that may still live are never touched."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablations.slurm.queue import Scheduler
from ablations.store import life
from ablations.store.life import RunStatus
from ablations.study.arguments import add_steering, read_study
from ablations.study.model import Study
from sdtps.errors import visible
from sdtps.run.folder import RunFolder

CLEANED_BY_DEFAULT = ("failed", "cancelled")
STATES = ("failed", "cancelled", "diverged", "interrupted", "completed")


@dataclass(frozen=True)
class Doomed:
    """One folder that would be deleted."""

    folder: Path
    why: str
    size: int  # bytes


def select(
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
    wanted = frozenset(states) & frozenset(STATES)
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
    return doomed


def _states(folders: Sequence[Path], runs_dir: Path) -> list[life.Life]:
    return life.of_folders(folders, Scheduler(runs_dir)) if folders else []


def _may_live(found: life.Life) -> bool:
    return found.active or found.state == "unknown"


def size_of(folder: Path) -> int:
    """Bytes in the folder's files."""
    if folder.is_symlink():
        return 0
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def delete(doomed: Sequence[Doomed], runs_dir: Path) -> list[Doomed]:
    """Delete the folders and return those that are gone; each leaves its place in one step first.

    States are told once more just before: what has come to life since it was selected stays.
    """
    bin_folder = runs_dir / "_deleting"
    with contextlib.suppress(OSError):  # a full disk takes no folder, and is cleaned all the same
        bin_folder.mkdir(parents=True, exist_ok=True)
    gone = []
    folders = [entry.folder for entry in doomed]
    for entry, found in zip(doomed, _states(folders, runs_dir), strict=True):
        if _may_live(found):
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_steering(parser)
    parser.add_argument(
        "--state",
        action="append",
        choices=STATES,
        default=[],
        help=f"this state; may be repeated [{', '.join(CLEANED_BY_DEFAULT)}]",
    )
    parser.add_argument("--unplanned", action="store_true", help="also those that no variant plans")
    parser.add_argument("--yes", action="store_true", help="do it; otherwise only say what would be")


def command(arguments: argparse.Namespace) -> int:
    """The verb `clean`."""
    from sdtps.errors import counted

    study, runs_dir = read_study(arguments), arguments.runs_dir.resolve()
    doomed = select(
        study,
        runs_dir,
        life.run_states(study.runs(), runs_dir),
        states=arguments.state or CLEANED_BY_DEFAULT,
        unplanned=arguments.unplanned,
    )
    if arguments.json:
        gone = delete(doomed, runs_dir) if arguments.yes else doomed
        rows = [
            {"folder": str(d.folder.relative_to(runs_dir)), "why": d.why, "bytes": d.size} for d in gone
        ]
        print(json.dumps({"deleted" if arguments.yes else "would_delete": rows}, indent=2))
        return 0
    if not doomed:
        print(f"{study.name}: no such run folder; nothing to delete.")
        return 0
    for entry in doomed:
        verb = "delete" if arguments.yes else "would delete"
        name = visible(str(entry.folder.relative_to(runs_dir)))
        print(f"{verb}  {name}  {entry.why}  {entry.size / 1e6:.1f} MB")
    total = sum(entry.size for entry in doomed) / 1e6
    if not arguments.yes:
        print(f"{counted(len(doomed), 'folder')}, {total:.1f} MB. Give --yes to delete.")
        return 0
    gone = delete(doomed, runs_dir)
    total = sum(entry.size for entry in gone) / 1e6
    print(f"Deleted {counted(len(gone), 'folder')}, {total:.1f} MB.")
    for entry in doomed:
        if entry not in gone:
            print(f"kept: {visible(str(entry.folder.relative_to(runs_dir)))} has come to life again")
    return 0
