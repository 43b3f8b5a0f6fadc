"""Local runs: a queue that works through a submission on this machine, k runs at once.

The queue is a process of its own, so that it runs the frozen code with the study's interpreter. It
imports once what the runs need, and then forks for each run: importing torch and this project takes
seconds of a core, and so does a run of the quick study. A fork is a process of its own: it is killed,
and ends, alone. The imports are not shared where runs use GPUs, because CUDA does not survive a fork.

Each slot has GPUs and CPU threads of its own. Ctrl-C lets runs write a checkpoint and gives the others
back; twice kills. A queue whose executor (in `ablations.launch.dispatch`) is gone starts nothing more,
and keeps the time limits of what runs. The executor is elsewhere because submitit is slow to import.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ablations.launch import worker
from ablations.slurm import endings, options
from ablations.store import attempts as records
from ablations.store import locks, snapshot
from ablations.store.attempts import KILLED
from ablations.store.states import CANARIES
from ablations.store.submissions import Submission
from ablations.study.schema import Resources
from sdtps.config.load import tuples
from sdtps.run.folder import HEARTBEAT_SECONDS, RunFolder
from sdtps.system.commandline import on_signals
from sdtps.system.errors import counted
from sdtps.system.files import share

POLL_SECONDS = 0.05
BUSY_MIB = 1024  # a GPU with more memory in use is somebody else's
SHOW_SECONDS = 1.0
LINE_SECONDS = 30.0  # between lines about running runs, where there is no terminal
STOPPED = 130  # exit code of a queue that was asked to end
_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OF_RUNS = (*_STOP, signal.SIGUSR2)  # a fork hears them as any process does


def run_queue(submission: Submission, resources: Resources, slots: int | None) -> dict[Path, str]:
    """Work through a submission's runs in a process of its own; returns how each ended.

    That is completed, diverged, passed (a canary), failed, cancelled (by somebody else) or interrupted.

    Raises:
        KeyboardInterrupt: a signal stopped it; the runs that had not ended are given back.
    """
    words = [*options.interpreter(resources), "-P", "-u", "-m", __name__]
    frozen = submission.study_folder.parent / snapshot.CODE / submission.intent["snapshot"]
    paths = (str(frozen), os.environ.get("PYTHONPATH"))
    variables = {
        **os.environ,
        **resources.environment,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        "SDTPS_SNAPSHOT": str(frozen),
        # The shell's word counts most, then the study's, then the slots'.
        **{name: value for name, value in os.environ.items() if name == "OMP_NUM_THREADS"},
    }
    received: list[int] = []
    queue: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if queue is not None:
            queue.send_signal(signal.SIGTERM)

    with on_signals(_STOP, pass_on):
        try:
            # A terminal's Ctrl-C reaches this process only, which says once what is to be done.
            queue = subprocess.Popen(
                [*words, str(submission.folder), str(slots or 0)],
                env=variables,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            print(f"{words[0]}: {error.strerror or error}", file=sys.stderr)
        else:
            if received:
                queue.send_signal(signal.SIGTERM)
            queue.wait()
    outcomes = {}
    for key in submission.runs:
        folder = submission.study_folder / key
        _write_missing_end(submission, folder, stopped=bool(received))
        outcomes[folder] = how = _outcome(submission, folder)
        lock = locks.read(folder)
        if how == "interrupted" and lock is not None and locks.holds(folder, submission.name):
            locks.release(folder, lock)
    if received:
        raise KeyboardInterrupt
    return outcomes


def _write_missing_end(submission: Submission, folder: Path, *, stopped: bool) -> None:
    """The queue itself died or never came up: write down the ends that it could not."""
    if not locks.holds(folder, submission.name):
        return
    found = records.read(folder, submission.name)
    start, end = found.last_start, found.last_end
    if start is None and not stopped:
        records.write_start(folder, submission.name, str(os.getpid()), 0)
        records.write_end(folder, submission.name, str(os.getpid()), 0, 127, terminated=False)
    elif start is not None and end is None and not start.process.alive():
        records.write_end(folder, submission.name, start.job, start.restart, KILLED, terminated=stopped)


def _outcome(submission: Submission, folder: Path) -> str:
    files = RunFolder(folder)
    if files.result() is not None:
        return "completed"
    if (files.status() or {}).get("state") == "diverged":
        return "diverged"
    if not locks.holds(folder, submission.name):
        return "cancelled"
    end = records.read(folder, submission.name).last_end
    if end is None or end.code == endings.INTERRUPTED:
        return "interrupted"
    return "passed" if end.code == 0 and "max_steps" in submission.intent else "failed"


# -- the queue's own process ------------------------------------------------------------------------


@dataclass
class Item:
    """One run of the queue.

    Attributes:
        place: its line in the submission's runs.txt.
        restart: how often it was started again.
    """

    place: int
    folder: Path
    restart: int = 0

    @property
    def name(self) -> str:
        seed = self.folder.name.removeprefix("seed").partition("-")[0]
        what = "canary of " if self.folder.parents[2].name == CANARIES else ""
        return f"{what}{self.folder.parent.name} seed {seed}"


@dataclass
class Slot:
    """What a running run holds.

    Attributes:
        processes: one for each task; none is reaped between two looks, so that each id is its own.
    """

    gpus: tuple[str, ...]
    item: Item | None = None
    processes: list[int] = field(default_factory=list)
    job: str = ""
    started: float = 0.0
    warned: bool = False

    def signal(self, number: int) -> None:
        for process in self.processes:
            os.kill(process, number)


class Queue:
    """Works through a submission's runs."""

    def __init__(self, submission: Submission, slots: int) -> None:
        self.submission = submission
        self.resources = Resources.model_validate(tuples(submission.resources))
        gpus = visible_gpus() if self.resources.gpu_count else []
        count = min(slots or default_slots(self.resources, gpus), len(submission.runs))
        if self.resources.max_parallel and not slots:
            count = min(count, self.resources.max_parallel)
        each = self.resources.gpu_count if gpus else 0
        # More slots than GPUs share them in turn: asked for explicitly, by --slots.
        self.slots = [
            Slot(tuple(gpus[(n * each + k) % len(gpus)] for k in range(each)) if each else ())
            for n in range(max(1, count))
        ]
        self.tasks = options.tasks_per_node(self.resources) if gpus else 1
        self.waiting = deque(
            Item(place, submission.run(place)) for place in range(len(submission.runs))
        )
        self.stops = 0  # how often it was asked to end: once kindly, twice at once
        self.parent = os.getppid()
        threads = max(1, cpu_count() // len(self.slots) // self.tasks)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a slot's own are given to its runs
        self.imported = bool(gpus)

    @property
    def orphaned(self) -> bool:
        """Its executor is gone: others may take the runs that wait, and ends are theirs to find."""
        return os.getppid() != self.parent

    def work(self) -> int:
        """Until the last run has ended; returns the exit code."""
        progress = QueueProgress(len(self.waiting))
        with on_signals(_STOP, self._stop), progress.live or contextlib.nullcontext():
            heeded, beaten = 0, 0.0
            while True:
                if time.monotonic() - beaten > HEARTBEAT_SECONDS and not self.orphaned:
                    beaten = time.monotonic()
                    with contextlib.suppress(OSError):
                        self.submission.beat()
                for slot in self.slots:
                    self._look(slot, progress)
                    while slot.item is None and self.waiting and not (self.stops or self.orphaned):
                        self._start(slot, self.waiting.popleft(), progress)
                active = [slot.item for slot in self.slots if slot.item]
                if not active and (self.stops or self.orphaned or not self.waiting):
                    return STOPPED if self.stops else 0
                if self.stops > heeded:
                    heeded = self.stops
                    progress.stopping(len(active), at_once=heeded > 1)
                    for slot in self.slots:
                        slot.signal(signal.SIGTERM if heeded == 1 else signal.SIGKILL)
                progress.show(active)
                time.sleep(POLL_SECONDS)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1

    def _start(self, slot: Slot, item: Item, progress: QueueProgress) -> None:
        if not locks.holds(item.folder, self.submission.name):
            progress.ended(item, "cancelled")
            return
        if not self.imported:
            self.imported = True
            self._import_ahead(item.folder)
        slot.item, slot.job, slot.processes = item, "", []
        slot.started, slot.warned = time.monotonic(), False
        for rank in range(self.tasks):
            slot.processes.append(self._fork(slot, rank))
            slot.job = slot.job or str(slot.processes[0])

    def _import_ahead(self, folder: Path) -> None:
        """Import what the runs need, where their entry point's module has a function `prepare`."""
        with contextlib.suppress(Exception):  # the run itself meets it, and says so in its own log
            module = importlib.import_module(self.submission.intent["entry"].partition(":")[0])
            prepare = getattr(module, "prepare", None)
            if prepare is not None:
                prepare(folder)
        gc.collect()
        gc.freeze()  # so that the forks' collector leaves the shared pages alone

    def _look(self, slot: Slot, progress: QueueProgress) -> None:
        """Reap what has ended, and keep the time limit."""
        if slot.item is None:
            return
        slot.processes = [p for p in slot.processes if not os.waitpid(p, os.WNOHANG)[0]]
        took = time.monotonic() - slot.started
        limit = self.resources.timeout_min * 60
        if slot.processes:
            if took > limit:
                slot.signal(signal.SIGKILL)
            elif took > limit - options.signal_delay(self.resources.timeout_min) and not slot.warned:
                slot.warned = True
                slot.signal(signal.SIGUSR2)
            return
        item, slot.item = slot.item, None
        if self.orphaned:
            return
        if self._ends_interrupted(slot, item, late=took > limit - 1):
            self.waiting.append(Item(item.place, item.folder, item.restart + 1))
        else:
            progress.ended(item, _outcome(self.submission, item.folder))

    def _ends_interrupted(self, slot: Slot, item: Item, *, late: bool) -> bool:
        """Write down an end that the run could not; whether the run is to be started again."""
        folder, name = item.folder, self.submission.name
        found = records.read(folder, name)
        start, end = found.last_start, found.last_end
        if start is None or start.restart < item.restart:  # dead before the worker began
            records.write_start(folder, name, slot.job, item.restart)
            records.write_end(folder, name, slot.job, item.restart, 127, terminated=False)
            return False
        if end is None:
            code = endings.TIMED_OUT if late else KILLED
            records.write_end(folder, name, start.job, start.restart, code, terminated=self.stops > 0)
            return False
        return end.code == endings.INTERRUPTED and not self.stops and locks.holds(folder, name)

    def _fork(self, slot: Slot, rank: int) -> int:
        """The process id of a fork that does the run's task `rank`."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _OF_RUNS)
        process = os.fork()
        if process:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_RUNS)
            return process
        code = 1
        try:
            assert slot.item is not None
            for number in _OF_RUNS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_RUNS)
            job = slot.job or str(os.getpid())
            os.environ.update(
                SDTPS_SLOT_GPUS=",".join(slot.gpus),
                SDTPS_RESTART=str(slot.item.restart),
                SUBMITIT_EXECUTOR="local",
                SUBMITIT_LOCAL_JOB_ID=job,
                SUBMITIT_LOCAL_NTASKS=str(self.tasks),
                SUBMITIT_LOCAL_JOB_NUM_NODES="1",
                SUBMITIT_LOCAL_NODEID="0",
                SUBMITIT_LOCAL_GLOBALID=str(rank),
                SUBMITIT_LOCAL_LOCALID=str(rank),
            )
            worker.redirect(worker.early_log(slot.item.folder, job, rank))
            code = worker.main([str(self.submission.folder), str(slot.item.place)])
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


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


# -- what the queue shows ----------------------------------------------------------------------------


class QueueProgress:
    """A line for each event; below them, on a terminal, what runs now; elsewhere that now and then."""

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True)
        self._total, self._done = total, 0
        self._shown = time.monotonic()
        # Without the thread that refreshes it, which would not survive a fork.
        live = Live(console=self._console, auto_refresh=False, transient=True)
        self.live = live if self._console.is_terminal else None

    def ended(self, item: Item, outcome: str) -> None:
        self._done += 1
        self._line(f"[{self._done}/{self._total}] {item.name}: {outcome}")

    def stopping(self, running: int, *, at_once: bool) -> None:
        """The user wants out."""
        if at_once:
            self._line("Killing what still runs.")
        elif running:
            text = f"Stopping {counted(running, 'run')} (our models write a checkpoint first)"
            self._line(f"{text}. Ctrl-C again kills at once.")

    def show(self, running: Sequence[Item]) -> None:
        """Say how far the runs are, seldom enough to cost nothing."""
        if time.monotonic() - self._shown < (SHOW_SECONDS if self.live else LINE_SECONDS):
            return
        self._shown = time.monotonic()
        texts = []
        for item in running:
            status = RunFolder(item.folder).status() or {}
            percent = 100 * float(status.get("progress") or 0.0)
            texts.append(f"  {item.name}: {percent:.0f} %")
        if self.live:
            self.live.update(Text("\n".join(texts)), refresh=True)
        else:
            self._line("\n".join(texts))

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def main() -> int:
    submission = Submission(Path(sys.argv[1]))
    share(submission.folder)
    return Queue(submission, int(sys.argv[2])).work()


if __name__ == "__main__":
    sys.exit(main())
