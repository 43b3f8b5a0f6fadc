"""Other people's logs as clean numbered lines, whatever wrote them.

Tolerates a byte-order mark, UTF-8, UTF-16 and Latin-1 mixed line by line, CRLF, progress bars that
overwrite themselves with a bare carriage return, and terminal colours.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# CSI sequences (colours, cursor), OSC sequences (window titles), and the two-byte escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_BACKSPACES = re.compile(r"[^\b]\b")


@dataclass(frozen=True)
class Line:
    """One printed line: its 1-based number in the file, and its text without colours."""

    number: int
    text: str


def decode_line(raw: bytes) -> str:
    """UTF-8, or where a line is not UTF-8 the encoding of Western Windows consoles."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace")


def clean(text: str) -> str:
    """`text` without terminal escapes, overstrikes and NUL bytes."""
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
        return "\n".join(decode_line(line) for line in content.split(b"\n"))


def lines(content: bytes) -> Iterator[Line]:
    """Every non-empty line; what a carriage return overwrote comes as a line of its own."""
    for number, text in enumerate(decode(content).split("\n"), start=1):
        for part in text.split("\r"):
            cleaned = clean(part).rstrip()
            if cleaned:
                yield Line(number, cleaned)


def read_bytes(path: Path) -> bytes:
    """The file's content. Raises OSError."""
    return Path(path).read_bytes()
