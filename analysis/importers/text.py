"""Other people's logs as clean numbered lines, whatever wrote them.

Reads a byte-order mark, UTF-8, UTF-16 and Latin-1 mixed line by line, CRLF, progress bars that
overwrite themselves with a bare carriage return, and terminal colours.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from analysis.importers.names import Metric, direction_of
from analysis.importers.run import ImportedRun, LogError, RunBuilder, seed_of

# CSI sequences (colours, cursor), OSC sequences (window titles), and the two-byte escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_BACKSPACES = re.compile(r"[^\b]\b")
_DUMP = re.compile("Running with (full )?config")
_SETTING = re.compile(r"^( *)([A-Z][A-Z_0-9]*): ?(.*)$")
Method = TypeVar("Method", bound=Callable[..., None])


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


def reads(pattern: str) -> Callable[[Method], Method]:
    """Marks a method of a `LogReader`: it gets what the groups of `pattern` find in a line."""

    def marked(method: Method) -> Method:
        method.reads = re.compile(pattern)  # type: ignore[attr-defined]
        return method

    return marked


class LogReader:
    """A log with a grammar of its own: a line goes to the first method whose `reads` fits it.

    A dump of settings, nested as YAML prints them, begins with a record `Running with config:`.
    """

    name: ClassVar[str]
    looks_for: ClassVar[str]  # for people
    recognised: ClassVar[str]  # a pattern that such a log holds
    prefix: ClassVar[re.Pattern[str]] = re.compile("(?!)")  # before a record's text; group `time`
    announced: ClassVar[tuple[str, ...]] = ()  # how records begin: one that no method takes is reported
    split = "test"  # that the program evaluates on; --split says otherwise
    select: ClassVar[str]
    seed_key: ClassVar[str]
    epochs_keys: ClassVar[tuple[str, ...]]  # of settings; the first that is there is the planned length

    def __init__(self, path: Path, content: bytes, restarts: bool = False) -> None:
        self.builder = RunBuilder(path, content, self.name, restarts=restarts)
        self.builder.describe = self.describe
        self.builder.epochs = 0
        self.config: dict[str, str] = {}
        self.facts: dict[str, Any] = {"dataset": ""}
        self.only_evaluates = False  # the log of a trained model's evaluation
        self.line = Line(0, "")
        self.record = Line(0, "")  # the last line with a prefix, without it
        self.time = ""
        self.lengths: dict[int, int] = {}  # epoch -> its steps
        self.sections: list[tuple[int, str]] = []  # of the dump: indentation, name
        self.methods = [m for m in vars(type(self)).values() if hasattr(m, "reads")]

    @classmethod
    def recognises(cls, text: str) -> bool:
        return re.search(cls.recognised, text) is not None

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
        reader.split = split or reader.split
        run = reader.finish()
        if reader.only_evaluates and not any(row["kind"] == "train" for row in run.rows):
            raise LogError(f"{path}: evaluates a trained model; no training in it, so it is no run")
        if not run.rows and not run.config and run.state != "failed":
            raise LogError(f"{path}: looks like a {cls.name} log, but holds no training line")
        return [run]

    def describe(self, name: str) -> Metric:
        """What an evaluated metric is. These programs print per cents, read as fractions."""
        return Metric(name, self.split, direction_of(name) or "none", "percent")

    def feed(self, line: Line) -> None:
        """Take one line."""
        self.line, text = line, line.text
        prefix = self.prefix.match(text)
        if prefix:
            text = text[prefix.end() :].strip()
            self.record = Line(line.number, text)
            self.time, self.sections = prefix.groupdict().get("time", ""), []
        elif _DUMP.match(self.record.text) and (setting := _SETTING.match(text)):
            self._setting(len(setting[1]), setting[2], setting[3])
            return
        self.builder.follow_traceback(line.number, line.text, bool(prefix))
        try:
            for method in self.methods:
                if match := method.reads.search(text):
                    method(self, *match.groups())
                    return
        except ValueError as error:
            self.builder.cannot_read(line.number, line.text, str(error))
            return
        if text.lstrip().startswith(self.announced):
            self.builder.cannot_read(line.number, line.text, "a record that is torn or altered")

    def _setting(self, indent: int, key: str, value: str) -> None:
        self.sections = [section for section in self.sections if section[0] < indent]
        self.config.pop(".".join(name for _, name in self.sections), None)  # a section has no value
        self.sections.append((indent, key))
        self.config[".".join(name for _, name in self.sections)] = value

    def steps_before(self, epoch: int) -> int:
        """Optimiser steps before an epoch; an epoch without lines is as long as the one before it."""
        total, length = 0, next(iter(self.lengths.values()), 1)
        for before in range(1, epoch):
            length = self.lengths.get(before, length)
            total += length
        return total

    def finish(self, finished: bool | None = None) -> ImportedRun:
        """The run, after the last line."""
        return self.builder.finish(
            epochs_planned=self.epochs_planned,
            finished=finished,
            select=self.select,
            config=self.config,
            seed=seed_of(self.config.get(self.seed_key)),
            facts=self.facts,
        )

    @property
    def epochs_planned(self) -> int | None:
        found = [value for key in self.epochs_keys if (value := self.config.get(key))]
        return int(found[0]) if found and found[0].isdigit() else None
