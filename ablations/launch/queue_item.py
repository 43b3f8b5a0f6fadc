"""What a local queue holds: one run, and how often it has been started again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class QueueItem:
    """One run of the queue."""

    index: int
    folder: Path
    name: str
    restart: int = 0
