"""A log that is read line by line: what the importers of such logs share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from analysis.importers.builder import RunBuilder
from analysis.importers.record import ImportedRun
from analysis.importers.text import Line, lines


class LineReader(ABC):
    """Takes every line of one file in turn, then hands over the run."""

    format_name: ClassVar[str]

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        self.builder = RunBuilder(path, content, self.format_name)
        self.config: dict[str, str] = {}

    @classmethod
    def read(cls, path: Path, content: bytes) -> list[ImportedRun]:
        """The run of one log file."""
        reader = cls(path, content)
        for line in lines(content):
            reader.feed(line)
        return [reader.finish()]

    @abstractmethod
    def feed(self, line: Line) -> None:
        """Take one line."""

    @abstractmethod
    def finish(self) -> ImportedRun:
        """The run, after the last line."""
