"""One tidy table from run folders: planned against got, nothing dropped, nothing averaged yet.

`runs` has one row for each planned run (and each imported one), whatever became of it; `rows` has one
row for each value that was logged. Fractions stay in [0, 1]. Reading never fails because of what a run
did: a diverged, failed, torn or missing run is a row with its state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ablations.study.model import slug
from analysis.runs import IMPORTED
from analysis.runs import metrics as metricrows
from analysis.runs.metrics import MetricRows, row_frame
from analysis.runs.record import Source, record_of, run_frame, run_of
from sdtps.run.folder import RunFolder

if TYPE_CHECKING:
    from ablations.study.model import Study


@dataclass
class Collected:
    """Everything that analysis knows about some studies.

    Attributes:
        runs: one row for each planned or imported run; `RUN_COLUMNS` (`where` is the folder below
            runs_dir, which is what generated files name), then `best/METRIC` and
            `final/METRIC` for completed runs (NaN elsewhere: a run that diverged has no result).
        rows: one row for each logged value; `ROW_COLUMNS`. Each (kind, step) of a run once, from the
            newest attempt that reached it. A non-finite value is NaN or infinite, never left out.
        events: rows of kind `event` as dictionaries with study, variant and seed.
        unplanned: run folders of these studies that no manifest plans any more.
        spans: for each run (by `where`) that logged anything where it lies in `rows`, first to one past
            the last.
        computed: what was computed from these runs already, such as `analysis.results.frames`.
    """

    studies: list[Study]
    runs_dir: Path
    runs: pd.DataFrame
    rows: pd.DataFrame
    events: list[dict[str, Any]] = field(default_factory=list)
    unplanned: list[Path] = field(default_factory=list)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    computed: dict[tuple[str, ...], Any] = field(default_factory=dict, repr=False)

    def study(self, name: str) -> Study:
        return next(s for s in self.studies if s.name == name)

    def runs_of(self, study: str, variant: str | None = None) -> pd.DataFrame:
        """The rows of `runs` of a study, or of one variant, in planned order."""
        mask = self.runs["study"] == study
        if variant is not None:
            mask &= self.runs["variant"] == variant
        return self.runs[mask]

    def rows_of(self, study: str, variant: str, kind: str, metric: str) -> pd.DataFrame:
        """Logged values of one metric of all runs of a variant, by seed and step."""
        parts = [
            self.rows_of_run(str(where), kind, metric)
            for where in self.runs_of(study, variant)["where"]
        ]
        part = pd.concat(parts) if parts else self.rows.iloc[:0]
        return part.sort_values(["seed", "step"], kind="stable")

    def rows_of_run(self, where: str, kind: str, metric: str) -> pd.DataFrame:
        """Logged values of one metric of one run, in order of step.

        An imported run may have the variant's name and the seed of one of ours, so a run is named by
        its folder.
        """
        start, stop = self.spans.get(where, (0, 0))
        part = self.rows.iloc[start:stop]
        part = part[(part["kind"] == kind) & (part["metric"] == metric)]
        return part.sort_values("step", kind="stable")

    def metrics_of(self, study: str, kind: str) -> list[str]:
        """Names of the metrics that a study logged under `kind`, in order of first appearance."""
        part = self.rows[(self.rows["study"] == study) & (self.rows["kind"] == kind)]
        return [str(name) for name in part["metric"].unique() if name != "time"]


def collect(studies: Sequence[Study], runs_dir: Path | str, *, curves: bool = True) -> Collected:
    """Read the runs of `studies` below `runs_dir`.

    Args:
        curves: False leaves `rows` empty (a table needs no curves).
    """
    runs_dir = Path(runs_dir)
    found: list[Source] = []
    unplanned: list[Path] = []
    for study in studies:
        runs, strays = sources(study, runs_dir)
        found += runs
        unplanned += strays
    records: list[dict[str, Any]] = []
    logged: list[tuple[Source, MetricRows]] = []
    places: list[str] = []
    read: Sequence[MetricRows | None] = [None] * len(found)
    if curves:
        read = metricrows.read_all([source.folder.metrics_file for source in found])
    for source, rows in zip(found, read, strict=True):
        records.append(record_of(source, rows, runs_dir))
        if rows is not None and (rows.blocks or rows.events):
            logged.append((source, rows))
            places.append(records[-1]["where"])
    frame, spans = row_frame([(s.study, s.variant, s.seed, rows) for s, rows in logged])
    return Collected(
        studies=list(studies),
        runs_dir=runs_dir,
        runs=run_frame(records),
        rows=frame,
        spans=dict(zip(places, spans, strict=True)),
        events=[
            {"study": s.study, "variant": s.variant, "seed": s.seed, **event}
            for s, rows in logged
            for event in rows.events
        ],
        unplanned=unplanned,
    )


def runs_as_json(collected: Collected) -> list[dict[str, Any]]:
    """`runs` as plain records for JSON: no NaN, absent values are null."""
    return json.loads(collected.runs.to_json(orient="records"))


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
