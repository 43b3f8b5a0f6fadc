"""What became of a run, told from its folder alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from analysis.runs.untrusted import amount
from sdtps.run.folder import HEARTBEAT_SECONDS, RunFolder

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
