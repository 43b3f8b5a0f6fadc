"""`import FILES...`: other people's logs as run folders below runs/_imported/.

A log with a grammar of its own (DeMo, TransReID, CLIP-ReID, fast-reid, SEPS, LAPS, VSE++) and tables of
well-known programs are recognised. Other tables need a mapping where their names do not say enough.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.importers import demo, families, fastreid, mapping, seps, store, table, tensorboard
from analysis.importers.mapping import Plan
from analysis.importers.run import ImportedRun, LogError, RunBuilder, is_number, percent
from analysis.importers.table import Options, Table
from analysis.importers.text import LogReader, clean, decode, lines
from sdtps.system.commandline import add_runs_dir
from sdtps.system.errors import counted, did_you_mean


@dataclass(frozen=True)
class Grammar:
    """A program whose log is read line by line."""

    name: str
    looks_for: str
    recognises: Callable[[str, str], bool]
    reader: type[LogReader]


GRAMMARS = (
    Grammar(demo.NAME, demo.LOOKS_FOR, demo.recognises, demo.DemoLog),
    Grammar(fastreid.NAME, fastreid.LOOKS_FOR, fastreid.recognises, fastreid.FastreidLog),
    Grammar(seps.NAME, seps.LOOKS_FOR, seps.recognises, seps.SepsLog),
)
_OTHERS = {
    tensorboard.NAME: tensorboard.LOOKS_FOR,
    "huggingface": "a JSON object with log_history",
    "csv": "a first line of column names, and numbers below",
    "jsonl": "one JSON object a line",
}
# What a folder is searched for; other files in it (images, checkpoints) are left alone.
_SEARCHED = (
    "*.log", "*.txt", "*.out", "*.csv", "*.tsv", "*.jsonl", "*.log.json", "scalars.json",
    "metrics.json", "trainer_state.json", "*tfevents*",
)  # fmt: skip
_HEAD = 2**20  # bytes that tell a file's format
_LFS = b"version https://git-lfs.github.com/spec/"


def format_names() -> list[str]:
    return [*(g.name for g in GRAMMARS), *(f.name for f in families.FAMILIES), *_OTHERS]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `import`."""
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="LOG", help="log files, or folders to search for them")
    add("--study", metavar="NAME", help="name of the study; default: the name of the folder")
    add(
        "--variant",
        metavar="NAME",
        help="name of the variant (for one run); default: from the file or its path",
    )
    add(
        "--seed",
        type=int,
        metavar="N",
        help="seed (for one run); default: from the file or its path",
    )
    add(
        "--mapping",
        type=Path,
        metavar="FILE",
        help="a YAML file that says what the columns of tables mean",
    )
    add(
        "--propose",
        action="store_true",
        help="print a mapping for one table, with ? where you have to say",
    )
    add(
        "--split", choices=("val", "test", "eval"), help="split of scores whose file does not state one"
    )
    add("--unit", choices=("percent", "fraction"), help="unit of scores whose file does not state one")
    add(
        "--restarts",
        action="store_true",
        help="treat a decreasing step as a restart of training",
    )
    add("--as", dest="format", metavar="FORMAT", help=f"read as: {', '.join(format_names())}")
    add_runs_dir(parser)
    add("--strict", action="store_true", help="write nothing if any line cannot be read")
    add("--dry-run", action="store_true", help="say what would be imported; write nothing")
    add(
        "--rows", action="store_true", help="print the rows of the one run that is found; write nothing"
    )


def command(arguments: argparse.Namespace) -> int:
    """Import; prints what was read and every line that could not be.

    Returns:
        0, or 1 where a file could not be read (with --strict: a line).

    Raises:
        LogError: nothing can be imported as asked.
    """
    given = mapping.load(arguments.mapping) if arguments.mapping else None
    options = Options(arguments.split, arguments.unit, arguments.restarts, given)
    if arguments.propose:
        print(propose(arguments.files), end="")
        return 0
    runs, complaints = read(arguments.files, options, arguments.format, arguments.study)
    if arguments.rows:
        return _print_rows(runs, complaints)
    _rename(runs, arguments)
    studies = {name: store.settle(members) for name, members in store.by_study(runs).items()}
    unread = sum(len(r.unread) for members in studies.values() for r in members)
    refused = arguments.strict and (unread or complaints)
    for name, members in studies.items():
        store.label_runs(members)
        if members:
            print(f"{name}: {counted(len(members), 'run')}")
        for imported in members:
            print(f"  {summary(imported)}")
            for note in imported.notes:
                print(f"      {note}")
            for line in imported.unread:
                print(f"      not read: {imported.source.name} {line}")
            if not (refused or arguments.dry_run):
                store.write(imported, name, arguments.runs_dir)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if refused:
        raise LogError(
            f"--strict: {counted(unread, 'line')} and {counted(len(complaints), 'file')} could not be "
            "read; nothing was written"
        )
    if not any(studies.values()):
        raise LogError("nothing was imported")
    return 1 if complaints else 0


def _print_rows(runs: list[ImportedRun], complaints: list[str]) -> int:
    """What a run of `task: command` takes from its program's log."""
    if complaints or len(runs) != 1:
        raise LogError("\n".join(complaints) or f"one run is wanted, and there are {len(runs)}")
    for row in runs[0].rows:
        if row["kind"] in ("train", "eval"):
            print(json.dumps(row))  # NaN and Infinity as Python writes them
    return 0


def summary(imported: ImportedRun) -> str:
    """One line on a run: variant, seed, state, length, and its best score."""
    state = "ended, length unknown" if imported.state == "ended" else imported.state
    text = f"{imported.variant} seed {imported.seed}: {state}"
    if imported.reason and imported.state != "ended":
        text += f" ({imported.reason})"
    epochs = imported.facts["epochs"]
    if epochs is None:
        text += f", {counted(imported.rows[-1]['step'] if imported.rows else 0, 'step')}"
    else:
        text += f", {counted(epochs, 'epoch')}"
    name = imported.select.split(" ")[0]
    if imported.best and isinstance(value := imported.best.get(name), float):
        metric = imported.metrics.get(name)
        shown = f"{percent(value)} %" if metric and metric.unit != "raw" else f"{value:g}"
        where = (
            f"epoch {imported.best['epoch']}" if epochs is not None else f"step {imported.best['step']}"
        )
        text += f", best {name} {shown} at {where}"
        text += f" ({imported.selected_on})" if imported.selected_on else ""
    return f"{text} [{imported.format}]"


def _rename(runs: list[ImportedRun], arguments: argparse.Namespace) -> None:
    if arguments.variant is None and arguments.seed is None:
        return
    if len(runs) != 1:
        raise LogError(f"--variant and --seed name one run, but these files hold {len(runs)}")
    runs[0].variant = arguments.variant or runs[0].variant
    runs[0].seed = arguments.seed if arguments.seed is not None else runs[0].seed


# -- finding and reading files --------------------------------------------------------------------


def read(
    paths: Iterable[Path],
    options: Options | None = None,
    format_name: str | None = None,
    study: str | None = None,
) -> tuple[list[ImportedRun], list[str]]:
    """All runs of some files and folders.

    Args:
        format_name: read everything as this format instead of telling it from the content.
        study: the study of all runs; None tells it from the folders.

    Returns:
        The runs, and one complaint for each file that could not be read.

    Raises:
        LogError: a path that does not exist, or an unknown format name.
    """
    if format_name is not None and format_name not in format_names():
        raise LogError(
            f"--as {format_name}: unknown format. {did_you_mean(format_name, format_names())}"
        )
    runs: list[ImportedRun] = []
    complaints: list[str] = []
    for given in map(Path, paths):
        root = given if given.is_dir() else given.absolute().parent
        found = _read_below(given, replace(options or Options(), root=root), format_name, complaints)
        store.name_studies(found, root, study)
        runs += found
    return runs, complaints


def _read_below(
    given: Path, options: Options, format_name: str | None, complaints: list[str]
) -> list[ImportedRun]:
    """The runs of one file or of the files below one folder, in the order of their paths."""
    runs: list[ImportedRun] = []
    events: dict[Path, list[Path]] = {}
    for path, searched in _files(given):
        try:
            content = path.read_bytes()
            if content.startswith(_LFS):
                complaints.append(
                    f"{path}: a Git LFS pointer, not the file itself; fetch it with git lfs pull"
                )
            elif (format_name or tensorboard.NAME) == tensorboard.NAME and tensorboard.recognises(
                path.name, content
            ):
                events.setdefault(path.parent, []).append(path)
            elif (found := _read_one(path, content, options, format_name)) is not None:
                runs += found
            elif (failed := crashed(path, content)) is not None:
                runs.append(failed)
            elif not searched:
                complaints.append(_unknown(path, content))
        except LogError as error:
            complaints.append(str(error))
        except OSError as error:
            complaints.append(f"{path}: {error.strerror or error}")
    for files in events.values():
        try:
            runs += tensorboard.read_folder(sorted(files), options)
        except LogError as error:
            complaints.append(str(error))
    return runs


def _read_one(
    path: Path, content: bytes, options: Options, format_name: str | None
) -> list[ImportedRun] | None:
    """The runs of one file; None where nothing recognises it."""
    text = clean(decode(content[:_HEAD]))
    for grammar in GRAMMARS:
        if format_name == grammar.name or (format_name is None and grammar.recognises(path.name, text)):
            return grammar.reader.read(path, content, options.restarts)
    if format_name == "huggingface" or (format_name is None and families.is_trainer_state(text)):
        return families.read_trainer_state(path, content, options.unit)
    found = _table(path, content, text, format_name)
    if found is None:
        return None
    if options.mapping is not None:
        return table.read(
            found, mapping.plan_of(options.mapping, list(found.columns), str(path)), options, "mapping"
        )
    if format_name is None and families.is_wandb_runs(found):
        return families.read_wandb_runs(found, options.unit)
    planned, plan, family = _plan(found, format_name)
    runs = table.read(planned, plan, options, family)
    for run in runs:
        families.complete(run, family)
    return runs


def _table(path: Path, content: bytes, text: str, format_name: str | None) -> Table | None:
    is_json = text.lstrip()[:1] == "{"
    if format_name not in (None, "csv", "jsonl", *(f.name for f in families.FAMILIES)):
        return None
    if format_name == "jsonl" or (format_name != "csv" and is_json):
        first = [line for line in text[:_HEAD].split("\n")[:50] if line.strip()]
        if format_name is None and not any(table.json_object(line) is not None for line in first):
            return None
        return table.open_json_lines(path, content)
    if format_name is None and not _looks_like_csv(text):
        return None
    found = table.open_csv(path, content)
    # Our own export's runs.csv describes runs; values.csv beside it holds what they logged.
    return None if {"identity", "folder", "planned"} <= found.columns.keys() else found


def _looks_like_csv(text: str) -> bool:
    head = [line for line in text[:20_000].split("\n") if line.strip()][:2]
    if len(head) < 2:
        return False
    delimiter = max(",\t;", key=head[0].count)
    names, cells = (line.rstrip("\r").split(delimiter) for line in head)
    numbers = [is_number(cell.strip('" %')) for cell in cells]
    named = all(name.strip('" \ufeff') and not is_number(name.strip('" ')) for name in names[1:])
    return len(names) > 1 and named and any(numbers)


def _plan(found: Table, format_name: str | None) -> tuple[Table, Plan, str]:
    for family in families.FAMILIES:
        if format_name in (None, family.name) and (planned := family.plan(found)) is not None:
            return *planned, family.name
        if format_name == family.name:
            raise LogError(f"{found.path}: no table of {family.name}: it looks for {family.looks_for}")
    wide = table.long_to_wide(found)
    return wide, table.infer(wide), found.format


def propose(paths: list[Path]) -> str:
    """The mapping that one table's names suggest.

    Raises:
        LogError: not one file, or no table.
    """
    found_files = [path for given in paths for path, _ in _files(given)]
    if len(found_files) != 1:
        raise LogError(f"--propose takes one file, but these are {len(found_files)}")
    path = found_files[0]
    content = path.read_bytes()
    if tensorboard.recognises(path.name, content):
        return mapping.propose(*tensorboard.propose_plan([path]))
    found = _table(path, content, clean(decode(content[:_HEAD])), None)
    if found is None:
        raise LogError(_unknown(path, content))
    planned, plan, _ = _plan(found, None)
    plan.step_within_epoch = plan.step_within_epoch or table.steps_start_again(plan, planned)
    return mapping.propose(plan, list(planned.columns))


def crashed(path: Path, content: bytes) -> ImportedRun | None:
    """A run that failed before its program logged anything: a log that ends in an exception."""
    builder = RunBuilder(path, content, "crash")
    for line in lines(content):
        builder.follow_traceback(line.number, line.text, False)
    return builder.finish(finished=False) if builder.error else None


def _files(given: Path) -> list[tuple[Path, bool]]:
    """The files to read, and whether they were found in a folder rather than named."""
    if given.is_dir():
        found = sorted({p for pattern in _SEARCHED for p in given.rglob(pattern) if p.is_file()})
        if not found:
            raise LogError(f"{given}: no log below it. Looked for: {', '.join(_SEARCHED)}")
        return [(file, True) for file in found]
    if not given.is_file():
        raise LogError(f"{given}: no such file or folder")
    return [(given, False)]


def _unknown(path: Path, content: bytes) -> str:
    what = "empty" if not content.strip() else "in no format that an importer recognises"
    looks = (
        {g.name: g.looks_for for g in GRAMMARS}
        | {f.name: f.looks_for for f in families.FAMILIES}
        | _OTHERS
    )
    known = "\n".join(f"    {name}: {text}" for name, text in looks.items())
    return f"{path}: {what}. Known formats (force one with --as NAME):\n{known}"
