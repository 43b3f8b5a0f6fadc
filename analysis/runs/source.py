"""Which run folders belong to a study: planned by its manifest, imported, or neither."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.importers.store import IMPORTED, slug
from analysis.runs.state import run_of
from sdtps.run.folder import RunFolder

if TYPE_CHECKING:
    from ablations.study.model import Study


@dataclass(frozen=True)
class Source:
    """One run to be read: planned (from a manifest) or imported (found on disk)."""

    study: str
    variant: str
    seed: int
    identity: str
    folder: RunFolder
    planned: bool


def sources(study: Study, runs_dir: Path) -> tuple[list[Source], list[Path]]:
    """The runs of a study, planned ones first, and folders that are neither planned nor imported."""
    planned = [
        Source(s.study, s.variant, s.seed, s.identity, RunFolder(s.folder(runs_dir)), True)
        for s in study.runs()
    ]
    imported, strays = _found(study.name, runs_dir, {s.folder.path for s in planned})
    return planned + imported, strays


def _found(study: str, runs_dir: Path, known: set[Path]) -> tuple[list[Source], list[Path]]:
    """Imported runs below runs/_imported/STUDY/, and folders that are neither imported nor planned."""
    imported, strays = [], []
    places = (runs_dir / study, runs_dir / IMPORTED / slug(study))
    for file in (f for place in places for f in sorted(place.glob("*/seed*/run.json"))):
        if file.parent in known:
            continue
        folder = RunFolder(file.parent)
        run, _ = run_of(folder)
        if run.get("imported"):
            variant, seed = str(run.get("variant", file.parent.parent.name)), int(run.get("seed", 0))
            imported.append(Source(study, variant, seed, str(run.get("identity", "")), folder, False))
        else:
            strays.append(file.parent)
    return imported, strays
