"""Live logging to other people's tools, beside metrics.jsonl: `train.loggers: [tensorboard]`.

A logger is a class with `log` and `close` in the table `LOGGERS`. It runs in a thread of its own behind
a queue: one that fails is switched off with a line in train.log, one that hangs loses rows, and neither
touches the run.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from sdtps.run.folder import RunFolder

QUEUED_ROWS = 1000  # that wait for a slow logger; later ones are dropped
CLOSE_SECONDS = 10.0  # that the end of a run waits for all loggers together
_NOT_A_CURVE = frozenset({"attempt", "epoch", "step", "time"})


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
