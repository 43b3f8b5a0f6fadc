"""Other people's logs as clean numbered lines, whatever wrote them.

Reads a byte-order mark, UTF-8, UTF-16 and Latin-1 mixed line by line, CRLF, progress bars that
overwrite themselves with a bare carriage return, and terminal colours.
"""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from analysis.importers.names import Metric, direction_of
from analysis.importers.run import ImportedRun, LogError, RunBuilder

# CSI sequences (colours, cursor), OSC sequences (window titles), and the two-byte escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_BACKSPACES = re.compile(r"[^\b]\b")


@dataclass(frozen=True)
class Line:
    """One printed line: its 1-based number in the file, and its text without colours."""

    number: int
    text: str


def clean(text: str) -> str:
    """`text` without terminal escapes, overstrikes and NUL bytes."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    while "\b" in text:
        shorter = _BACKSPACES.sub("", text)
        if shorter == text:
            shorter = text.replace("\b", "")
        text = shorter
    return text.replace("\x00", "")


def decode(content: bytes) -> str:
    """A whole file as text: UTF-16 where it says so, else each line on its own."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace")
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return "\n".join(_decode_line(line) for line in content.split(b"\n"))


def _decode_line(raw: bytes) -> str:
    """UTF-8, or where a line is not UTF-8 the encoding of Western Windows consoles."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace")


def split_lines(text: str) -> Iterator[str]:
    """The lines of `text` one by one, each with its line end. A list would double the memory."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


def lines(content: bytes) -> Iterator[Line]:
    """Every non-empty line; what a carriage return overwrote comes as a line of its own."""
    for number, text in enumerate(split_lines(decode(content)), start=1):
        for part in text.split("\r"):
            cleaned = clean(part).rstrip()
            if cleaned:
                yield Line(number, cleaned)


class LogReader(ABC):
    """A log with a grammar of its own: takes each line of one file, then hands over the run."""

    format_name: ClassVar[str]
    split = "test"  # that the program evaluates on; --split says otherwise

    def __init__(self, path: Path, content: bytes, restarts: bool = False) -> None:
        self.path = path
        self.builder = RunBuilder(path, content, self.format_name, restarts=restarts)
        self.builder.describe = self.describe
        self.builder.epochs = 0
        self.config: dict[str, str] = {}
        self.only_evaluates = False  # the log of a trained model's evaluation

    @classmethod
    def read(
        cls, path: Path, content: bytes, restarts: bool = False, split: str | None = None
    ) -> list[ImportedRun]:
        """The run of one log file.

        Raises:
            LogError: nothing could be read, no training in it, or a restart that nothing announces.
        """
        reader = cls(path, content, restarts)
        for line in lines(content):
            reader.feed(line)
        if split:
            reader.split = split
        run = reader.finish()
        if reader.only_evaluates and not any(row["kind"] == "train" for row in run.rows):
            raise LogError(f"{path}: evaluates a trained model; no training in it, so it is no run")
        if not run.rows and not run.config and run.state != "failed":
            raise LogError(f"{path}: looks like a {cls.format_name} log, but holds no training line")
        return [run]

    def describe(self, name: str) -> Metric:
        """What an evaluated metric is. These programs print per cents, read as fractions."""
        return Metric(name, self.split, direction_of(name) or "none", "percent")

    @abstractmethod
    def feed(self, line: Line) -> None:
        """Take one line."""

    @abstractmethod
    def finish(self) -> ImportedRun:
        """The run, after the last line."""
