"""What ended a job: from its exit code, its output and the scheduler's word.

Nothing here reads a run folder; `ablations.store.states` decides with it.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

from sdtps.system import files

# Exit codes of a job beyond 0 (completed or diverged). job.sh and the worker use them.
INTERRUPTED = 75  # checkpoint written; resumes when it is started again
GAVE_UP = 74  # interrupted at its time limit, and requeued as often as it may
TOO_OFTEN = 76  # started again more often than resources.max_requeues
SETUP_FAILED = 73  # a line of resources.setup
NOT_OURS = 72  # the lock names another submission: nothing was done
TIMED_OUT = 71  # killed at its time limit, on local slots

# Kinds of failure that say nothing about the run: machine, scheduler or submitter went away.
NOT_ITS_FAULT = frozenset({"lost", "node", "killed", "preempted"})
# Signals that a process raises by its own fault; others come from outside.
_CRASHES = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"})

TAIL_BYTES = 16_384

# In the order in which they are looked for: a job cancelled at its time limit says both.
_WORDS = (
    ("disk", r"No space left on device|Disk quota exceeded"),
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
# The same from the scheduler's state; others only say that the job ended.
OF_STATE = {
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
        text = (files.read_bytes(file, last=TAIL_BYTES) or b"").decode(errors="replace")
    except OSError:
        return ""
    kept = [line.rpartition("\r")[2].rstrip() for line in text.replace("\r\n", "\n").splitlines()]
    return "\n".join([line for line in kept if line][-lines:])


def from_log(text: str) -> str | None:
    """disk, timeout, preempted, node, oom, requeue or cancelled, where the output says so."""
    for word, pattern in _WORDS:
        if re.search(pattern, text, re.IGNORECASE if word in ("oom", "node") else 0):
            return word
    return None


def from_code(code: int) -> tuple[str, str]:
    """(kind, what happened) from the shell's exit code of an ended job without a result."""
    known = {
        0: ("exit", "ended with exit code 0 and wrote no result"),
        GAVE_UP: ("timeout", "stopped at its time limit, and resources.max_requeues is used up"),
        TOO_OFTEN: ("requeues", "started again more often than resources.max_requeues allows"),
        TIMED_OUT: ("timeout", "ran into its time limit"),
        SETUP_FAILED: ("start", "a line of resources.setup failed"),
        NOT_OURS: ("lost", "another submission had locked the run when the job began"),
        126: ("start", "the interpreter could not be started (exit 126)"),
        127: ("start", "the interpreter could not be started (exit 127)"),
    }
    if code in known:
        return known[code]
    if code > 128:
        return from_signal(code - 128)
    return "exit", f"exit code {code}"


def from_signal(number: int) -> tuple[str, str]:
    """(kind, what happened) of a process that a signal ended: its own fault, or somebody else's."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown"
    if name in _CRASHES:
        return "crash", f"crashed with signal {number} ({name})"
    return "killed", f"killed by signal {number} ({name})"
