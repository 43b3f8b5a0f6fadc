"""One tidy table from run folders: planned against got, nothing dropped, nothing averaged yet.

`runs` has one row for each planned run (and each imported one), whatever became of it; `rows` has one
row for each value that was logged. Fractions stay in [0, 1]. Reading never fails because of what a run
did: a diverged, failed, torn or missing run is a row with its state. Only `refuse_to_average` raises.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis import metricrows
from analysis.importers.folder import IMPORTED
from analysis.importers.naming import slug
from analysis.metricrows import MetricRows
from sdtps.errors import AggregationError
from sdtps.runfolder import HEARTBEAT_SECONDS, RunFolder

if TYPE_CHECKING:
    from ablations.manifest import Study

# A run that said `running` and has been silent for this long is called `lost`: ten missed heartbeats.
SILENT_SECONDS = 10 * HEARTBEAT_SECONDS
# States, from best to worst. `queued` = claimed and not started; `missing` = no trace of it.
STATES = (
    "completed",
    "diverged",
    "failed",
    "cancelled",
    "lost",
    "requeued",
    "running",
    "queued",
    "missing",
)
UNFINISHED = frozenset({"requeued", "running", "queued"})
RUN_COLUMNS = (
    "study",
    "variant",
    "seed",
    "identity",
    "folder",
    "where",
    "state",
    "planned",
    "imported",
    "code",
    "commit",
    "dirty",
    "attempt",
    "attempts",
    "epoch",
    "step",
    "reason",
    "best_epoch",
    "final_epoch",
    "selected_on",
    "train_seconds",
    "wall_seconds",
    "peak_memory_mib",
    "images_per_s",
    "parameters",
    "gpu",
    "host",
    "generated_data",
    "torn_lines",
    "notes",
)
ROW_COLUMNS = ("study", "variant", "seed", "kind", "attempt", "epoch", "step", "metric", "value")
_NOT_A_SCORE = frozenset({*metricrows.NOT_A_METRIC, "time"})


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
        spans: for each (study, variant) where its runs lie in `rows`, first to one past the last.
    """

    studies: list[Study]
    runs_dir: Path
    runs: pd.DataFrame
    rows: pd.DataFrame
    events: list[dict[str, Any]] = field(default_factory=list)
    unplanned: list[Path] = field(default_factory=list)
    spans: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)

    def study(self, name: str) -> Study:
        return next(s for s in self.studies if s.name == name)

    def runs_of(self, study: str, variant: str | None = None) -> pd.DataFrame:
        """The rows of `runs` of a study, or of one variant, in planned order."""
        mask = self.runs["study"] == study
        if variant is not None:
            mask &= self.runs["variant"] == variant
        return self.runs[mask]

    def rows_of(self, study: str, variant: str, kind: str, metric: str) -> pd.DataFrame:
        """Logged values of one metric of a variant, by seed and step."""
        spans = [self.rows.iloc[a:b] for a, b in self.spans.get((study, variant), [])]
        part = pd.concat(spans) if spans else self.rows.iloc[:0]
        part = part[(part["kind"] == kind) & (part["metric"] == metric)]
        return part.sort_values(["seed", "step"], kind="stable")

    def metrics_of(self, study: str, kind: str) -> list[str]:
        """Names of the metrics that a study logged under `kind`, in order of first appearance."""
        part = self.rows[(self.rows["study"] == study) & (self.rows["kind"] == kind)]
        return [str(name) for name in part["metric"].unique()]


@dataclass(frozen=True)
class _Source:
    """One run to be read: planned (from a manifest) or imported (found on disk)."""

    study: str
    variant: str
    seed: int
    identity: str
    folder: RunFolder
    planned: bool


def collect(
    studies: Sequence[Study], runs_dir: Path | str, *, now: float | None = None, curves: bool = True
) -> Collected:
    """Read the runs of `studies` below `runs_dir`.

    Args:
        now: seconds since 1970 against which heartbeats are judged; default: the clock.
        curves: False leaves `rows` empty (a table needs no curves).
    """
    runs_dir = Path(runs_dir)
    now = time.time() if now is None else now
    sources: list[_Source] = []
    unplanned: list[Path] = []
    for study in studies:
        planned = [
            _Source(s.study, s.variant, s.seed, s.identity, RunFolder(s.folder(runs_dir)), True)
            for s in study.runs()
        ]
        imported, strays = _found(study.name, runs_dir, {s.folder.path for s in planned})
        sources += planned + imported
        unplanned += strays
    records: list[dict[str, Any]] = []
    logged: list[tuple[_Source, MetricRows]] = []
    files = [source.folder.metrics_file for source in sources] if curves else []
    read = metricrows.read_all(files) or [MetricRows((), (), 0)] * len(sources)
    for source, rows in zip(sources, read, strict=True):
        records.append(_record(source, rows, now, runs_dir))
        if rows.blocks or rows.events:
            logged.append((source, rows))
    frame, spans = _row_frame(logged)
    return Collected(
        studies=list(studies),
        runs_dir=runs_dir,
        runs=_run_frame(records),
        rows=frame,
        spans=spans,
        events=[
            {"study": s.study, "variant": s.variant, "seed": s.seed, **event}
            for s, rows in logged
            for event in rows.events
        ],
        unplanned=unplanned,
    )


def _found(study: str, runs_dir: Path, known: set[Path]) -> tuple[list[_Source], list[Path]]:
    """Imported runs below runs/_imported/STUDY/, and folders that are neither imported nor planned."""
    imported, strays = [], []
    places = (runs_dir / study, runs_dir / IMPORTED / slug(study))
    for file in (f for place in places for f in sorted(place.glob("*/seed*/run.json"))):
        if file.parent in known:
            continue
        folder = RunFolder(file.parent)
        run = folder.run()
        if run.get("imported"):
            variant, seed = str(run.get("variant", file.parent.parent.name)), int(run.get("seed", 0))
            imported.append(_Source(study, variant, seed, str(run.get("identity", "")), folder, False))
        else:
            strays.append(file.parent)
    return imported, strays


# -- one run ------------------------------------------------------------------------------------


def state_of(folder: RunFolder, now: float) -> tuple[str, dict[str, Any]]:
    """The state word of a run folder and its status row, from the folder alone."""
    status = folder.status() or {}
    if folder.result_file.exists():
        if folder.damaged():
            return "failed", {**status, "reason": "result.json cannot be read"}
        return "completed", status
    state = status.get("state")
    if state == "running" and now - (_amount(status.get("heartbeat")) or 0.0) > SILENT_SECONDS:
        return "lost", status
    if state == "completed":  # it said so and left no result: it was stopped in between
        return "lost", status
    if state:
        return str(state), status
    if folder.status_file.exists():
        return "lost", {"reason": "status.json cannot be read"}
    return ("queued" if folder.claim_file.exists() else "missing"), status


def _record(source: _Source, rows: MetricRows, now: float, runs_dir: Path) -> dict[str, Any]:
    folder = source.folder
    state, status = state_of(folder, now)
    run = folder.run() if state != "missing" or folder.path.exists() else {}
    code, environment, data = (_mapping(run.get(k)) for k in ("code", "environment", "data"))
    notes: list[str] = []
    result = folder.result() if state == "completed" else None
    result = result or {}
    best, final = result.get("best") or {}, result.get("final") or {}
    attempts = [a for a in run.get("attempts") or () if isinstance(a, dict)]
    if rows.torn:
        notes.append(f"{rows.torn} unreadable lines in metrics.jsonl")
    if rows.blocks and state != "missing" and not run:
        notes.append("run.json is missing or cannot be read")
    record = {
        "study": source.study,
        "variant": source.variant,
        "seed": source.seed,
        "identity": source.identity,
        "folder": str(folder.path),
        "where": str(folder.path).removeprefix(str(runs_dir)).lstrip("/"),
        "state": state,
        "planned": source.planned,
        "imported": bool(run.get("imported")),
        "code": code.get("digest"),
        "commit": code.get("commit"),
        "dirty": bool(code.get("dirty")),
        "attempt": _count(result.get("attempt", status.get("attempt"))),
        "attempts": len(attempts) or None,
        "epoch": _count(status.get("epoch")),
        "step": _count(status.get("step")),
        "reason": status.get("reason"),
        "best_epoch": _count(best.get("epoch")),
        "final_epoch": _count(final.get("epoch")),
        "selected_on": result.get("selected_on"),
        "train_seconds": _amount(result.get("train_seconds")),
        "wall_seconds": _wall_seconds(attempts, status),
        "peak_memory_mib": _peak_memory(result, attempts),
        "images_per_s": _amount(result.get("images_per_s")),
        "parameters": _count(run.get("parameters")),
        "gpu": _gpu(environment),
        "host": environment.get("host") or (attempts[-1].get("host") if attempts else None),
        "generated_data": bool(data.get("generated")),
        "torn_lines": rows.torn,
        "notes": "; ".join(notes),
    }
    for prefix, row in (("best", best), ("final", final)):
        for name, value in row.items():
            if name not in _NOT_A_SCORE and isinstance(value, (int, float)):
                record[f"{prefix}/{name}"] = float(value)
    return record


# A file that somebody edited, or another program wrote, may hold anything: what has not the type that
# runs write is absent, not an error.


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 2**63 else None


def _amount(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _peak_memory(result: dict[str, Any], attempts: list[dict[str, Any]]) -> float | None:
    """MiB: the most of any attempt, also where there is no result."""
    found = [_amount(row.get("peak_memory_mib")) for row in (result, *attempts)]
    return max((amount for amount in found if amount is not None), default=None)


def _gpu(environment: dict[str, Any]) -> str | None:
    gpu = environment.get("gpu")
    if isinstance(gpu, list):
        gpu = gpu[0] if gpu else None
    if isinstance(gpu, dict):
        gpu = gpu.get("name")
    return str(gpu) if gpu else None


def _wall_seconds(attempts: list[dict[str, Any]], status: dict[str, Any]) -> float | None:
    """Time that all attempts held a machine; one without an end counts to the last heartbeat."""
    total = 0.0
    for attempt in attempts:
        start, end = _seconds(attempt.get("started")), _seconds(attempt.get("ended"))
        if end is None and attempt is attempts[-1]:
            end = _amount(status.get("heartbeat"))
        if start is not None and end is not None:
            total += max(0.0, float(end) - start)
    return total if attempts else None


def _seconds(stamp: Any) -> float | None:
    """Seconds since 1970 of an ISO time, or of a number."""
    if isinstance(stamp, (int, float)):
        return float(stamp)
    try:
        return datetime.fromisoformat(str(stamp).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


# -- frames -------------------------------------------------------------------------------------


def _run_frame(records: list[dict[str, Any]]) -> pd.DataFrame:
    scores: dict[str, None] = {}
    for record in records:
        scores.update(dict.fromkeys(key for key in record if "/" in key))
    columns = [*RUN_COLUMNS, *scores]
    frame = pd.DataFrame({c: [r.get(c) for r in records] for c in columns}, columns=columns)
    texts = ("study", "variant", "identity", "folder", "where", "state", "notes")
    for name in (*texts, "code", "commit", "reason", "selected_on", "gpu", "host"):
        frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
    counts = ("attempt", "attempts", "epoch", "step", "best_epoch", "final_epoch", "parameters")
    for name in counts:
        frame[name] = frame[name].astype("Int64")
    for name in ("train_seconds", "wall_seconds", "peak_memory_mib", "images_per_s", *scores):
        frame[name] = frame[name].astype("float64")
    return frame


def _row_frame(
    logged: list[tuple[_Source, MetricRows]],
) -> tuple[pd.DataFrame, dict[tuple[str, str], list[tuple[int, int]]]]:
    """The long frame, filled in place (a grid has tens of millions of values), and its spans."""
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
    names: dict[str, dict[str, int]] = {"study": {}, "variant": {}, "kind": {}, "metric": {}}

    def code(column: str, name: str) -> int:
        return names[column].setdefault(name, len(names[column]))

    count = sum(block.values.size for _, rows in logged for block in rows.blocks)
    columns: dict[str, np.ndarray] = {
        "study": np.empty(count, np.int16),
        "variant": np.empty(count, np.int16),
        "seed": np.empty(count, np.int32),
        "kind": np.empty(count, np.int8),
        "attempt": np.empty(count, np.int16),
        "epoch": np.empty(count, np.int32),
        "step": np.empty(count, np.int32),
        "metric": np.empty(count, np.int16),
        "value": np.empty(count, np.float64),
    }
    start = 0
    for source, rows in logged:
        first = start
        for block in rows.blocks:
            size, width = block.values.size, len(block.metrics)
            here = slice(start, start + size)
            columns["study"][here] = code("study", source.study)
            columns["variant"][here] = code("variant", source.variant)
            columns["seed"][here] = source.seed
            columns["kind"][here] = code("kind", block.kind)
            for name, values in (
                ("attempt", block.attempt),
                ("epoch", block.epoch),
                ("step", block.step),
            ):
                columns[name][here] = np.tile(values, width)
            columns["metric"][here] = np.repeat(
                [code("metric", m) for m in block.metrics], len(block.step)
            )
            columns["value"][here] = block.values.T.ravel()
            start += size
        spans.setdefault((source.study, source.variant), []).append((first, start))
    data: dict[str, Any] = {}
    dtype: Any
    for name in ROW_COLUMNS:
        if name in names:
            dtype = pd.CategoricalDtype(pd.Index(list(names[name]), dtype=object))
            data[name] = pd.Categorical.from_codes(columns[name], dtype=dtype)
        else:
            data[name] = columns[name]
    return pd.DataFrame(data, copy=False), spans


# -- what must not be averaged ------------------------------------------------------------------


@dataclass(frozen=True)
class Mark:
    """Something that a reader of a table must know; `text` is plain, without the study's name."""

    study: str
    kind: str  # missing, mixed_code, dirty_code
    text: str
    runs: tuple[str, ...] = ()


def refuse_to_average(
    collected: Collected,
    *,
    allow_missing: bool = False,
    allow_mixed_code: bool = False,
    studies: Sequence[str] | None = None,
) -> list[Mark]:
    """What stands against averaging over seeds, as marks to be printed.

    A run that diverged or failed for good is a result and is shown as one; a run that is missing or
    unfinished is a hole.

    Raises:
        AggregationError: a seed is missing, or two code versions are mixed, and that is not allowed;
            the text names each run and the command that gets it.
    """
    marks: list[Mark] = []
    complaints: list[str] = []
    for study in collected.studies:
        if studies is not None and study.name not in studies:
            continue
        runs = collected.runs_of(study.name)
        holes = runs[runs["planned"] & runs["state"].isin([*UNFINISHED, "missing", "lost"])]
        if len(holes):
            text = (
                f"{len(runs[runs['planned']]) - len(holes)} of {int(runs['planned'].sum())} "
                "planned runs are finished"
            )
            marks.append(Mark(study.name, "missing", text, tuple(holes["folder"])))
            if not allow_missing:
                complaints += _missing_text(study, text, holes)
        done = runs[(runs["state"] == "completed") & ~runs["imported"] & runs["code"].notna()]
        versions = Counter(str(code) for code in done["code"])
        if len(versions) > 1:
            listed = ", ".join(f"{code[:10]} ({n} runs)" for code, n in versions.most_common())
            text = f"{len(versions)} code versions are mixed: {listed}"
            stale = done[done["code"] != versions.most_common(1)[0][0]]
            marks.append(Mark(study.name, "mixed_code", text, tuple(stale["folder"])))
            if not allow_mixed_code:
                complaints += _mixed_text(study, text, stale)
    if complaints:
        raise AggregationError("\n".join(complaints))
    return marks


def _missing_text(study: Study, text: str, holes: pd.DataFrame) -> list[str]:
    lines = [f"{study.name}: {text}."]
    for run in holes.to_dict("records"):
        why = f" ({run['reason']})" if run["reason"] else ""
        lines.append(f"  {run['variant']} seed {run['seed']}: {run['state']}{why}")
    return [
        *lines,
        f"  Get them: python submit.py {study.path}    or go on without: --allow-missing",
    ]


def _mixed_text(study: Study, text: str, stale: pd.DataFrame) -> list[str]:
    commits = sorted({str(c)[:10] for c in stale["commit"] if c})
    lines = [f"{study.name}: {text}. They may not be comparable."]
    for run in stale.to_dict("records"):
        lines.append(f"  {run['variant']} seed {run['seed']}: {run['folder']}")
    if commits:
        lines.append(f"  What changed: git diff --stat {commits[0]} HEAD -- sdtps")
    return [
        *lines,
        f"  Delete these folders and run: python submit.py {study.path}    or: --allow-mixed-code",
    ]


def runs_as_json(collected: Collected) -> list[dict[str, Any]]:
    """`runs` as plain records for JSON: no NaN, absent values are null."""
    return json.loads(collected.runs.to_json(orient="records"))
