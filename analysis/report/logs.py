"""The end of what a run said: train.log, or the scheduler's newest log where there is none."""

from __future__ import annotations

import os
from pathlib import Path

from analysis.importers.text import clean, decode
from sdtps.runfolder import RunFolder

# In all logs of a report together.
BUDGET = 4_000_000


def tail(folder: RunFolder, most: int) -> str:
    """The last whole lines of a run's log, at most `most` bytes; '' where it has none."""
    path = folder.log_file
    if not path.is_file():
        logs = [p for p in folder.submitit_folder.glob("*.*") if p.suffix in (".err", ".out")]
        logs = [p for p in logs if p.stat().st_size > 0]
        if not logs:
            return ""
        path = max(logs, key=lambda p: (p.stat().st_mtime, p.suffix == ".err", p.name))
    return _tail_of(path, most)


def _tail_of(path: Path, most: int) -> str:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - most))
            content = stream.read()
    except OSError:
        return ""
    if size > most:
        content = content.partition(b"\n")[2] or content
    return clean(decode(content).replace("\r\n", "\n")).strip()
