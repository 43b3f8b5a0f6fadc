"""One run folder as one typed record, read once: all that tables, curves and claims know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from ablations.store.states import from_records
from analysis.runs.rows import NOT_A_METRIC, NOTHING, TIME, MetricRows, read_rows
from sdtps.run.folder import RunFolder, is_finite, machine_seconds
from sdtps.system.errors import counted
from sdtps.system.files import oddity

Epoch = Literal["last", "best"]
RECORDED: dict[Epoch, str] = {"best": "best", "last": "final"}  # what result.json calls them

# Files that analysis reads, beside those that decide the state.
_FILES = (
    *("config.yaml", "run.json", "metrics.jsonl", "checkpoint.pt"),
    *("train.log", "status.json", "lock.json"),
)
_NOT_A_SCORE = NOT_A_METRIC | {TIME}
# Kinds of failures (`ablations.store.states`) in the words of a table's note.
_FAILURES = {
    "error": "failed",
    "exit": "failed",
    "oom": "out of memory",
    "timeout": "failed (time limit)",
    "node": "failed (its node failed)",
    "lost": "failed (its job is gone)",
    "start": "failed (Python did not start)",
    "result": "failed (result.json is damaged)",
    "unreadable": "failed (a file cannot be read)",
}


@dataclass(frozen=True)
class Source:
    """One run to be read: planned (from a manifest) or imported (found on disk)."""

    study: str
    variant: str
    seed: int
    identity: str
    folder: RunFolder
    planned: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """A planned or imported run, whatever became of it. What its files do not say is None or empty.

    Attributes:
        where: its folder below the folder of runs, which is what generated files name.
        state, kind, reason: see `ablations.store.states`; `damaged`: changed after its end.
        codes: digests of the sources, in the order in which attempts used them.
        evaluated_by: metrics that `sdtps evaluate` added, each with the digest of the code that did.
        data, weights: digests. counts: what the data held, by split.
        program: digest of each file that a program's command line names.
        precision: what `train.amp: auto` came to.
        wall_seconds: for which all attempts held a machine. peak_memory_mib: the most of any attempt.
        changed: what of its files has other contents than at its end.
        best, last: metric to value at the selected and at the last epoch, fractions in [0, 1]; empty
            unless it completed. not_finite: `best/METRIC` or `final/METRIC` that are no finite number.
        jobs: the scheduler's. source: the log that an imported run was read from.
        rows: what it logged; empty where nobody read it.
    """

    study: str
    variant: str
    seed: int
    identity: str = ""
    folder: str = ""
    where: str = ""
    state: str = "planned"
    planned: bool = True
    imported: bool = False
    codes: tuple[str, ...] = ()
    evaluated_by: Mapping[str, str | None] = field(default_factory=dict)
    dataset: str | None = None
    data: str | None = None
    weights: Mapping[str, str] = field(default_factory=dict)
    program: Mapping[str, str] = field(default_factory=dict)
    precision: str | None = None
    commit: str | None = None
    dirty: bool = False
    attempt: int | None = None
    attempts: int | None = None
    epoch: int | None = None
    step: int | None = None
    kind: str | None = None
    reason: str | None = None
    best_epoch: int | None = None
    final_epoch: int | None = None
    selected_on: str | None = None
    train_seconds: float | None = None
    wall_seconds: float | None = None
    peak_memory_mib: float | None = None
    images_per_s: float | None = None
    parameters: int | None = None
    gpu: str | None = None
    host: str | None = None
    torch: str | None = None
    generated_data: bool = False
    counts: Mapping[str, Any] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    source: str | None = None
    best: Mapping[str, float] = field(default_factory=dict)
    last: Mapping[str, float] = field(default_factory=dict)
    not_finite: frozenset[str] = frozenset()
    rows: MetricRows = NOTHING

    @property
    def code(self) -> str | None:
        """The sources that it ended with."""
        return self.codes[-1] if self.codes else None

    @property
    def machine_seconds(self) -> float | None:
        """The training time stands in where attempts were not recorded."""
        return self.train_seconds if self.wall_seconds is None else self.wall_seconds

    def scores(self, epoch: Epoch) -> Mapping[str, float]:
        return self.best if epoch == "best" else self.last

    @property
    def word(self) -> str:
        """The state with what a reader asks next: `diverged at epoch 3`."""
        if self.state == "diverged" and self.epoch is not None:
            at = f"diverged at epoch {self.epoch}"
            return f"{at} (step {self.step})" if self.step is not None else at
        if self.state == "failed":
            kind = self.kind or "error"
            return _FAILURES.get(kind, f"failed ({kind})")
        if self.state in ("interrupted", "unknown") and self.reason:
            return f"{self.state} ({self.reason})"
        return {"planned": "not run"}.get(self.state, self.state)


# -- as rows of a table ----------------------------------------------------------------------------

_NOT_IN_ROWS = ("counts", "best", "last", "not_finite", "rows", "jobs", "source")
COLUMNS = tuple(f.name for f in fields(Run) if f.name not in _NOT_IN_ROWS)


def as_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """`COLUMNS`, `code`, and `best/METRIC` and `final/METRIC` of any of them; None where absent."""
    scores = dict.fromkeys((e, name) for run in runs for e in RECORDED for name in run.scores(e))
    return [
        {name: getattr(run, name) for name in COLUMNS}
        | {"code": run.code, "notes": "; ".join(run.notes)}
        | {f"{RECORDED[e]}/{name}": run.scores(e).get(name) for e, name in scores}
        for run in runs
    ]


# -- read ------------------------------------------------------------------------------------------


def read(source: Source, runs_dir: Path, *, curves: bool = True) -> Run:
    """The record of one run. Nothing that a run did makes reading fail.

    Args:
        curves: False leaves metrics.jsonl unread.
    """
    folder = source.folder
    run, unread = run_of(folder)
    imported = mapping(run.get("imported"))
    known = from_records(folder.path)
    state, status = known.state, known.status
    reason = known.detail
    changed = tuple(folder.changed_since_end()) if state == "completed" or "seal" in status else ()
    if changed:  # neither its scores nor its curves are read
        state, curves = "damaged", False
        reason = "; ".join(changed)
    if run.get("imported") and state not in ("completed", "unknown", "damaged"):
        reason = str(status.get("reason") or reason)  # nothing resumes it: its log says how it is
    code, environment, data = (mapping(run.get(k)) for k in ("code", "environment", "data"))
    result = (folder.result() if state == "completed" else None) or {}
    origin = mapping(result.get("origin"))
    codes = [c for c in _listed(origin.get("code")) or [code.get("digest")] if isinstance(c, str) and c]
    attempts = run.get("attempts") or []
    rows = read_rows(folder.metrics_file) if curves else NOTHING
    scores, evaluated_by, not_finite = _scores(folder, result)
    best_row, last_row = (mapping(result.get(RECORDED[epoch])) for epoch in ("best", "last"))
    warnings = tuple(str(warning) for warning in _listed(data.get("warnings")))
    notes = [] if unread is None else [unread]
    notes += _odd(folder, known.detail)
    if curves:
        notes += _about_rows(rows, state, notes, has_run=bool(run) or unread is not None)
    if imported and state == "completed" and status.get("reason"):
        notes.append(str(status["reason"]))  # such as: ended, length unknown
    odd = (name.replace("/", " ", 1) for name in not_finite)
    notes += [*warnings, *(f"result.json: {name} is no finite number" for name in odd)]
    if state == "completed" and not any(scores.values()):
        notes.append("result.json holds no metric")
    return Run(
        study=source.study,
        variant=source.variant,
        seed=source.seed,
        identity=source.identity,
        folder=str(folder.path),
        where=str(folder.path).removeprefix(str(runs_dir)).lstrip("/"),
        state=state,
        planned=source.planned,
        imported=bool(run.get("imported")),
        codes=tuple(codes),
        evaluated_by=evaluated_by,
        dataset=_word(data.get("name")) or _word(mapping(imported.get("facts")).get("dataset")),
        data=_word(origin["data"] if "data" in origin else data.get("digest")),
        weights=_digests(origin["weights"] if "weights" in origin else run.get("weights")),
        program=_digests(run.get("program")),
        precision=_word(origin.get("amp")),
        commit=_word(code.get("commit")),
        dirty=bool(code.get("dirty")),
        attempt=count(result.get("attempt", status.get("attempt"))),
        attempts=len(attempts) or None,
        epoch=count(status.get("epoch", last_row.get("epoch"))),
        step=count(status.get("step", result.get("steps", last_row.get("step")))),
        kind=known.kind,
        reason=reason or None,
        best_epoch=count(best_row.get("epoch")),
        final_epoch=count(last_row.get("epoch")),
        selected_on=_word(result.get("selected_on")),
        train_seconds=amount(result.get("train_seconds")),
        wall_seconds=machine_seconds(attempts, status) if attempts else None,
        peak_memory_mib=_peak_memory(result, attempts),
        images_per_s=amount(result.get("images_per_s")),
        parameters=count(run.get("parameters")),
        gpu=_word(environment.get("gpu")),
        host=_word(environment.get("host")) or _word(attempts[-1].get("host") if attempts else None),
        torch=_word(mapping(environment.get("packages")).get("torch")),
        generated_data=bool(data.get("generated")),
        counts=mapping(data.get("counts")),
        changed=changed,
        warnings=warnings,
        notes=tuple(notes),
        jobs=tuple(dict.fromkeys(str(a["job_id"]) for a in attempts if a.get("job_id"))),
        source=_source(imported) if imported else None,
        best=scores["best"],
        last=scores["last"],
        not_finite=frozenset(not_finite),
        rows=rows,
    )


def _scores(
    folder: RunFolder, result: Mapping[str, Any]
) -> tuple[dict[Epoch, dict[str, float]], dict[str, str | None], list[str]]:
    """Of a completed run: its scores at each epoch, those of result.json and those that were evaluated
    later; the code behind the later ones; and which are no finite number."""
    later = folder.later_scores() if result else {}
    scores: dict[Epoch, dict[str, float]] = {}
    by: dict[str, str | None] = {}
    not_finite: list[str] = []
    for epoch, key in RECORDED.items():
        row = {n: value for n, value in mapping(result.get(key)).items() if n not in _NOT_A_SCORE}
        added = {n: both for n, both in later.get(epoch, {}).items() if n not in row}
        by |= {n: code for n, (_, code) in added.items()}
        every = {**{n: value for n, (value, _) in added.items()}, **row}
        scores[epoch] = {n: score for n, v in every.items() if (score := amount(v)) is not None}
        for name in every.keys() - scores[epoch].keys():
            value = every[name]
            if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
                not_finite.append(f"{key}/{name}")
    return scores, by, sorted(not_finite)


def _odd(folder: RunFolder, reason: str) -> list[str]:
    found = {name: oddity(folder.path / name) for name in _FILES if name not in reason}
    return [f"{name} is {odd}" for name, odd in found.items() if odd]


def _about_rows(rows: MetricRows, state: str, notes: Sequence[str], *, has_run: bool) -> list[str]:
    """What is odd about metrics.jsonl and missing beside it, where no note names the file already."""
    noted = {note.partition(" ")[0] for note in notes}
    found = []
    if rows.torn:
        found.append(f"{counted(rows.torn, 'unreadable line')} in metrics.jsonl")
    elif rows.unread is not None:
        found.append(f"metrics.jsonl cannot be read: {rows.unread}")
    elif state == "completed" and not rows.blocks and "metrics.jsonl" not in noted:
        found.append("metrics.jsonl is missing or empty: no curves")
    if rows.blocks and not has_run and "run.json" not in noted:
        found.append("run.json is missing or cannot be read")
    return found


def _source(imported: Mapping[str, Any]) -> str:
    place = f"{imported.get('source_folder')}/{imported.get('source')}"
    return f"{place} ({imported.get('format')}, SHA-256 {str(imported.get('sha256'))[:16]})"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _digests(found: Any) -> dict[str, str]:
    """Digest of each part's file of weights, or of each file of a program."""
    parts = mapping(found)
    digests = {part: _word(mapping(file).get("digest") or file) for part, file in parts.items()}
    return {part: digest for part, digest in digests.items() if digest}


def _peak_memory(result: dict[str, Any], attempts: list[dict[str, Any]]) -> float | None:
    """MiB: the most of any attempt, also where there is no result."""
    found = (amount(row.get("peak_memory_mib")) for row in (result, *attempts))
    return max((most for most in found if most is not None), default=None)


# -- what its files say ---------------------------------------------------------------------------


def run_of(folder: RunFolder) -> tuple[dict[str, Any], str | None]:
    """run.json, and why it cannot be read where there is one that may not be."""
    try:
        return folder.run(), None
    except OSError as error:
        name = Path(error.filename or folder.path).name
        return {}, f"{name} cannot be read: {error.strerror}"


# -- values of files that anybody may have edited: those of the wrong type count as missing --------


def mapping(value: Any) -> dict[str, Any]:
    """The value, or an empty mapping."""
    return value if isinstance(value, dict) else {}


def count(value: Any) -> int | None:
    """A whole number that fits 64 bits."""
    return value if type(value) is int and abs(value) < 2**63 else None


def amount(value: Any) -> float | None:
    """A finite number, whole or not: JSON's 1e999 is none."""
    return float(value) if is_finite(value) else None
