"""The end of what a run said: train.log, or the scheduler's newest log where there is none."""

from __future__ import annotations

from pathlib import Path

from analysis.importers.text import clean, decode
from sdtps.files import read_bytes
from sdtps.run.folder import RunFolder

# In all logs of a report together.
BUDGET = 4_000_000


def tail(folder: RunFolder, most: int) -> str:
    """The last whole lines of a run's log, at most `most` bytes; '' where it has none."""
    if text := _tail_of(folder.log_file, most):
        return text
    logs = [p for p in folder.submitit_folder.glob("*.*") if p.suffix in (".err", ".out", ".log")]
    logs = [p for p in logs if p.is_file() and p.stat().st_size > 0]
    if not logs:
        return ""
    return _tail_of(max(logs, key=lambda p: (p.stat().st_mtime, p.suffix == ".err", p.name)), most)


def _tail_of(path: Path, most: int) -> str:
    try:
        content = read_bytes(path, last=most + 1)
    except OSError:
        content = None
    if content is None:
        return ""
    if len(content) > most:
        content = content[1:].partition(b"\n")[2] or content[1:]
    return clean(decode(content).replace("\r\n", "\n")).strip()
