"""Errors quote what users wrote; a terminal shows it and does not obey it."""

from __future__ import annotations

import pytest

from sdtps.system.errors import ManifestError, did_you_mean, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("red \x1b[31m", r"red \x1b[31m"),
        ("two\nlines", r"two\nlines"),
        ("back\r", r"back\r"),
        ("left\u202eright", r"left\u202eright"),  # turns the direction of what follows
        ("no byte of UTF-8 \udcff", r"no byte of UTF-8 \udcff"),
        ("τ = 1, 中文 and → stay", "τ = 1, 中文 and → stay"),
    ],
)
def test_what_a_terminal_would_obey_is_printed_as_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert shown in str(ManifestError(f"line 1\n{text}")) or "\n" in text


def test_the_lines_of_an_error_stay_lines_and_an_allowed_word_breaks_none() -> None:
    assert str(ManifestError("one\n  two\x07")) == "one\n  two\\x07"
    text = did_you_mean("gumbel", ["gumbel\x1b[2J", "a\nb"])
    assert text == r"Did you mean 'gumbel\x1b[2J'? Allowed: a\nb, gumbel\x1b[2J."
