"""What a run tells while it trains: lines in train.log, a bar on a terminal, a heartbeat, live loggers.

`Loggers` passes the rows of metrics.jsonl on to other people's tools: `train.loggers: [tensorboard]`. A
logger is a class with `log` and `close` in the table `LOGGERS`. It runs in a thread of its own behind a
queue: one that fails is switched off with a line in train.log, one that hangs loses rows, and neither
touches the run.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sdtps.errors import ClaimLost
from sdtps.run.folder import HEARTBEAT_SECONDS, RunFolder, RunState, now

TELL_SECONDS = 30.0  # between two lines about one evaluation
QUEUED_ROWS = 1000  # that wait for a slow logger; later ones are dropped
CLOSE_SECONDS = 10.0  # that the end of a run waits for all loggers together
_NOT_A_CURVE = frozenset({"attempt", "epoch", "step", "time"})


class Reporter:
    """train.log, the terminal and status.json of one attempt. Silent when `writes` is false (rank > 0).

    A thread renews the heartbeat, so that an evaluation of several minutes does not look like a lost
    run; `stepped` in status.json says when the last step ended, so that a hang does.
    """

    def __init__(self, folder: RunFolder, attempt: int, *, total: int, writes: bool = True) -> None:
        self.folder = folder
        self.attempt = attempt
        self.total = total
        self.writes = writes
        self._begun = time.monotonic()
        self._first_step: int | None = None
        self._fields: dict[str, Any] = {"epoch": 0, "step": 0, "progress": 0.0}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._progress: Progress | None = None
        self._evaluation_told: float | None = None  # when this evaluation last said how far it is

    def __enter__(self) -> Self:
        if not self.writes:
            return self
        self._write("running")
        self._thread.start()
        if sys.stdout.isatty():
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[loss]}"),
                console=Console(),
            )
            self._bar = self._progress.add_task(self.folder.path.name, total=self.total, loss="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.writes:
            return
        self._ended.set()
        self._thread.join()
        if self._progress is not None:
            self._progress.stop()

    def line(self, text: str) -> None:
        """One timed line in train.log and on standard output."""
        if not self.writes:
            return
        stamped = f"{now()} {text}"
        with self.folder.log_file.open("a", encoding="utf-8") as stream:
            stream.write(stamped + "\n")
        if self._progress is not None:
            self._progress.console.print(stamped, markup=False, highlight=False)
        else:
            print(stamped, flush=True)

    def stepped(self, epoch: int, step: int, loss: float | None = None) -> None:
        """Record that `step` is done; cheap, the heartbeat writes it."""
        if not self.writes:
            return
        if self._first_step is None:
            self._first_step = step - 1
        elapsed = time.monotonic() - self._begun
        done = step - self._first_step
        with self._lock:
            self._fields = {
                "epoch": epoch,
                "step": step,
                "progress": step / self.total,
                "eta_s": round(elapsed / done * (self.total - step), 1),
                "stepped": time.time(),
            }
        if self._progress is not None:
            self._progress.update(self._bar, completed=step)
            if loss is not None:
                self._progress.update(self._bar, loss=f"loss {loss:.3f}")

    def evaluating(self, done: int, total: int) -> None:
        """Record how far an evaluation has come; every half minute also a line in train.log."""
        if not self.writes:
            return
        with self._lock:
            self._fields = {**self._fields, "evaluated": round(done / total, 4)}
        if done == total:
            self._evaluation_told = None
            return
        if self._evaluation_told is None:
            self._evaluation_told = time.monotonic()
        if time.monotonic() - self._evaluation_told >= TELL_SECONDS:
            self._evaluation_told = time.monotonic()
            self.line(f"evaluating: {100 * done / total:.0f} %")

    def finish(self, state: RunState, **fields: Any) -> None:
        """The attempt's last status; the heartbeat stops first, so nothing overwrites it."""
        if not self.writes:
            return
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._write(state, **fields)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            try:
                self._write("running")
            except ClaimLost:  # the run's next own write says so
                return

    def _write(self, state: RunState, **fields: Any) -> None:
        with self._lock:
            merged = {**self._fields, **fields}
        self.folder.write_status(state, attempt=self.attempt, **merged)


class Logger(Protocol):
    """What a tool must do. Made in its own thread, so that a slow import costs no step."""

    def log(self, row: Mapping[str, Any]) -> None:
        """One row of metrics.jsonl."""

    def close(self) -> None:
        """Write what is left."""


class TensorBoard:
    """Event files in the run's folder tensorboard/; `train/loss`, `eval/mAP`, ... by step.

    Raises:
        ImportError: the package tensorboard is not installed.
    """

    def __init__(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder.path / "tensorboard"), flush_secs=10)  # type: ignore[no-untyped-call]

    def log(self, row: Mapping[str, Any]) -> None:
        for name, value in curves(row).items():
            self.writer.add_scalar(name, value, row["step"], walltime=row.get("time"))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.writer.close()  # type: ignore[no-untyped-call]


LOGGERS: dict[str, Callable[[RunFolder], Logger]] = {"tensorboard": TensorBoard}


def curves(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a train or eval row by KIND/NAME; nothing of an event."""
    if row.get("kind") not in ("train", "eval"):
        return {}
    return {
        f"{row['kind']}/{name}": float(value)
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in _NOT_A_CURVE and math.isfinite(value)
    }


class Loggers:
    """All loggers of a run, each in its thread."""

    def __init__(self, names: Iterable[str], folder: RunFolder, say: Callable[[str], None]) -> None:
        self._threads = [_Thread(name, folder, say) for name in names]

    def log(self, row: Mapping[str, Any]) -> None:
        for thread in self._threads:
            thread.put(dict(row))

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """End all of them; what one has not written after `seconds` is lost."""
        for thread in self._threads:
            thread.put(None)
        for thread in self._threads:
            thread.join(seconds / len(self._threads))


class _Thread(threading.Thread):
    def __init__(self, name: str, folder: RunFolder, say: Callable[[str], None]) -> None:
        super().__init__(name=f"logger {name}", daemon=True)
        self._made, self._folder, self._say = name, folder, say
        self._rows: queue.Queue[dict[str, Any] | None] = queue.Queue(QUEUED_ROWS)
        self._dropped = False
        self.start()

    def put(self, row: dict[str, Any] | None) -> None:
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            if not self._dropped:
                self._say(f"logger {self._made}: is too slow; rows are left out")
            self._dropped = True

    def run(self) -> None:
        try:
            logger = LOGGERS[self._made](self._folder)
            while (row := self._rows.get()) is not None:
                logger.log(row)
            logger.close()
        except Exception as error:  # whatever a tool raises, the run goes on
            self._say(f"logger {self._made}: switched off: {type(error).__name__}: {error}")
