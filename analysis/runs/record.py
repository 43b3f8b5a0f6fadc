"""One run folder as one row of the table of runs."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from ablations.store.life import Life, from_records
from analysis.runs import metrics as metricrows
from analysis.runs.metrics import MetricRows, evaluation
from sdtps.config.identity import canonical, identities
from sdtps.run.folder import RunFolder
from sdtps.system.errors import ConfigError, YamlError, counted
from sdtps.system.files import oddity, read_bytes

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
    "codes",
    "evaluated_by",
    "dataset",
    "data",
    "weights",
    "precision",
    "commit",
    "dirty",
    "attempt",
    "attempts",
    "epoch",
    "step",
    "kind",
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
    "contradictions",
    "warnings",
    "notes",
)
# Files that analysis reads, beside those that decide the state.
_FILES = (
    "config.yaml",
    "run.json",
    "metrics.jsonl",
    "checkpoint.pt",
    "train.log",
    "status.json",
    "claim.json",
)
_NOT_A_SCORE = frozenset({*metricrows.NOT_A_METRIC, "time"})


@dataclass(frozen=True)
class Source:
    """One run to be read: planned (from a manifest) or imported (found on disk)."""

    study: str
    variant: str
    seed: int
    identity: str
    folder: RunFolder
    planned: bool


def record_of(source: Source, rows: MetricRows | None, runs_dir: Path) -> dict[str, Any]:
    """`RUN_COLUMNS` of one run, and `best/METRIC` and `final/METRIC` where it is completed.

    Args:
        rows: what it logged; None where nobody has read it.
    """
    folder = source.folder
    run, unread = run_of(folder)
    life, status = _life(folder, run)
    state = life.state
    code, environment, data = (mapping(run.get(k)) for k in ("code", "environment", "data"))
    facts = mapping(mapping(run.get("imported")).get("facts"))
    notes: list[str] = [] if unread is None else [unread]
    result = (folder.result() if state == "completed" else None) or {}
    best, final = result.get("best") or {}, result.get("final") or {}
    evaluated_by: dict[str, str | None] = {}
    if result:  # conditions that were scored after training
        for which, row in (("best", best), ("last", final)):
            later = folder.evaluated_by(which)  # type: ignore[arg-type]
            evaluated_by |= {name: by for name, by in later.items() if name not in row}
        best, final = {**folder.evaluated("best"), **best}, {**folder.evaluated("last"), **final}
    origin = mapping(result.get("origin"))
    codes = [c for c in _listed(origin.get("code")) or [code.get("digest")] if isinstance(c, str) and c]
    attempts = [a for a in run.get("attempts") or () if isinstance(a, dict)]
    odd = [name for name in _FILES if oddity(folder.path / name) and name not in life.detail]
    notes += [f"{name} is {oddity(folder.path / name)}" for name in odd]
    if rows is not None:
        if rows.torn:
            notes.append(f"{counted(rows.torn, 'unreadable line')} in metrics.jsonl")
        if rows.unread is not None:
            notes.append(f"metrics.jsonl cannot be read: {rows.unread}")
        elif state == "completed" and not rows.torn and not rows.blocks and "metrics.jsonl" not in odd:
            notes.append("metrics.jsonl is missing or empty: no curves")
        if rows.blocks and not run and unread is None and "run.json" not in odd:
            notes.append("run.json is missing or cannot be read")
    if run.get("imported") and state == "completed" and status.get("reason"):
        notes.append(str(status["reason"]))  # such as: ended, length unknown
    warnings = [str(warning) for warning in _listed(data.get("warnings"))]
    notes += warnings
    contradictions = (
        _contradictions(source, rows, best, final) if source.planned and not run.get("imported") else []
    )
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
        "code": codes[-1] if codes else None,
        "codes": codes,
        "evaluated_by": evaluated_by,
        "dataset": _word(data.get("name")) or _word(facts.get("dataset")),
        "data": _word(origin["data"] if "data" in origin else data.get("fingerprint")),
        "weights": _weights(origin["weights"] if "weights" in origin else run.get("weights")),
        "precision": _word(origin.get("amp")),
        "commit": code.get("commit"),
        "dirty": bool(code.get("dirty")),
        "attempt": count(result.get("attempt", status.get("attempt"))),
        "attempts": len(attempts) or None,
        "epoch": count(status.get("epoch", final.get("epoch"))),
        "step": count(status.get("step", result.get("steps", final.get("step")))),
        "kind": life.kind,
        "reason": life.detail or None,
        "best_epoch": count(best.get("epoch")),
        "final_epoch": count(final.get("epoch")),
        "selected_on": result.get("selected_on"),
        "train_seconds": amount(result.get("train_seconds")),
        "wall_seconds": _wall_seconds(attempts, status),
        "peak_memory_mib": _peak_memory(result, attempts),
        "images_per_s": amount(result.get("images_per_s")),
        "parameters": count(run.get("parameters")),
        "gpu": _gpu(environment),
        "host": environment.get("host") or (attempts[-1].get("host") if attempts else None),
        "generated_data": bool(data.get("generated")),
        "contradictions": contradictions,
        "warnings": warnings,
        "notes": "; ".join(notes),
    }
    for prefix, row in (("best", best), ("final", final)):
        for name, value in row.items():
            if name in _NOT_A_SCORE or not isinstance(value, (int, float)):
                continue
            if (score := amount(value)) is None:
                notes.append(f"result.json: {prefix} {name} is no finite number")
            else:
                record[f"{prefix}/{name}"] = score
    record["notes"] = "; ".join(notes)
    if state == "completed" and not any("/" in key for key in record):
        record["notes"] = "; ".join([*notes, "result.json holds no metric"])
    return record


def run_frame(records: list[dict[str, Any]]) -> pd.DataFrame:
    """The records as rows: `RUN_COLUMNS`, then the scores of any of them."""
    scores: dict[str, None] = {}
    for record in records:
        scores.update(dict.fromkeys(key for key in record if "/" in key))
    columns = [*RUN_COLUMNS, *scores]
    frame = pd.DataFrame({c: [r.get(c) for r in records] for c in columns}, columns=columns)
    texts = ("study", "variant", "identity", "folder", "where", "state", "notes")
    for name in (
        *texts,
        "code",
        "commit",
        "dataset",
        "data",
        "kind",
        "reason",
        "selected_on",
        "gpu",
        "host",
    ):
        frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
    counts = ("attempt", "attempts", "epoch", "step", "best_epoch", "final_epoch", "parameters")
    for name in counts:
        frame[name] = frame[name].astype("Int64")
    for name in ("train_seconds", "wall_seconds", "peak_memory_mib", "images_per_s", *scores):
        frame[name] = frame[name].astype("float64")
    return frame


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _weights(found: Any) -> dict[str, str]:
    """sha256 of each part's file of weights, from `origin` of result.json or from run.json."""
    parts = mapping(found)
    if "sha256" in parts:  # run.json of a run with one file
        parts = {"backbone": parts}
    digests = {part: _word(mapping(file).get("sha256") or file) for part, file in parts.items()}
    return {part: digest for part, digest in digests.items() if digest}


def _peak_memory(result: dict[str, Any], attempts: list[dict[str, Any]]) -> float | None:
    """MiB: the most of any attempt, also where there is no result."""
    found = [amount(row.get("peak_memory_mib")) for row in (result, *attempts)]
    return max((most for most in found if most is not None), default=None)


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
        start, end = seconds(attempt.get("started")), seconds(attempt.get("ended"))
        if end is None and attempt is attempts[-1]:
            end = amount(status.get("heartbeat"))
        if start is not None and end is not None:
            total += max(0.0, float(end) - start)
    return total if attempts else None


# -- what its files say ---------------------------------------------------------------------------


def run_of(folder: RunFolder) -> tuple[dict[str, Any], str | None]:
    """run.json, and why it cannot be read where there is one that may not be."""
    try:
        return folder.run(), None
    except OSError as error:
        name = Path(error.filename or folder.path).name
        return {}, f"{name} cannot be read: {error.strerror}"


def _life(folder: RunFolder, run: dict[str, Any]) -> tuple[Life, dict[str, Any]]:
    """How the run is (see `ablations.store.life`), and its status.json where that still counts."""
    life = from_records(folder.path)
    status = life.status
    if run.get("imported") and life.state not in ("completed", "unknown"):
        # Nothing of ours resumes it: the log's own reason says what it is.
        life = replace(life, detail=str(status.get("reason") or life.detail))
    return life, status


def _contradictions(
    source: Source, rows: MetricRows | None, best: dict[str, Any], final: dict[str, Any]
) -> list[str]:
    """Where the files of a run of ours contradict each other, as an edit by hand makes them do."""
    found = []
    canonical = _canonical(source.folder)
    if canonical is not None and identities(canonical, [source.seed])[0] != source.identity:
        found.append("config.yaml is not the configuration whose hash the folder has in its name")
    for name, row in (("best", best), ("final", final)):
        logged = {} if rows is None else evaluation(rows, row.get("step"))
        found += [
            f"result.json has {name} {metric} {value:g}, metrics.jsonl {logged[metric]:g} at that step"
            for metric, value in row.items()
            if metric not in _NOT_A_SCORE and metric in logged and amount(value) is not None
            if not math.isclose(float(value), logged[metric], rel_tol=1e-9, abs_tol=1e-12)
        ]
    return found


def _canonical(folder: RunFolder) -> str | None:
    """What of config.yaml can change a result; empty for no configuration, None without the file."""
    try:
        text = read_bytes(folder.config_file)
    except OSError:
        return None
    if text is None:
        return None
    if text not in _KNOWN:
        try:
            _KNOWN[text] = canonical(folder.config())
        except (ConfigError, YamlError):
            _KNOWN[text] = ""
    return _KNOWN[text]


_KNOWN: dict[bytes, str] = {}  # the seeds of a variant have one configuration


# -- values of files that anybody may have edited: those of the wrong type count as missing --------


def mapping(value: Any) -> dict[str, Any]:
    """The value, or an empty mapping."""
    return value if isinstance(value, dict) else {}


def count(value: Any) -> int | None:
    """A whole number that fits 64 bits."""
    return value if type(value) is int and abs(value) < 2**63 else None


def amount(value: Any) -> float | None:
    """A finite number, whole or not: JSON's 1e999 is none."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number of hundreds of digits
        return None


def seconds(stamp: Any) -> float | None:
    """Seconds since 1970 of an ISO time, or of a number."""
    if isinstance(stamp, (int, float)):
        return amount(stamp)
    try:
        return datetime.fromisoformat(str(stamp).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


# -- has anything changed? -------------------------------------------------------------------------


def fingerprint(study_folder: Path) -> str:
    """Digest of results, later evaluations, how unfinished runs ended, and the length of logs."""
    digest = hashlib.sha256()
    for folder in sorted(study_folder.glob("*/seed*")):
        digest.update(folder.name.encode())
        metrics = folder / "metrics.jsonl"
        ended = _content(folder / "result.json")
        digest.update(ended if ended is not None else _content(folder / "status.json") or b"")
        digest.update(_content(folder / "evaluations.jsonl") or b"")
        if metrics.is_file():
            digest.update(str(metrics.stat().st_size).encode())
    return digest.hexdigest()[:16]


def _content(path: Path) -> bytes | None:
    try:
        return read_bytes(path)
    except OSError as error:  # not to be read is a state, too, and may end
        return str(error.errno).encode()
