"""The command line that all three packages share: tables of verbs, common options, one guard.

A verb is one module with `add_arguments(parser)` and `command(arguments) -> int`. A table maps its name
to (module, help, group); only the module of the verb that was asked for is imported.

Exit codes: 0 done, 1 something failed, 2 a mistake of the user's, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import io
import math
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from sdtps.run.locations import runs_root
from sdtps.system.errors import SdtpsError, did_you_mean, visible
from sdtps.system.files import share

Verbs = Mapping[str, tuple[str, str, str]]  # name: (module, help, group)

# What people do, in the order in which `--help` shows it.
GROUPS = {
    "submit": "Submit and steer a study",
    "watch": "See how it goes",
    "results": "Numbers and curves",
    "paper": "The paper",
    "models": "Data, weights and single runs",
    "tools": "This program",
}
_UNRECOGNIZED = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """argparse's, with the nearest right word for a wrong option or choice, and no abbreviations."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # An abbreviation that is right today may be ambiguous tomorrow; scripts keep what they use.
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # Python 3.11 checks the empty list that nargs="*" gives where no word is given.
        if action.choices is not None and value not in [*action.choices, []]:
            hint = did_you_mean(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"there is no '{value}'. {hint}")

    def error(self, message: str) -> NoReturn:
        """Usage, the mistake and, for an unknown option, the nearest one; exit code 2."""
        if message.startswith(_UNRECOGNIZED):
            known = sorted({option for action in self._actions for option in action.option_strings})
            for word in message.removeprefix(_UNRECOGNIZED).split():
                near = difflib.get_close_matches(word.partition("=")[0], known, n=1)
                if word.startswith("-") and near:
                    message += f". Did you mean '{near[0]}'?"
                    break
            else:
                message += f". All options: {self.prog} --help"
        super().error(message)


def at_least(smallest: int) -> Callable[[str], int]:
    """An argument's type: whole numbers from `smallest` on."""

    def number(text: str) -> int:
        if not text.isascii() or not text.removeprefix("-").isdigit() or int(text) < smallest:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least {smallest}")
        return int(text)

    return number


def positive(text: str) -> float:
    """An argument that is a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0, such as 0.5")
    return number


def add_runs_dir(parser: argparse.ArgumentParser) -> None:
    """--runs-dir: the folder in which all runs lie."""
    parser.add_argument(
        "--runs-dir",
        type=Path,
        default=runs_root(),
        metavar="FOLDER",
        help="where the runs lie [$SDTPS_RUNS_DIR, else runs/ in the current folder]",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json: the answer for scripts."""
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def add_variants(parser: argparse.ArgumentParser) -> None:
    """-v/--variant, which may be repeated."""
    option = parser.add_argument(
        "-v",
        "--variant",
        action="append",
        default=[],
        metavar="NAME",
        help="this variant only, or a pattern such as 'tau*'; may be repeated",
    )
    option.complete = {"bash": "_sdtps_variants", "zsh": "_sdtps_variants"}  # type: ignore[attr-defined]


def add_seeds(parser: argparse.ArgumentParser) -> None:
    """-s/--seed, which may be repeated."""
    parser.add_argument(
        "-s",
        "--seed",
        action="append",
        type=at_least(0),
        default=[],
        metavar="N",
        help="this seed only; may be repeated",
    )


def verb_parser(prog: str, verb: str, verbs: Verbs) -> Parser:
    """The parser of one verb; imports its module."""
    module, help_text, _ = verbs[verb]
    parser = Parser(prog=f"{prog} {verb}", description=f"{help_text[0].upper()}{help_text[1:]}.")
    _part(module, "add_arguments")(parser)
    return parser


def _part(place: str, name: str) -> Callable[..., Any]:
    """A verb's function; `MODULE:clean` means the module's clean_add_arguments and clean_command."""
    module, _, prefix = place.partition(":")
    function: Callable[..., Any] = getattr(
        importlib.import_module(module), f"{prefix}_{name}" if prefix else name
    )
    return function


def overview(prog: str, verbs: Verbs, about: str) -> str:
    """The text of `prog --help`: every verb, grouped by what people do."""
    lines = [f"usage: {prog} VERB ...", "", about]
    width = max(map(len, verbs), default=0)
    for group, title in GROUPS.items():
        members = [name for name, verb in verbs.items() if verb[2] == group]
        if members:
            lines += ["", f"{title}:"]
        for name in members:
            lines += textwrap.wrap(
                verbs[name][1],
                max(79, width + 40),
                initial_indent=f"  {name:<{width}}  ",
                subsequent_indent=" " * (width + 4),
            )
    return "\n".join([*lines, "", f"Options of a verb: {prog} VERB --help"])


def run(prog: str, verbs: Verbs, about: str, words: Sequence[str] | None = None) -> int:
    """Run the verb that `words` (default: the process's) name; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    for stream in (sys.stdout, sys.stderr):
        # A character that the output's encoding lacks is printed as an escape, not a reason to stop.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def work() -> int:
        try:
            code = _answer(prog, verbs, about, words)
        except SystemExit as end:  # argparse's: help (0), or a mistake (2)
            code = end.code if isinstance(end.code, int) else 2
        sys.stdout.flush()  # now, where a closed pipe or a full disk can still be answered
        return code

    return guarded(work)


def _answer(prog: str, verbs: Verbs, about: str, words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(prog, verbs, about))
        return 0 if words else 2
    verb, *rest = words
    if verb not in verbs:
        every = "" if prog == "sdtps" else "; all verbs: sdtps --help"
        raise SdtpsError(
            f"{prog}: there is no verb '{verb}'. {did_you_mean(verb, verbs)}\n"
            f"What each does: {prog} --help{every}"
        )
    parser = verb_parser(prog, verb, verbs)
    takes_rest = any(action.nargs == argparse.REMAINDER for action in parser._actions)
    arguments = parser.parse_args(rest) if takes_rest else parser.parse_intermixed_args(rest)
    command = _part(verbs[verb][0], "command")
    if "runs_dir" in arguments:
        share(arguments.runs_dir)
    with _interruptible():
        return int(command(arguments))


def guarded(work: Callable[[], int]) -> int:
    """The exit code of `work`.

    A user's mistake, a full disk, a closed pipe or Ctrl-C ends with one sentence; anything else that
    escapes is a fault of ours and keeps its traceback.
    """
    try:
        return work()
    except SdtpsError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted. Running the same command again is safe.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has seen enough
        _close_quietly()
        return 0
    except OSError as error:  # a folder that may not be read, a full disk
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        where = visible(str(error.filename or "standard output"))
        print(f"{where}: {error.strerror}{_advice(error)}", file=sys.stderr)
        if error.filename is None:
            _close_quietly()
        return 2


def _advice(error: OSError) -> str:
    if error.filename is None:
        return ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ". Make room there, or name another folder; then run the same command again."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ". Give permission, or name another folder."
    return ""


def _close_quietly() -> None:
    """What is still to be written would fail again when Python ends."""
    with contextlib.suppress(OSError, ValueError):  # standard output is no file: a test's
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


@contextlib.contextmanager
def on_signals(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """`handler` hears these signals; their earlier handlers come back afterwards."""
    earlier = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, before)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """From here on Ctrl-C is a KeyboardInterrupt; before, it ends the process (ablations/cli.py)."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        yield
        return
    with on_signals([signal.SIGINT], signal.default_int_handler):
        yield
