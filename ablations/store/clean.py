"""Delete run folders: what would go is shown first, and runs that still live are never touched."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablations.launch.plan import ACTIVE
from ablations.store.runstatus import RunStatus
from ablations.study.arguments import add_steering, read_study
from ablations.study.model import Study
from sdtps.errors import visible

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

    Queued, running and requeued runs are left out whatever is asked, as are imported ones.
    """
    wanted = frozenset(states) - ACTIVE
    doomed = []
    for status in statuses:
        folder = status.run.folder(runs_dir)
        if status.state in wanted and folder.is_dir():
            word = f"{status.state} ({status.kind})" if status.kind else status.state
            doomed.append(Doomed(folder, word, size_of(folder)))
    if unplanned:
        planned = {run.folder(runs_dir) for run in study.runs()}
        for folder in sorted((runs_dir / study.name).glob("*/seed*")):
            if folder.is_dir() and folder not in planned and not _is_alive_or_foreign(folder):
                doomed.append(Doomed(folder, "no variant plans it", size_of(folder)))
    return doomed


def _is_alive_or_foreign(folder: Path) -> bool:
    from sdtps.run.folder import HEARTBEAT_SECONDS, RunFolder

    run = RunFolder(folder)
    if run.run().get("imported"):
        return True
    if run.result() is not None:
        return False
    status = run.status()
    if status is None:
        return run.claim_file.exists()  # queued, for all we know
    beat = status.get("heartbeat") or 0.0
    return status.get("state") == "running" and time.time() - beat < 20 * HEARTBEAT_SECONDS


def size_of(folder: Path) -> int:
    """Bytes in the folder's files."""
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def delete(doomed: Iterable[Doomed], runs_dir: Path) -> None:
    """Delete the folders; each leaves its place in one step first: no reader sees half of it."""
    bin_folder = runs_dir / "_deleting"
    with contextlib.suppress(OSError):  # a full disk takes no folder, and is cleaned all the same
        bin_folder.mkdir(parents=True, exist_ok=True)
    for entry in doomed:
        name = f"{entry.folder.name.replace('seed', '', 1)}-{time.time_ns()}"
        place = bin_folder / name if bin_folder.is_dir() else entry.folder.with_name(f".{name}")
        try:
            target = entry.folder.rename(place)
        except FileNotFoundError:
            continue
        shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(bin_folder, ignore_errors=True)


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
    from ablations.store.states import run_states
    from sdtps.errors import counted

    study, runs_dir = read_study(arguments), arguments.runs_dir.resolve()
    doomed = select(
        study,
        runs_dir,
        run_states(study.runs(), runs_dir),
        states=arguments.state or CLEANED_BY_DEFAULT,
        unplanned=arguments.unplanned,
    )
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
    delete(doomed, runs_dir)
    print(f"Deleted {counted(len(doomed), 'folder')}, {total:.1f} MB.")
    return 0
