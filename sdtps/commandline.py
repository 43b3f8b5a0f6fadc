"""A command line that names the nearest right word for a wrong one, and prints any name."""

from __future__ import annotations

import argparse
import difflib
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from sdtps.errors import did_you_mean

_UNRECOGNIZED = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """argparse's, with suggestions for commands, choices and options; so are its subparsers."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's. From here on a character that the output's encoding lacks is printed as an
        escape: a name in a study is no reason to stop."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            hint = did_you_mean(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"there is no '{value}'. {hint}")

    def error(self, message: str) -> NoReturn:
        """Usage, the mistake and, for an unknown option, the nearest one; exit code 2."""
        if message.startswith(_UNRECOGNIZED):
            known = sorted(set(self._options()))
            for word in message.removeprefix(_UNRECOGNIZED).split():
                near = difflib.get_close_matches(word.partition("=")[0], known, n=1)
                if word.startswith("-") and near:
                    message += f". Did you mean '{near[0]}'?"
                    break
            else:
                message += ". --help lists what there is."
        super().error(message)

    def _options(self) -> Iterator[str]:
        """Of this parser and of its commands."""
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._options()


def at_least(smallest: int) -> Callable[[str], int]:
    """An argument's type: whole numbers from `smallest` on."""

    def number(text: str) -> int:
        if not text.isascii() or not text.removeprefix("-").isdigit() or int(text) < smallest:
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number of at least {smallest}")
        return int(text)

    return number
