"""What a local queue shows: bars on a terminal, one line an event elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ablations.launch.queue_item import QueueItem
from sdtps.errors import counted
from sdtps.run.folder import RunFolder

SHOW_SECONDS = 1.0
LINE_SECONDS = 30.0  # between lines about running runs, where there is no terminal
_TAIL_BYTES = 4096


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
