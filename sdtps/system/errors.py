"""Errors a user can cause. Each says where, what was found, what is allowed and what to do next.

Command-line entry points catch `SdtpsError` and print its text without a traceback (exit code 2).
Anything else that escapes is our fault and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def visible(text: str) -> str:
    """`text` on one line; what a terminal would obey instead of show (ESC, line ends) as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def visible_lines(text: str) -> str:
    """Each line of `text` as `visible`."""
    return "\n".join(map(visible, text.split("\n")))


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 run`, `2 runs`; `plural` where the noun does not take an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


class SdtpsError(Exception):
    """Base of every error caused by input, not by a fault of ours.

    Its text quotes that input, and so is printed as `visible_lines`.
    """

    def __str__(self) -> str:
        return visible_lines(super().__str__())


class ConfigError(SdtpsError):
    """A configuration that cannot be used; the text lists all of its mistakes."""


class YamlError(SdtpsError):
    """A text that is not the YAML we read; the text lists its mistakes with their lines."""


class DataError(SdtpsError):
    """A data set on disk that breaks its layout: a missing, torn or unparsable file (named)."""


class WeightsError(SdtpsError):
    """A checkpoint that does not fit the model: missing, unexpected or mismatched tensors (named)."""


class RunError(SdtpsError):
    """A run folder that cannot be used as asked."""


class LockLost(RunError):
    """Another submission has locked this run's folder: this process must not write to it any more."""


class ManifestError(SdtpsError):
    """A study manifest with mistakes; the text lists all of them with their lines."""


class SubmissionError(SdtpsError):
    """The scheduler refused, or its answer could not be understood."""


class AggregationError(SdtpsError):
    """Runs that must not be put into one table: missing seeds, mixed code."""


_LISTED = 40  # allowed words that one sentence spells out


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """One sentence that names the nearest allowed word first, then all of them (the first 40)."""
    allowed = sorted(allowed)
    near = [a for a in allowed if a.casefold() == word.casefold()][:1]
    near = near or difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    if not near:  # a bare last part often is right where the section is wrong
        last = word.rsplit(".", 1)[-1]
        near = [a for a in allowed if a.rsplit(".", 1)[-1] == last][:1]
    hint = f"Did you mean '{visible(near[0])}'? " if near else ""
    more = f" and {len(allowed) - _LISTED} more" if len(allowed) > _LISTED else ""
    return f"{hint}Allowed: {', '.join(map(visible, allowed[:_LISTED])) or 'nothing'}{more}."
