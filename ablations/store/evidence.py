"""What ended a job, told from its output and its exit code. Schedulers say it in many ways."""

from __future__ import annotations

import re
from pathlib import Path

from ablations.slurm.commands import JobInfo
from ablations.store import attempts as records
from ablations.store.attempts import End
from sdtps.files import read_bytes

TAIL_BYTES = 16_384

# In the order in which they are looked for: a job that is cancelled for its time limit says both.
_WORDS = (
    ("timeout", r"DUE TO TIME LIMIT|CANCELLED.*TIME ?LIMIT"),
    ("preempted", r"DUE TO PREEMPTION"),
    ("node", r"DUE TO NODE FAILURE|NODE_FAIL|Node failure"),
    (
        "oom",
        r"oom[-_ ]kill|Out Of Memory|out[- ]of[- ]memory handler|"
        r"Exceeded (job|step) memory limit|exceeded memory limit|CUDA out of memory|MemoryError",
    ),
    ("requeue", r"DUE TO JOB REQUEUE"),
    ("cancelled", r"\*\*\* (JOB|STEP) \S+ ON \S+ CANCELLED|scancel"),
)

_SCHEDULER = {
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "oom",
    "NODE_FAIL": "node",
    "BOOT_FAIL": "node",
    "LAUNCH_FAILED": "node",
    "RECONFIG_FAIL": "node",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
}


def tail(file: Path | None, lines: int = 20) -> str:
    """The last lines of a log, without what a progress bar overwrote."""
    if file is None:
        return ""
    try:
        text = (read_bytes(file, last=TAIL_BYTES) or b"").decode(errors="replace")
    except OSError:
        return ""
    kept = [line.rpartition("\r")[2].rstrip() for line in text.replace("\r\n", "\n").splitlines()]
    return "\n".join([line for line in kept if line][-lines:])


def from_log(text: str) -> str | None:
    """timeout, preempted, node, oom, requeue or cancelled, where the output says so."""
    for word, pattern in _WORDS:
        if re.search(pattern, text, re.IGNORECASE if word in ("oom", "node") else 0):
            return word
    return None


def from_scheduler(job: JobInfo) -> str | None:
    """The same from the scheduler's state; None where it only says that the job ended."""
    return _SCHEDULER.get(job.state)


def from_code(end: End) -> tuple[str, str]:
    """(kind, what happened) from the shell's exit code of an ended job."""
    code = end.code
    if code == 0:
        return "lost", "the job ended without an error, but wrote no result"
    if code == records.GAVE_UP:
        return (
            "timeout",
            "stopped at its time limit, and requeued as often as resources.max_requeues allows",
        )
    if code == records.TIMED_OUT:
        return "timeout", "ran into its time limit"
    if code == records.SETUP_FAILED:
        return "start", "a line of resources.setup failed"
    if code == records.NOT_OURS:
        return "lost", "another submission had claimed the run when the job began"
    if code in (126, 127):
        return "start", f"the interpreter could not be started (exit {code})"
    if code > 128:
        return "killed", f"killed by signal {code - 128} ({_signal_name(code - 128)})"
    return "exit", f"exit code {code}"


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
