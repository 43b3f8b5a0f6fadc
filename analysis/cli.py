"""python -m analysis COMMAND: collect, tables, curves, paper, check, explain, claims, report and more.

Each command lives in its own module, which is imported only when it is asked for.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence

from sdtps.commandline import Parser
from sdtps.errors import SdtpsError

# Command: module with add_arguments(parser) and command(arguments) -> exit code; what it does.
COMMANDS = {
    "collect": ("analysis.runs.command", "every run of a study and what became of it"),
    "tables": ("analysis.tables.command", "tables of a study, in the terminal or as files"),
    "curves": ("analysis.figures.command", "figures of a study as PDF, SVG and PNG"),
    "compare": ("analysis.results.compare_command", "what the seeds can say about two variants"),
    "paper": ("analysis.paper.command", "tables, figures, numbers, and the PDF"),
    "check": (
        "analysis.paper.check",
        "fail when anything in the paper is stale, missing, mixed or edited",
    ),
    "explain": ("analysis.paper.explain", "from a cell, number or figure to its runs"),
    "claims": ("analysis.claims.command", "the verdicts of the claims ledger"),
    "audit": ("analysis.tables.audit_table", "the gradient audit of a study as a table"),
    "report": ("analysis.report_command", "one self-contained report.html"),
    "import": ("analysis.import_command", "other people's logs into run folders"),
    "export": ("analysis.paper.export", "runs to TensorBoard or CSV"),
    "patches": ("analysis.patches_command", "pictures of the patches that a run kept and dropped"),
    "bench": ("benchmarks.analysis", "measured speeds of this package on this machine"),
}


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(prog="python -m analysis", description="From runs to a paper.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in argv if not word.startswith("-")), None)
    for name, (module, description) in COMMANDS.items():
        sub = commands.add_parser(name, help=description, description=f"{name}: {description}.")
        if name == asked:
            importlib.import_module(module).add_arguments(sub)
    arguments = parser.parse_args(argv)
    try:
        code = importlib.import_module(COMMANDS[arguments.command][0]).command(arguments)
        sys.stdout.flush()
        return code
    except SdtpsError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe has seen enough
        _say_no_more()
        return 0
    except OSError as error:  # a folder that may not be read, a full disk
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        print(f"{error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        if error.filename is None:
            _say_no_more()
        return 2


def _say_no_more() -> None:
    """What is still to be written would fail again when Python ends."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main())
