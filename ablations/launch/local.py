"""The local executor: a queue of k slots on this machine, each with GPUs and CPU threads of its own.

submitit starts and times each run; it has no queue and gives every job the same GPU, so both are here.
The queue ends when its runs have ended. Ctrl-C lets those that run write a checkpoint and gives the
others back.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ablations.launch.queue_item import QueueItem
from ablations.launch.queue_progress import QueueProgress
from ablations.slurm import script as batch
from ablations.store import attempts as records
from ablations.store import claims
from ablations.store.submissions import Submission
from ablations.study.schema import Resources
from sdtps.run.folder import RunFolder

if TYPE_CHECKING:
    from submitit.local.local import LocalJob

POLL_SECONDS = 0.1
KILLED = 137  # as the shell has SIGKILL


@dataclass
class _Slot:
    """What a running run holds."""

    gpus: tuple[str, ...]
    item: QueueItem | None = None
    job: LocalJob[object] | None = None
    started: float = 0.0


@dataclass
class _Stop:
    """How often the user has asked for the queue to end: once kindly, twice at once."""

    asked: int = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if (given := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [g.strip() for g in given.split(",") if g.strip() and g.strip() != "-1"]
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(k) for k in range(len(re.findall(r"^GPU \d+", done.stdout, re.MULTILINE)))]


def cpu_count() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def default_slots(resources: Resources, gpus: Sequence[str]) -> int:
    """Runs at once: as many as the GPUs hold, or where no GPU is asked for or here, the CPUs."""
    if resources.gpu_count and gpus:
        return max(1, len(gpus) // resources.gpu_count) * resources.runs_per_gpu
    return max(1, cpu_count() // resources.cpus)


def run_queue(
    submission: Submission,
    items: Sequence[QueueItem],
    resources: Resources,
    snapshot: Path,
    *,
    slots: int | None = None,
    max_requeues: int = 10,
) -> dict[Path, str]:
    """Work through `items`; returns how each ended.

    That is completed, diverged, failed, cancelled (by somebody else) or interrupted (by Ctrl-C).
    """
    gpus = visible_gpus() if resources.gpu_count else []
    count = min(slots or default_slots(resources, gpus), len(items))
    if resources.max_parallel and slots is None:
        count = min(count, resources.max_parallel)
    each = resources.gpu_count if gpus else 0
    # More slots than GPUs share them in turn: asked for explicitly, by --slots.
    places = [
        _Slot(tuple(gpus[(n * each + k) % len(gpus)] for k in range(each)) if each else ())
        for n in range(max(1, count))
    ]
    threads = max(1, cpu_count() // len(places))
    waiting = deque(items)
    outcomes: dict[Path, str] = {}
    with _stop_on_signals() as stop, QueueProgress(len(items), len(places)) as progress:
        told = 0
        while True:
            for slot in places:
                if slot.item is not None and not _running(slot):
                    again = _finish(submission, slot, resources, max_requeues, stop.asked > 0)
                    if again is not None:
                        waiting.append(again)
                    else:
                        outcomes[slot.item.folder] = _outcome(submission, slot.item.folder)
                        progress.ended(slot.item, outcomes[slot.item.folder])
                    slot.item = slot.job = None
                while slot.item is None and waiting and not stop.asked:
                    item = waiting.popleft()
                    if not _wanted(submission, item.folder):
                        outcomes[item.folder] = "cancelled"
                        progress.ended(item, "cancelled")
                        continue
                    slot.item = item
                    progress.started(slot.item)
                    slot.started = time.monotonic()
                    slot.job = _start(submission, slot, resources, snapshot, threads)
            active = [slot for slot in places if slot.item is not None]
            if not active and (stop.asked or not waiting):
                break
            if stop.asked > told:
                told = stop.asked
                progress.stopping(len(active), at_once=told > 1)
                for slot in active:
                    _signal(slot, signal.SIGTERM if told == 1 else signal.SIGKILL)
            progress.show([slot.item for slot in active if slot.item])
            time.sleep(POLL_SECONDS)
        for item in waiting:
            outcomes[item.folder] = "interrupted"
    _give_back(submission, outcomes)
    if stop.asked:
        raise KeyboardInterrupt
    return outcomes


def _start(
    submission: Submission, slot: _Slot, resources: Resources, snapshot: Path, threads: int
) -> LocalJob[object]:
    from submitit import LocalExecutor

    assert slot.item is not None
    tasks = batch.tasks_per_node(resources) if slot.gpus else 1
    executor = LocalExecutor(folder=RunFolder(slot.item.folder).submitit_folder)
    executor.update_parameters(
        timeout_min=resources.timeout_min,
        signal_delay_s=batch.signal_delay(resources.timeout_min),
        tasks_per_node=tasks,
        stderr_to_stdout=True,
    )
    python = shlex.quote(resources.python or sys.executable)
    jobs = shlex.quote(str(submission.folder))
    variables = {
        "PYTHONPATH": os.pathsep.join(p for p in (str(snapshot), os.environ.get("PYTHONPATH")) if p),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(max(1, threads // tasks)),
        "SDTPS_SNAPSHOT": str(snapshot),
        "SDTPS_SLOT_GPUS": ",".join(slot.gpus),
        "SDTPS_RESTART": str(slot.item.restart),
    }
    with _environment(variables), _no_keyboard_interrupt():
        command = f"{python} -P -u -m ablations.slurm.worker {jobs} {slot.item.index}"
        job: LocalJob[object] = executor._submit_command(command)
    return job


def _running(slot: _Slot) -> bool:
    process = slot.job._process if slot.job else None
    return process is not None and process.poll() is None


def _signal(slot: _Slot, number: signal.Signals) -> None:
    """To the run's process by way of its controller; SIGKILL to both, as nothing passes it on."""
    assert slot.job is not None and slot.job._process is not None and slot.item is not None
    slot.job._process.send_signal(number)
    if number == signal.SIGKILL:
        claim = claims.read(slot.item.folder)
        start = records.read(slot.item.folder, claim.submission).last_start if claim else None
        if start is not None and start.process.alive():
            os.kill(start.process.pid, signal.SIGKILL)


def _finish(
    submission: Submission, slot: _Slot, resources: Resources, max_requeues: int, stopping: bool
) -> QueueItem | None:
    """Write down an end that the run could not; returns the item where it is to be started again."""
    item = slot.item
    assert item is not None and slot.job is not None
    name = submission.name
    attempts = records.read(item.folder, name)
    start = attempts.last_start
    if start is None or start.restart < item.restart:  # dead before the worker began
        records.write_start(item.folder, name, slot.job.job_id, item.restart)
        records.write_end(item.folder, name, slot.job.job_id, item.restart, 127, terminated=False)
        return None
    end = attempts.last_end
    if end is None:
        late = time.monotonic() - slot.started > resources.timeout_min * 60 - 1
        code = records.TIMED_OUT if late else KILLED
        records.write_end(item.folder, name, start.job, start.restart, code, terminated=stopping)
        return None
    if end.code == records.INTERRUPTED and not stopping and _wanted(submission, item.folder):
        return QueueItem(item.index, item.folder, item.name, item.restart + 1)
    return None


def _wanted(submission: Submission, folder: Path) -> bool:
    """The run still is ours, and nobody has cancelled it."""
    claim = claims.read(folder)
    return claim is not None and claim.submission == submission.name and not claim.cancelled


def _outcome(submission: Submission, folder: Path) -> str:
    files = RunFolder(folder)
    if files.result() is not None:
        return "completed"
    if (files.status() or {}).get("state") == "diverged":
        return "diverged"
    if not _wanted(submission, folder):
        return "cancelled"
    end = records.read(folder, submission.name).last_end
    return "interrupted" if end is None or end.code == records.INTERRUPTED else "failed"


def _give_back(submission: Submission, outcomes: dict[Path, str]) -> None:
    """Runs that did not come to an end are nobody's again."""
    for folder, outcome in outcomes.items():
        if outcome != "interrupted":
            continue
        claim = claims.read(folder)
        if claim is not None and claim.submission == submission.name and not claim.cancelled:
            claims.release(folder, claim)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """`variables` in this process's environment, which submitit passes on, while it starts a job."""
    earlier = {key: os.environ.get(key) for key in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for key, value in earlier.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextmanager
def _no_keyboard_interrupt() -> Iterator[None]:
    """Processes started here do not see the terminal's Ctrl-C: the queue tells them what to do."""
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)


@contextmanager
def _stop_on_signals() -> Iterator[_Stop]:
    stop = _Stop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    earlier = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
