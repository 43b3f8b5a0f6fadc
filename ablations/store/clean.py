"""The verb `clean`: delete run folders, and only those that are named."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ablations.slurm.scheduler import Scheduler
from ablations.store import states
from ablations.store.cancel import add_unplanned, add_yes
from ablations.store.states import FolderStatus
from ablations.study.arguments import add_steering, filtered, print_json, read_studies
from ablations.study.model import Study
from sdtps.system.errors import counted, visible

CLEANED_BY_DEFAULT = ("failed", "cancelled")
CLEANED = ("failed", "cancelled", "diverged", "interrupted", "completed")


@dataclass(frozen=True)
class Deletion:
    """One folder that would be deleted.

    Attributes:
        size: in bytes.
        kept: why it stays although it was asked for; empty: it goes.
    """

    folder: Path
    why: str
    size: int
    kept: str = ""


def select_folders(
    study: Study,
    runs_dir: Path,
    runs: Sequence[FolderStatus],
    *,
    in_states: Iterable[str] = CLEANED_BY_DEFAULT,
    unplanned: bool = False,
) -> list[Deletion]:
    """Folders of planned runs in these states, and with `unplanned` those that no run of the study has.

    What is active or unknown stays whatever is asked, and what was imported is left out.
    """
    wanted = frozenset(in_states) & frozenset(CLEANED)
    chosen = []
    for one in runs:
        if one.state in wanted and one.folder.is_dir():
            word = f"{one.state} ({one.kind})" if one.kind else one.state
            chosen.append(Deletion(one.folder, word, size_of(one.folder)))
    if unplanned:
        folders = states.unplanned(study, runs_dir)
        for one in states.of_folders(folders, Scheduler(runs_dir)):
            kept = f"it is {one.state}: sdtps cancel {study.path} --unplanned" if one.may_run else ""
            why = f"no variant plans it ({one.state})"
            chosen.append(Deletion(one.folder, why, size_of(one.folder), kept))
    links = _links([entry.folder for entry in chosen if not entry.kept], runs_dir)
    return [replace(entry, kept=entry.kept or links.get(entry.folder, "")) for entry in chosen]


def _links(folders: Sequence[Path], runs_dir: Path) -> dict[Path, str]:
    """Which of `folders` a link elsewhere in the store, which stays, leads to: why they are kept."""
    targets = {folder.resolve(): folder for folder in folders if not folder.is_symlink()}
    found: dict[Path, str] = {}
    for link in sorted(runs_dir.glob("*/*/seed*")) if targets else ():
        target = targets.get(link.resolve()) if link.is_symlink() and link not in folders else None
        if target is not None:
            name = link.relative_to(runs_dir)
            how = f"sdtps clean {name.parts[0]} --state completed"
            why = f"it stands for {name}, which was not trained: first delete that link ({how})"
            found.setdefault(target, why)
    return found


def size_of(folder: Path) -> int:
    """Bytes in the folder's files."""
    if folder.is_symlink():
        return 0
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def delete_folders(chosen: Sequence[Deletion], runs_dir: Path) -> list[Deletion]:
    """Delete the folders and return those that are gone; each leaves its place in one step first.

    States are looked up once more just before: what may run by now stays.
    """
    bin_folder = runs_dir / "_deleting"
    with contextlib.suppress(OSError):  # a full disk takes no folder, and is cleaned all the same
        bin_folder.mkdir(parents=True, exist_ok=True)
    gone = []
    free = [entry for entry in chosen if not entry.kept]
    newest = states.of_folders([entry.folder for entry in free], Scheduler(runs_dir))
    for entry, found in zip(free, newest, strict=True):
        if found.may_run:
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
        choices=CLEANED,
        default=[],
        help=f"runs in this state; may be repeated [{', '.join(CLEANED_BY_DEFAULT)}]",
    )
    add_unplanned(parser, "also runs that the manifest no longer plans")
    add_yes(parser)


def command(arguments: argparse.Namespace) -> int:
    """The verb `clean`."""
    runs_dir = arguments.runs_dir.resolve()
    whole = read_studies(arguments)[0]
    study = filtered(whole, arguments.variant, arguments.seed)
    chosen = select_folders(
        whole,
        runs_dir,
        states.run_states(study.runs(), runs_dir),
        in_states=arguments.state or CLEANED_BY_DEFAULT,
        unplanned=arguments.unplanned,
    )

    def name(entry: Deletion) -> str:
        return str(entry.folder.relative_to(runs_dir))

    free = [entry for entry in chosen if not entry.kept]
    gone = delete_folders(free, runs_dir) if arguments.yes else free
    left = {name(entry): entry.kept or "it may run by now" for entry in chosen if entry not in gone}
    if arguments.json:
        rows = [{"folder": name(d), "why": d.why, "bytes": d.size} for d in gone]
        key = "deleted" if arguments.yes else "would_delete"
        print_json([{key: rows, "left": left}])
        return 0
    if not chosen:
        words = " or ".join(arguments.state or CLEANED_BY_DEFAULT)
        print(f"{study.name}: no run is {words}; nothing to delete. --state names other states.")
        return 0
    for entry in gone:
        verb = "deleted" if arguments.yes else "would delete"
        print(f"{verb}  {visible(name(entry))}  {entry.why}  {entry.size / 1e6:.1f} MB")
    for folder, why in left.items():
        print(f"kept  {visible(folder)}  {visible(why)}")
    total = f"{counted(len(gone), 'folder')}, {sum(entry.size for entry in gone) / 1e6:.1f} MB"
    print(f"Deleted {total}." if arguments.yes else f"{total}. Give --yes to delete.")
    return 0
