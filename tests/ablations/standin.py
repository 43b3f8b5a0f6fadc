"""What a job runs in tests in place of the trainer: it ends as the run's variant is called.

A job imports it by its bare name: `entry` below names the function, and `path` is put on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from sdtps.run.folder import RunFolder
from sdtps.run.provenance import source_digest

ENTRY = "standin:execute"
FOREVER_S = 2000.0  # longer than any test, and not for ever where one is killed
PATH = str(Path(__file__).resolve().parent)


def execute(path: Path, *, max_steps: int | None = None) -> str:
    """End as the folder's variant says: ok, raise, exit3, killed, memory, sleep, polite, diverge ..."""
    folder = RunFolder(path)
    word = folder.path.parent.name.partition("-")[0]
    if int(os.environ.get("RANK", "0")):
        return ENDINGS[word](folder, 0)
    attempt = len(folder.run().get("attempts", [])) + 1
    folder.update_run(attempts=[*folder.run().get("attempts", []), {"attempt": attempt}])
    folder.write_status("running", attempt=attempt, epoch=attempt, step=attempt, progress=0.5)
    print(f"stand-in {word}, attempt {attempt}", flush=True)
    return ENDINGS[word](folder, attempt)


def _complete(folder: RunFolder, attempt: int) -> str:
    folder.write_status("completed", attempt=attempt, epoch=attempt, progress=1.0)
    folder.write_result({"attempt": attempt, "best": {"mAP": 0.5, "epoch": 1}, "select_metric": "mAP"})
    return "completed"


def _raise(folder: RunFolder, attempt: int) -> str:
    raise ValueError("the loss went to the wrong place")


def _exit(folder: RunFolder, attempt: int) -> str:
    sys.exit(3)


def _kill(folder: RunFolder, attempt: int) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "unreachable"


def _memory(folder: RunFolder, attempt: int) -> str:
    held = [bytearray(os.urandom(1024)) * 4096 for _ in range(150)]  # 600 MiB, touched
    time.sleep(FOREVER_S)
    return f"unreachable {len(held)}"


def _sleep(folder: RunFolder, attempt: int) -> str:
    """Never listens to a signal, as a hang in a C library would not."""
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(FOREVER_S)
    return "unreachable"


def _polite(folder: RunFolder, attempt: int) -> str:
    """Writes a checkpoint when told to stop; the attempt after that completes."""
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda n, _: told.append(n))
    if folder.checkpoint_file.exists():
        return _complete(folder, attempt)
    deadline = time.monotonic() + FOREVER_S
    while not told and time.monotonic() < deadline:
        time.sleep(0.05)
    folder.checkpoint_file.write_text(str(attempt))
    folder.write_status("requeued", attempt=attempt, epoch=attempt)
    return "requeued"


def _twice(folder: RunFolder, attempt: int) -> str:
    """The first attempt never ends by itself, the second completes."""
    return _sleep(folder, attempt) if attempt == 1 else _complete(folder, attempt)


def _show(folder: RunFolder, attempt: int) -> str:
    """Write down what the job was given; the process of rank k > 0 into a file of its own."""
    rank = int(os.environ.get("RANK", "0"))
    shown = {**os.environ, "executable": sys.executable, "affinity": len(os.sched_getaffinity(0))}
    shown["terminal"] = sys.stdout.isatty()
    (folder.path / f"shown{rank or ''}.json").write_text(json.dumps(shown))
    if rank:
        return "completed"
    deadline = time.monotonic() + 300  # the others may start later; none may outlive the run
    others = int(os.environ.get("WORLD_SIZE", "1")) - 1
    while len(list(folder.path.glob("shown?.json"))) < others and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    return _complete(folder, attempt)


def _ledger(folder: RunFolder, attempt: int) -> str:
    """A second's work; its start and its end stand in the ledger, with whether an earlier one lives."""
    ledger = folder.path.parents[2].parent / "ledger.txt"
    run = folder.path.name
    earlier = [line.split() for line in ledger.read_text().splitlines() if f" {run} " in line]
    ended = {words[2] for words in earlier if words[0] == "end"}
    alive = [
        w[2] for w in earlier if w[0] == "start" and w[2] not in ended and Path("/proc", w[2]).exists()
    ]

    def note(what: str) -> None:
        handle = os.open(ledger, os.O_WRONLY | os.O_APPEND)
        os.write(handle, f"{what} {run} {os.getpid()} {time.time():.2f} {' '.join(alive)}\n".encode())
        os.close(handle)

    note("twice" if alive else "start")
    folder.update_run(code={"digest": source_digest()})  # by which an equal run is taken over
    time.sleep(1)
    note("end")
    return _complete(folder, attempt)


def _diverge(folder: RunFolder, attempt: int) -> str:
    folder.write_status("diverged", attempt=attempt, epoch=2, step=17, reason="loss is inf")
    return "diverged"


def _beats(folder: RunFolder, attempt: int) -> str:
    """A trainer that writes all the time, and completes when a file `enough` lies in its folder."""
    for step in range(1, 10_000):
        row = {"kind": "train", "attempt": attempt, "epoch": 1, "step": step, "pid": os.getpid()}
        folder.append_metrics(row)
        folder.write_status("running", attempt=attempt, epoch=1, step=step)
        if (folder.path / "enough").exists():
            return _complete(folder, attempt)
        time.sleep(0.2)
    return "unreachable"


ENDINGS = {
    "ok": _complete,
    "raise": _raise,
    "exit3": _exit,
    "killed": _kill,
    "memory": _memory,
    "sleep": _sleep,
    "polite": _polite,
    "diverge": _diverge,
    "ledger": _ledger,
    "twice": _twice,
    "show": _show,
    "beats": _beats,
}
