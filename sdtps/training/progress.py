"""What a run reports while it trains: lines in train.log and on standard output, a heartbeat."""

from __future__ import annotations

import threading
import time
from typing import Any, Self

from sdtps.run.folder import HEARTBEAT_SECONDS, RunFolder, RunState, now
from sdtps.system.errors import LockLost

SECONDS_BETWEEN_LINES = 30.0  # about one evaluation


class Reporter:
    """train.log, standard output and status.json of one attempt. Silent without `writes` (rank > 0).

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
        # Replaced as a whole: the heartbeat reads it.
        self._fields: dict[str, Any] = {"epoch": 0, "step": 0, "progress": 0.0}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._evaluation_logged = 0.0  # when this evaluation last wrote a line

    def __enter__(self) -> Self:
        if self.writes:
            self._write("running")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def line(self, text: str) -> None:
        """One timed line in train.log and on standard output."""
        if not self.writes:
            return
        stamped = f"{now()} {text}"
        with self.folder.log_file.open("a", encoding="utf-8") as stream:
            stream.write(stamped + "\n")
        print(stamped, flush=True)

    def resumed(self, epoch: int, step: int) -> None:
        """Where this attempt begins; until its first step, status.json shows this."""
        self._fields = {"epoch": epoch, "step": step, "progress": step / self.total}

    def stepped(self, epoch: int, step: int) -> None:
        """Record that `step` is done; cheap, the heartbeat writes it."""
        if self._first_step is None:
            self._first_step = step - 1
        elapsed = time.monotonic() - self._begun
        done = step - self._first_step
        self._fields = {
            "epoch": epoch,
            "step": step,
            "progress": step / self.total,
            "eta_s": round(elapsed / done * (self.total - step), 1),
            "stepped": time.time(),
        }

    def evaluating(self, done: int, total: int) -> None:
        """Record how far an evaluation has come; every half minute also a line in train.log."""
        self._fields = {**self._fields, "evaluated": round(done / total, 4)}
        now_s = time.monotonic()
        if done in (1, total):
            self._evaluation_logged = now_s
        elif now_s - self._evaluation_logged >= SECONDS_BETWEEN_LINES:
            self._evaluation_logged = now_s
            self.line(f"evaluating: {100 * done / total:.0f} %")

    def finish(self, state: RunState, **fields: Any) -> None:
        """The attempt's last status; the heartbeat stops first, so nothing overwrites it."""
        if self.writes:
            self._stop()
            self._write(state, **fields)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            try:
                self._write("running")
            except LockLost:  # the run's next own write says so
                return

    def _write(self, state: RunState, **fields: Any) -> None:
        self.folder.write_status(state, attempt=self.attempt, **{**self._fields, **fields})
