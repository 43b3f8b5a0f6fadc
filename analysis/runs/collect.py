"""The runs of some studies: planned against got, nothing dropped, nothing averaged yet.

One record for each planned run, and each imported one, whatever became of it. Reading never fails
because of what a run did: a diverged, failed, torn or missing run is a record with its state.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from ablations.study.model import slug
from analysis import verbs
from analysis.runs import IMPORTED
from analysis.runs.record import RECORDED, Run, Source, as_rows, read, run_of
from analysis.runs.rows import TIME
from sdtps.run.folder import RunFolder

if TYPE_CHECKING:
    from ablations.study.model import Study

T = TypeVar("T")


@dataclass
class Collected:
    """Everything that analysis knows about some studies.

    Attributes:
        runs: one record for each planned or imported run, in planned order.
        unplanned: run folders of these studies that no manifest plans any more.
        computed: what was computed from these runs already, such as `analysis.results.frames`.
    """

    studies: list[Study]
    runs_dir: Path
    runs: tuple[Run, ...]
    unplanned: list[Path] = field(default_factory=list)
    computed: dict[tuple[str, ...], Any] = field(default_factory=dict, repr=False)

    def once(self, key: tuple[str, ...], make: Callable[[], T]) -> T:
        """What `make` gives, computed the first time and kept in `computed`."""
        if key not in self.computed:
            self.computed[key] = make()
        made: T = self.computed[key]
        return made

    def study(self, name: str) -> Study:
        return next(s for s in self.studies if s.name == name)

    @cached_property
    def _by_study(self) -> dict[str, list[Run]]:
        found: dict[str, list[Run]] = {}
        for run in self.runs:
            found.setdefault(run.study, []).append(run)
        return found

    def runs_of(self, study: str) -> list[Run]:
        """The runs of a study, in planned order, then imported ones."""
        return self._by_study.get(study, [])

    def metrics_of(self, study: str, kind: str) -> list[str]:
        """Names of the metrics that a study logged under `kind`, in order of first appearance."""
        blocks = (
            block for run in self.runs_of(study) for block in run.rows.blocks if block.kind == kind
        )
        return list(dict.fromkeys(name for block in blocks for name in block.metrics if name != TIME))

    def values(self) -> pd.DataFrame:
        """Every logged value as a row: study, variant, seed, then those of `MetricRows.frame`."""
        parts = []
        for run in self.runs:
            if run.rows.blocks:
                parts.append(run.rows.frame())
                for at, name in enumerate(("study", "variant", "seed")):
                    parts[-1].insert(at, name, getattr(run, name))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def collect(studies: Sequence[Study], runs_dir: Path | str, *, curves: bool = True) -> Collected:
    """Read the runs of `studies` below `runs_dir`.

    Args:
        curves: False leaves what runs logged unread (a table needs none of it).
    """
    runs_dir = Path(runs_dir)
    found: list[Source] = []
    unplanned: list[Path] = []
    for study in studies:
        runs, strays = sources(study, runs_dir)
        found += runs
        unplanned += strays
    records = tuple(read(source, runs_dir, curves=curves) for source in found)
    return Collected(list(studies), runs_dir, records, unplanned)


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


# -- the verb `collect` ----------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs.add_study_arguments(parser)
    parser.add_argument("--json", action="store_true", help="all columns: a list, one object a run")


def command(arguments: argparse.Namespace) -> int:
    """Print the runs; what must not be averaged is printed below, and nothing fails because of it."""
    from rich.markup import escape
    from rich.table import Table

    from analysis.runs.comparable import KINDS, refuse_to_average
    from sdtps.system.errors import counted

    studies = verbs.load(arguments)
    collected = collect(studies, arguments.runs_dir)
    verbs.tell_not_fractions(collected)
    if arguments.json:
        verbs.print_json(as_rows(collected.runs))
        return 0
    console = verbs.console()
    for study in studies:
        runs = collected.runs_of(study.name)
        every = [(epoch, name) for name in study.metrics for epoch in RECORDED]
        metrics = [(e, name) for e, name in every if any(name in run.scores(e) for run in runs)]
        shown = Table(title=f"{study.name}: {counted(len(runs), 'run')}")
        scored = [f"{RECORDED[e]}/{name}" for e, name in metrics]
        for head in ("variant", "seed", "state", "epoch", *scored, "code", "notes"):
            shown.add_column(head, overflow="fold")
        for run in runs:
            scores = [run.scores(epoch).get(name) for epoch, name in metrics]
            shown.add_row(
                *(escape(word) for word in (run.variant, str(run.seed), run.state)),
                "" if run.epoch is None else str(run.epoch),
                *("" if score is None else f"{score:.4f}" for score in scores),
                (run.code or "")[:8] + ("+" if run.dirty else ""),
                escape("; ".join(filter(None, (run.reason, *run.notes)))),
            )
        console.print(shown)
    for mark in refuse_to_average(collected, allow=KINDS):
        console.print(f"[yellow]{mark.study}: {mark.text}[/]")
    for path in collected.unplanned:
        console.print(f"[yellow]nothing plans {path}[/]")
    return 0
