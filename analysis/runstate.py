"""What became of a run, told from its folder alone."""

from __future__ import annotations

from typing import Any

from analysis.untrusted import amount
from sdtps.runfolder import HEARTBEAT_SECONDS, RunFolder

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


def state_of(folder: RunFolder, now: float) -> tuple[str, dict[str, Any]]:
    """The state word of a run folder and its status row, from the folder alone."""
    status = folder.status() or {}
    if folder.result_file.exists():
        if folder.damaged():
            return "failed", {**status, "reason": "result.json cannot be read"}
        return "completed", status
    state = status.get("state")
    if state == "running" and now - (amount(status.get("heartbeat")) or 0.0) > SILENT_SECONDS:
        return "lost", status
    if state == "completed":  # it said so and left no result: it was stopped in between
        return "lost", status
    if state:
        return str(state), status
    if folder.status_file.exists():
        return "lost", {"reason": "status.json cannot be read"}
    return ("queued" if folder.claim_file.exists() else "missing"), status
