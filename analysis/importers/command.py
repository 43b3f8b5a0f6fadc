"""`sdtps import FILES... [--study NAME]`: other people's logs into runs/_imported/."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis.importers import autodetect, folder, units
from analysis.importers.record import ImportedRun, LogError, percent
from analysis.results.numbers import counted
from sdtps.commandline import add_runs_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `import`."""
    parser.add_argument("files", nargs="+", type=Path, help="log files, or folders to search for them")
    parser.add_argument("--study", help="name of the study; default: the name of each file's folder")
    parser.add_argument(
        "--variant", help="name of the variant (for one file); default: told by the file"
    )
    parser.add_argument(
        "--seed", type=int, help="seed (for one file); default: told by the file, else 0"
    )
    names = ", ".join(f.name for f in autodetect.FORMATS)
    parser.add_argument("--as", dest="format", metavar="FORMAT", help=f"do not guess: {names}")
    parser.add_argument(
        "--unit",
        choices=units.UNITS,
        help="what scores are where neither the format nor a value above 1 says it",
    )
    add_runs_dir(parser)
    parser.add_argument(
        "--strict", action="store_true", help="write nothing if any line cannot be read"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be imported; write nothing"
    )


def command(arguments: argparse.Namespace) -> int:
    """Import; prints what was read and every line that could not be.

    Returns:
        0, or 1 where a file could not be read (with --strict: a line).

    Raises:
        LogError: nothing can be imported as asked.
    """
    runs, complaints = autodetect.read(arguments.files, arguments.format)
    _rename(runs, arguments)
    studies: dict[str, list[ImportedRun]] = {}
    for imported in runs:
        name = arguments.study or imported.source.absolute().parent.name
        studies.setdefault(name, []).append(imported)
    studies = {name: folder.settle_seeds(members) for name, members in studies.items()}
    units.settle(studies, arguments.unit)
    unread = sum(len(r.unread) for members in studies.values() for r in members)
    refused = arguments.strict and (unread or complaints)
    for name, members in studies.items():
        folder.label_runs(members)
        print(f"{name}: {counted(len(members), 'run')}")
        for imported in members:
            print(f"  {summary(imported)}")
            for note in imported.notes:
                print(f"      {note}")
            for line in imported.unread:
                print(f"      not read: {imported.source.name} {line}")
            if not (refused or arguments.dry_run):
                folder.write(imported, name, arguments.runs_dir)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if refused:
        raise LogError(
            f"--strict: {counted(unread, 'line')} and {counted(len(complaints), 'file')} could not be "
            "read; nothing was written"
        )
    if not runs:
        raise LogError("nothing was imported")
    return 1 if complaints else 0


def summary(imported: ImportedRun) -> str:
    """One line on a run: variant, seed, state, epochs, and its best score."""
    text = f"{imported.variant} seed {imported.seed}: {imported.state}"
    if imported.reason:
        text += f" ({imported.reason})"
    text += f", {counted(imported.facts['epochs'], 'epoch')}"
    metric = imported.select.split(" ")[0]
    if imported.best and isinstance(value := imported.best.get(metric), float):
        shown = f"{percent(value)} %" if metric in ("mAP", "rank1", "rsum") else f"{value:g}"
        text += f", best {metric} {shown} at epoch {imported.best['epoch']}"
    return f"{text} [{imported.format}]"


def _rename(runs: list[ImportedRun], arguments: argparse.Namespace) -> None:
    if arguments.variant is None and arguments.seed is None:
        return
    if len(runs) != 1:
        raise LogError(f"--variant and --seed name one run, but these files hold {len(runs)}")
    runs[0].variant = arguments.variant or runs[0].variant
    runs[0].seed = arguments.seed if arguments.seed is not None else runs[0].seed
