"""Commands that a person may type next: about the same study, with the options that they gave before.

A hint without --runs-dir looks at other runs; one without --data-root sends runs without their data.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from sdtps.run.locations import runs_root

# What each kind of command takes of the options that change what a command means.
ABOUT = ("runs_dir", "variant", "seed")
SENDING = (*ABOUT, "data_root", "executor", "slots")


@dataclass(frozen=True)
class Again:
    """The manifest and the options, as they were typed; those that were not given are left out."""

    study: str
    given: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Again:
        """From a parsed command line about a study."""
        given = {}
        for name in SENDING:
            value = getattr(arguments, name, None)
            if value and value not in (runs_root(), "auto"):
                given[name] = tuple(map(str, value)) if isinstance(value, list) else (str(value),)
        return cls(str(arguments.study), given)

    def submit(self, *words: str, **more: str | None) -> str:
        """`sdtps submit STUDY ...`; `more` are options that were not given, such as data_root."""
        return self._line("sdtps submit", SENDING, words, more)

    def retry(self, *words: str, **more: str | None) -> str:
        """`sdtps retry STUDY ...`."""
        return self._line("sdtps retry", SENDING, words, more)

    def control(self, command: str, *words: str) -> str:
        """`sdtps VERB STUDY ...`, of a verb that sends nothing."""
        return self._line(f"sdtps {command}", ABOUT, words, {})

    def _line(
        self, start: str, options: Sequence[str], words: Sequence[str], more: dict[str, str | None]
    ) -> str:
        given = {**{name: (value,) for name, value in more.items() if value}, **self.given}
        parts = [self.study, *words]
        for name in options:
            for value in given.get(name, ()):
                parts += [f"--{name.replace('_', '-')}", value]
        return f"{start} {shlex.join(parts)}"
