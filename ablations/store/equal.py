"""Runs of one hash in several places: studies share a variant, or a variant was renamed.

The folder's name is the hash of configuration and seed, so that equal names are one run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from ablations.slurm.scheduler import Scheduler
from ablations.store import locks, states
from ablations.store.states import FolderStatus, RunStatus
from ablations.study.model import RunSpec
from sdtps.run.locations import run_folders


def equal_runs(
    folders: Collection[Path], runs_dir: Path, scheduler: Scheduler | None = None
) -> dict[Path, list[FolderStatus]]:
    """For each run folder that has any: the runs of the same hash elsewhere in the store.

    Links are left out: a run that was taken over is not taken over again.
    """
    names = {folder.name: folder for folder in folders}
    others = _equal_folders(folders, runs_dir)
    found: dict[Path, list[FolderStatus]] = {}
    for one in states.of_folders(others, scheduler or Scheduler(runs_dir)):
        found.setdefault(names[one.folder.name], []).append(one)
    return found


def equal_holders(folders: Collection[Path], runs_dir: Path) -> frozenset[tuple[Path, str]]:
    """The runs of the same hash elsewhere in the store, each with the submission that holds it."""
    held = ((other, locks.read(other)) for other in _equal_folders(folders, runs_dir))
    return frozenset((other, lock.submission) for other, lock in held if lock is not None)


def _equal_folders(folders: Collection[Path], runs_dir: Path) -> list[Path]:
    names = {folder.name for folder in folders}
    return [
        other
        for other in (run_folders(runs_dir) if names else ())
        if other.name in names and other not in folders and not other.is_symlink()
    ]


def shown_states(runs: Sequence[RunSpec], runs_dir: Path) -> list[RunStatus]:
    """The state of each run; one that waits or runs under another name has that one's state."""
    runs_dir = runs_dir.resolve()
    scheduler = Scheduler(runs_dir)
    statuses = states.run_states(runs, runs_dir, scheduler)
    planned = {one.folder for one in statuses if one.state == "planned"}
    equal = equal_runs(planned, runs_dir, scheduler)

    def shown(status: RunStatus) -> RunStatus:
        other = next((o for o in equal.get(status.folder, ()) if o.may_run), None)
        if other is None:
            return status
        detail = "; ".join(filter(None, (f"as {other.name}", other.detail)))
        return replace(status, **{**vars(other), "folder": status.folder, "detail": detail})

    return [shown(status) for status in statuses]
