"""The local executor: a queue of k slots on this machine, each with GPUs and CPU threads of its own.

`ablations.launch.processes` starts the runs and keeps their time limits. The queue ends when its runs
have ended. Ctrl-C lets those that run write a checkpoint and gives the others back.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ablations.launch.processes import LocalProcess, Processes
from ablations.slurm import options, verdict
from ablations.store import attempts as records
from ablations.store import claims
from ablations.store.attempts import KILLED
from ablations.store.submissions import Submission
from ablations.study.schema import Resources
from sdtps.run.folder import HEARTBEAT_SECONDS, RunFolder
from sdtps.system.commandline import on_signals
from sdtps.system.errors import counted

POLL_SECONDS = 0.1
BUSY_MIB = 1024  # a GPU with more memory in use is somebody else's
SHOW_SECONDS = 1.0
LINE_SECONDS = 30.0  # between lines about running runs, where there is no terminal
_TAIL_BYTES = 4096


@dataclass
class QueueItem:
    """One run of the queue."""

    index: int
    folder: Path
    name: str
    restart: int = 0


@dataclass
class _Slot:
    """What a running run holds."""

    gpus: tuple[str, ...]
    item: QueueItem | None = None
    job: LocalProcess | None = None
    started: float = 0.0


@dataclass
class _Stop:
    """How often the user has asked for the queue to end: once kindly, twice at once."""

    asked: int = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; else those not in use."""
    if (given := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [g.strip() for g in given.split(",") if g.strip() and g.strip() != "-1"]
    import pynvml

    try:
        pynvml.nvmlInit()
        used = [
            pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(k)).used / 2**20
            for k in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError:  # no driver, no GPU
        return []
    free = [str(k) for k, mib in enumerate(used) if mib < BUSY_MIB]
    return free or [str(k) for k in range(len(used))]


def cpu_count() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def default_slots(resources: Resources, gpus: Sequence[str]) -> int:
    """Runs at once: as many as the GPUs hold, or where no GPU is asked for or here, the CPUs."""
    if gpus and resources.gpu_count:
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
    processes = _processes(submission, places[0], resources, snapshot, threads)
    stop = _Stop()
    with (
        on_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), stop),
        QueueProgress(len(items), len(places)) as progress,
        contextlib.closing(processes),
    ):
        told, beaten = 0, 0.0
        while True:
            if time.monotonic() - beaten > HEARTBEAT_SECONDS:
                beaten = time.monotonic()
                with contextlib.suppress(OSError):
                    submission.beat()
            processes.poll()
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
                    if not claims.holds(item.folder, submission.name):
                        outcomes[item.folder] = "cancelled"
                        progress.ended(item, "cancelled")
                        continue
                    slot.item = item
                    progress.started(slot.item)
                    slot.started = time.monotonic()
                    slot.job = _start(processes, slot, resources)
            active = [slot for slot in places if slot.item is not None]
            if not active and (stop.asked or not waiting):
                break
            if stop.asked > told:
                told = stop.asked
                progress.stopping(len(active), at_once=told > 1)
                for slot in active:
                    assert slot.job is not None
                    slot.job.signal(signal.SIGTERM if told == 1 else signal.SIGKILL)
            progress.show([slot.item for slot in active if slot.item])
            time.sleep(POLL_SECONDS)
        for item in waiting:
            outcomes[item.folder] = "interrupted"
    _give_back(submission, outcomes)
    if stop.asked:
        raise KeyboardInterrupt
    return outcomes


def _processes(
    submission: Submission, slot: _Slot, resources: Resources, snapshot: Path, threads: int
) -> Processes:
    """What starts the runs; the slots do not differ in what it needs to know."""
    variables = {
        **resources.environment,
        "PYTHONPATH": os.pathsep.join(p for p in (str(snapshot), os.environ.get("PYTHONPATH")) if p),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(max(1, threads // _tasks(slot, resources))),
        "CUDA_VISIBLE_DEVICES": "",  # a slot's own are given to its runs
        "SDTPS_SNAPSHOT": str(snapshot),
    }
    return Processes(submission, options.interpreter(resources), variables)


def _tasks(slot: _Slot, resources: Resources) -> int:
    return options.tasks_per_node(resources) if slot.gpus else 1


def _start(processes: Processes, slot: _Slot, resources: Resources) -> LocalProcess:
    assert slot.item is not None
    return processes.start(
        slot.item.index,
        {"SDTPS_SLOT_GPUS": ",".join(slot.gpus), "SDTPS_RESTART": str(slot.item.restart)},
        timeout_s=resources.timeout_min * 60,
        signal_delay_s=options.signal_delay(resources.timeout_min),
        tasks=_tasks(slot, resources),
        shared_imports=not slot.gpus,
    )


def _running(slot: _Slot) -> bool:
    return slot.job is not None and slot.job.running


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
        records.write_start(item.folder, name, slot.job.id, item.restart)
        records.write_end(item.folder, name, slot.job.id, item.restart, 127, terminated=False)
        return None
    end = attempts.last_end
    if end is None:
        late = time.monotonic() - slot.started > resources.timeout_min * 60 - 1
        code = verdict.TIMED_OUT if late else KILLED
        records.write_end(item.folder, name, start.job, start.restart, code, terminated=stopping)
        return None
    if end.code == verdict.INTERRUPTED and not stopping and claims.holds(item.folder, submission.name):
        return QueueItem(item.index, item.folder, item.name, item.restart + 1)
    return None


def _outcome(submission: Submission, folder: Path) -> str:
    files = RunFolder(folder)
    if files.result() is not None:
        return "completed"
    if (files.status() or {}).get("state") == "diverged":
        return "diverged"
    if not claims.holds(folder, submission.name):
        return "cancelled"
    end = records.read(folder, submission.name).last_end
    return "interrupted" if end is None or end.code == verdict.INTERRUPTED else "failed"


def _give_back(submission: Submission, outcomes: dict[Path, str]) -> None:
    """Release the claims of runs that did not end."""
    for folder, outcome in outcomes.items():
        if outcome != "interrupted":
            continue
        claim = claims.read(folder)
        if claim is not None and claim.submission == submission.name and not claim.cancelled:
            claims.release(folder, claim)


# -- what the queue shows: bars on a terminal, one line an event elsewhere ----------------------------


class QueueProgress:
    """A bar for the queue and one for each running run."""

    def __init__(self, total: int, slots: int) -> None:
        self._console = Console(stderr=True)
        self._total = total
        self._done = 0
        self._shown = self._told = time.monotonic()
        self._bars: dict[Path, Any] = {}
        self._progress: Progress | None = None
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                console=self._console,
            )
            self._all = self._progress.add_task(f"{slots} at once", total=total, text="")

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def started(self, item: QueueItem) -> None:
        if self._progress:
            self._bars[item.folder] = self._progress.add_task(
                f"  {item.name}", total=100, text="starts"
            )

    def ended(self, item: QueueItem, outcome: str) -> None:
        self._done += 1
        self._line(f"[{self._done}/{self._total}] {item.name}: {outcome}{_figures(item.folder)}")
        if self._progress and item.folder in self._bars:
            self._progress.remove_task(self._bars.pop(item.folder))
            self._progress.update(self._all, completed=self._done)

    def stopping(self, running: int, *, at_once: bool) -> None:
        """The user wants out."""
        if at_once:
            self._line("Killing what still runs.")
        elif running:
            them = counted(running, "run")
            self._line(f"Stopping after a checkpoint of {them}. Ctrl-C again kills at once.")

    def show(self, running: Sequence[QueueItem]) -> None:
        """Bring the bars up to date, seldom enough to cost nothing."""
        now = time.monotonic()
        if self._progress:
            if now - self._shown < SHOW_SECONDS:
                return
            self._shown = now
            for item in running:
                status = RunFolder(item.folder).status() or {}
                percent = 100 * float(status.get("progress") or 0.0)
                text = f"epoch {status.get('epoch', 0)}{_figures(item.folder)}"
                self._progress.update(self._bars[item.folder], completed=round(percent), text=text)
        elif now - self._told > LINE_SECONDS:
            self._told = now
            for item in running:
                status = RunFolder(item.folder).status() or {}
                percent = 100 * float(status.get("progress") or 0.0)
                self._line(f"  {item.name}: {percent:.0f} %{_figures(item.folder)}")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _figures(folder: Path) -> str:
    """`, loss 0.52` from the newest line of metrics.jsonl that has one."""
    try:
        with RunFolder(folder).metrics_file.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and row.get("kind") == "train":
            loss = row.get("loss")
            return f", loss {loss:.4g}" if isinstance(loss, (int, float)) else ", loss not finite"
    return ""
