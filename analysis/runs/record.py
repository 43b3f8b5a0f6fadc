"""One run folder as one row of the table of runs."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.runs import metrics as metricrows
from analysis.runs.metrics import MetricRows
from sdtps.errors import counted
from sdtps.files import read_bytes
from sdtps.run.folder import HEARTBEAT_SECONDS, RunFolder

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
    "dataset",
    "data",
    "weights",
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


def record_of(source: Source, rows: MetricRows, now: float, runs_dir: Path) -> dict[str, Any]:
    """`RUN_COLUMNS` of one run, and `best/METRIC` and `final/METRIC` where it is completed."""
    folder = source.folder
    state, status = state_of(folder, now)
    run, unread = run_of(folder)
    code, environment, data = (mapping(run.get(k)) for k in ("code", "environment", "data"))
    facts = mapping(mapping(run.get("imported")).get("facts"))
    notes: list[str] = [] if unread is None else [unread]
    result = (folder.result() if state == "completed" else None) or {}
    best, final = result.get("best") or {}, result.get("final") or {}
    if result:  # conditions that were scored after training
        best, final = {**folder.evaluated("best"), **best}, {**folder.evaluated("last"), **final}
    origin = mapping(result.get("origin"))
    codes = [c for c in _listed(origin.get("code")) or [code.get("digest")] if isinstance(c, str) and c]
    attempts = [a for a in run.get("attempts") or () if isinstance(a, dict)]
    if rows.torn:
        notes.append(f"{counted(rows.torn, 'unreadable line')} in metrics.jsonl")
    odd = odd_files(folder)
    notes += [f"{name} is no file" for name in odd]
    if rows.unread is not None:
        notes.append(f"metrics.jsonl cannot be read: {rows.unread}")
    elif state == "completed" and not rows.torn and not rows.blocks and "metrics.jsonl" not in odd:
        notes.append("metrics.jsonl is missing or empty: no curves")
    if rows.blocks and state != "missing" and not run and unread is None and "run.json" not in odd:
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
        "code": codes[-1] if codes else None,
        "codes": codes,
        "dataset": _word(data.get("name")) or _word(facts.get("dataset")),
        "data": _word(origin["data"] if "data" in origin else data.get("fingerprint")),
        "weights": _weights(origin["weights"] if "weights" in origin else run.get("weights")),
        "commit": code.get("commit"),
        "dirty": bool(code.get("dirty")),
        "attempt": count(result.get("attempt", status.get("attempt"))),
        "attempts": len(attempts) or None,
        "epoch": count(status.get("epoch")),
        "step": count(status.get("step")),
        "reason": status.get("reason"),
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
        "torn_lines": rows.torn,
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
    for name in (*texts, "code", "commit", "dataset", "data", "reason", "selected_on", "gpu", "host"):
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


# -- what became of it, told from its folder alone -------------------------------------------------

# A run that said `running` and has been silent for this long was interrupted: ten missed heartbeats.
SILENT_SECONDS = 10 * HEARTBEAT_SECONDS
# States, from best to worst. `interrupted` = it began, stopped without an end of its own, and waits for
# a submission; `requeued` = it stopped with a checkpoint, and its job is to go on; `queued` = claimed
# and not started; `missing` = no trace of it.
STATES = (
    "completed",
    "diverged",
    "failed",
    "cancelled",
    "interrupted",
    "requeued",
    "running",
    "queued",
    "missing",
)
UNFINISHED = frozenset({"interrupted", "requeued", "running", "queued", "missing"})


def state_of(folder: RunFolder, now: float) -> tuple[str, dict[str, Any]]:
    """The state word of a run folder and its status row, from the folder alone.

    A file that decides and may not be read makes the run failed, with the file's name as the reason.
    """
    try:
        return _state_of(folder, now)
    except OSError as error:
        return "failed", {"reason": cannot_be_read(error, folder)}


def cannot_be_read(error: OSError, folder: RunFolder) -> str:
    """What a run's record says of such an error: the file's name and why."""
    return f"{Path(error.filename or folder.path).name} cannot be read: {error.strerror}"


def odd_files(folder: RunFolder) -> list[str]:
    """Names of a run's files under which something else lies: a folder, a FIFO, a link to nothing."""
    files = (
        *(folder.config_file, folder.run_file, folder.claim_file, folder.status_file),
        *(folder.result_file, folder.metrics_file, folder.checkpoint_file, folder.log_file),
    )
    known = {file.name for file in files}
    try:
        with os.scandir(folder.path) as entries:
            return sorted(e.name for e in entries if e.name in known and not _is_file(e))
    except OSError:  # `state_of` tells of a folder that cannot be looked into
        return []


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link round in a circle
        return False


def run_of(folder: RunFolder) -> tuple[dict[str, Any], str | None]:
    """run.json, and why it cannot be read where there is one that may not be."""
    try:
        return folder.run(), None
    except OSError as error:
        return {}, cannot_be_read(error, folder)


def _state_of(folder: RunFolder, now: float) -> tuple[str, dict[str, Any]]:
    try:
        with os.scandir(folder.path) as entries:
            names = {entry.name for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return "missing", {}
    claimed = folder.claim_file.name in names
    if folder.result_file.name in names:
        if folder.result() is None:
            return "failed", {**(folder.status() or {}), "reason": "result.json cannot be read"}
        return "completed", _status_beside_a_result(folder)
    if folder.status_file.name not in names:
        return ("queued" if claimed else "missing"), {}
    status = folder.status()
    if status is None:
        return "interrupted", {"reason": "status.json cannot be read"}
    state = status.get("state")
    silent = now - (amount(status.get("heartbeat")) or 0.0) > SILENT_SECONDS
    if (state == "running" and silent) or (state == "requeued" and silent and not claimed):
        return "interrupted", status
    if state == "completed":  # it said so and left no result: it was stopped in between
        return "interrupted", status
    if state:
        return str(state), status
    return ("queued" if claimed else "missing"), status


def _status_beside_a_result(folder: RunFolder) -> dict[str, Any]:
    """Only result.json decides; where status.json cannot be read, nothing else is known."""
    try:
        return folder.status() or {}
    except OSError:
        return {}


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
    """Digest of results, of how unfinished runs ended, and of the length of their logs."""
    digest = hashlib.sha256()
    for folder in sorted(study_folder.glob("*/seed*")):
        digest.update(folder.name.encode())
        metrics = folder / "metrics.jsonl"
        ended = _content(folder / "result.json")
        digest.update(ended if ended is not None else _content(folder / "status.json") or b"")
        if metrics.is_file():
            digest.update(str(metrics.stat().st_size).encode())
    return digest.hexdigest()[:16]


def _content(path: Path) -> bytes | None:
    try:
        return read_bytes(path)
    except OSError as error:  # not to be read is a state, too, and may end
        return str(error.errno).encode()
