"""Commands that a person may type next: about the same study, with the options that they gave before.

A hint without --runs-dir looks at other runs; one without --data-root sends runs without their data.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# What each kind of command takes of the options that change what a command means.
ABOUT = ("runs_dir", "variant", "seed")
SENDING = (*ABOUT, "data_root", "executor", "slots")


@dataclass(frozen=True)
class Again:
    """The manifest and the options, as they were typed; those that were not given are left out."""

    study: str
    given: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, arguments: argparse.Namespace, default_runs_dir: Path) -> Again:
        """From a parsed command line about a study."""
        given = {}
        for name in SENDING:
            value = getattr(arguments, name, None)
            if value and value not in (default_runs_dir, "auto"):
                given[name] = tuple(map(str, value)) if isinstance(value, list) else (str(value),)
        return cls(str(arguments.study), given)

    def submit(self, *words: str, **more: str | None) -> str:
        """`python submit.py STUDY ...`; `more` are options that were not given, such as data_root."""
        return self._line("python submit.py", SENDING, words, more)

    def retry(self, *words: str, **more: str | None) -> str:
        """`python -m ablations retry STUDY ...`."""
        return self._line("python -m ablations retry", SENDING, words, more)

    def control(self, command: str, *words: str) -> str:
        """`python -m ablations COMMAND STUDY ...`, of a command that sends nothing."""
        return self._line(f"python -m ablations {command}", ABOUT, words, {})

    def _line(
        self, start: str, options: Sequence[str], words: Sequence[str], more: dict[str, str | None]
    ) -> str:
        given = {**{name: (value,) for name, value in more.items() if value}, **self.given}
        parts = [self.study, *words]
        for name in options:
            if name in given:
                parts += [f"--{name.replace('_', '-')}", *given[name]]
        return f"{start} {shlex.join(parts)}"
