"""What an importer hands over: one run read from somebody else's files, and what could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

from sdtps.errors import SdtpsError

# `incomplete`: the log simply ends before the planned number of epochs, without saying why.
ImportedState = Literal["completed", "incomplete", "diverged", "failed", "cancelled"]


class LogError(SdtpsError):
    """A file that no importer can read, or that breaks the format it claims."""


@dataclass(frozen=True)
class Unread:
    """A line that looks like a record but could not be read as one."""

    line: int  # 1-based; 0 = the file as a whole
    text: str
    reason: str

    def __str__(self) -> str:
        where = f"line {self.line}" if self.line else "file"
        shown = self.text if len(self.text) <= 100 else self.text[:97] + "..."
        return f"{where}: {self.reason}: {shown!r}" if shown else f"{where}: {self.reason}"


@dataclass
class ImportedRun:
    """One run; rows follow metrics.jsonl (see `sdtps.run.folder`): fractions, epochs from 1."""

    source: Path
    sha256: str
    format: str
    variant: str
    rows: list[dict[str, Any]]
    state: ImportedState
    seed: int | None = None
    reason: str = ""
    failure: str = ""  # oom, timeout, node, error: only where state is failed
    config: dict[str, Any] = field(default_factory=dict)  # flat, values as printed
    components: dict[str, bool] = field(default_factory=dict)
    label: str = ""
    best: dict[str, Any] | None = None  # the evaluation row selected
    final: dict[str, Any] | None = None  # the last evaluation row
    select: str = ""  # "mAP max": how `best` was chosen
    selected_on: str | None = None  # the split that `best` was selected on, where the format says so
    heads: dict[str, dict[str, Any]] = field(default_factory=dict)  # best row of each head
    printed: dict[str, str] = field(default_factory=dict)  # best values exactly as the log prints them
    facts: dict[str, Any] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Scores that stand in the rows as printed, fractions or per cents: `units.settle` decides.
    open_units: set[str] = field(default_factory=set)


def number(text: str) -> float:
    """A printed number, `nan` and `inf` included, in either decimal notation of programs.

    Raises:
        ValueError: not a number.
    """
    return float(text.strip().rstrip(","))


def fraction(percent: str) -> float:
    """A printed percentage as the float nearest to the exact decimal fraction: '22.9' is 0.229.

    Raises:
        ValueError: not a decimal number.
    """
    try:
        value = Decimal(percent.strip().rstrip("%").strip())
    except InvalidOperation:
        raise ValueError(f"'{percent}' is not a percentage") from None
    if not value.is_finite():
        return float(value)
    return float(value.scaleb(-2))


def percent(value: float) -> str:
    """The inverse of `fraction`: 0.229 is '22.9', without binary noise and trailing zeros."""
    text = format(Decimal(repr(value)).scaleb(2).normalize(), "f")
    return text if "." in text else f"{text}.0"
