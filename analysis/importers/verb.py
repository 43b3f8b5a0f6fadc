"""`import LOG...`: other people's logs as run folders below runs/_imported/.

Logs of this field's programs are recognised. What any other file means, a mapping declares (`--as`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from analysis.importers import mapped, names, ours, store, tensorboard
from analysis.importers.demo import DemoLog
from analysis.importers.fastreid import FastreidLog
from analysis.importers.mapped import Options
from analysis.importers.run import ImportedRun, LogError, RunBuilder, percent
from analysis.importers.seps import SepsLog
from analysis.importers.table import Table, open_table
from analysis.importers.text import LogReader, clean, decode, lines
from sdtps.config.mapping import FORMATS, SHIPPED, load, shipped
from sdtps.run.queries import FILE as QUERIES
from sdtps.run.queries import read_queries
from sdtps.system.commandline import add_runs_dir
from sdtps.system.errors import RunError, counted

# Logs with a grammar of their own, in the order in which a file is tried.
READERS: tuple[type[LogReader], ...] = (DemoLog, FastreidLog, SepsLog)
# What a folder is searched for; other files in it (images, checkpoints, settings) are left alone.
_LOGS = ("*.log", "*.txt", "*.out", "*.err", "*.csv", "*.tsv", "*.json", "*.jsonl", "*tfevents*")
_HEAD = 2**20  # bytes that tell a file's format
_RECOGNISED = Options()
_LFS = b"version https://git-lfs.github.com/spec/"


def how(name: str | None, options: Options) -> Options:
    """`options` with what `--as NAME-OR-FILE` means. Raises MappingError: no such format, or a
    mapping's mistakes."""
    if name is None or name in FORMATS:
        return replace(options, format=name)
    return replace(options, mapping=load(name), name=Path(name).stem)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `import`."""
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="LOG", help="log files, or folders to search for them")
    add("--study", metavar="NAME", help="name of the study; default: the name of the folder")
    add("--variant", metavar="NAME", help="name of the variant, for one run; default: from its path")
    add("--seed", type=int, metavar="N", help="seed, for one run; default: from its path")
    add(
        "--as",
        dest="format",
        metavar="NAME-OR-FILE",
        help=f"format ({', '.join(FORMATS)}), mapping ({', '.join(shipped())}), or a file of yours",
    )
    add("--propose", action="store_true", help="print a mapping for one file, to be completed")
    add("--mappings", action="store_true", help="print the shipped mappings and the known metric names")
    add("--split", choices=("val", "test", "eval"), help="split of scores, where nothing states one")
    add("--unit", choices=("percent", "fraction"), help="unit of scores, where nothing states one")
    add(
        "--repeat",
        choices=("last", "first", "max"),
        help="which value counts where a place has several",
    )
    add("--restarts", action="store_true", help="a step that goes back is a restart of training")
    add_runs_dir(parser)
    add("--dry-run", action="store_true", help="say what would be imported; write nothing")
    add(
        "--rows", action="store_true", help="print the rows of the one run that is found; write nothing"
    )


def command(arguments: argparse.Namespace) -> int:
    """Import; prints what was read and every line and file that could not be.

    Returns:
        0, or 1 where a file was not read.

    Raises:
        LogError, MappingError: nothing can be imported as asked.
    """
    if arguments.mappings:
        print(describe_mappings(), end="")
        return 0
    if not arguments.files:
        raise LogError("name the logs, or the folders to search for them")
    options = Options(arguments.split, arguments.unit, arguments.restarts, arguments.repeat)
    if arguments.propose:
        print(propose(arguments.files, arguments.format), end="")
        return 0
    runs, complaints = read(arguments.files, how(arguments.format, options), arguments.study)
    if arguments.rows:
        return _print_rows(runs, complaints)
    _rename(runs, arguments)
    studies = {name: store.settle(members) for name, members in store.by_study(runs).items()}
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
            if not arguments.dry_run:
                folder = store.write(imported, name, arguments.runs_dir)
                if (queries := imported.source.with_suffix(f".{QUERIES}")).exists():
                    try:
                        folder.write_queries(read_queries(queries, imported.final or {}))
                    except RunError as error:
                        complaints.append(str(error))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if not any(studies.values()):
        raise LogError("nothing was imported")
    return 1 if complaints else 0


def _print_rows(runs: list[ImportedRun], complaints: list[str]) -> int:
    """What a run of `task: command` takes from its program's log: what it is, and its rows."""
    if complaints or len(runs) != 1:
        raise LogError("\n".join(complaints) or f"one run is wanted, and there are {len(runs)}")
    (run,) = runs
    splits = {name: metric.split for name, metric in run.metrics.items()}
    print(json.dumps({"splits": splits, "select": run.select}))
    for row in run.rows:
        if row["kind"] in ("train", "eval"):
            print(json.dumps(row))  # NaN and Infinity as Python writes them
    return 0


def summary(imported: ImportedRun) -> str:
    """One line on a run: variant, seed, state, length, and its best or last score."""
    state = imported.reason if imported.state == "ended" else imported.state
    if imported.reason and imported.state != "ended":
        state += f" ({imported.reason})"
    epochs = imported.facts["epochs"]
    step = max((row["step"] for row in imported.rows), default=0)
    length = counted(step, "step") if epochs is None else f"{epochs:g} epoch{'s' * (epochs != 1)}"
    text = f"{imported.variant} seed {imported.seed}: {state}, {length}"
    row = imported.best or imported.final or {}
    chosen = imported.select.split(" ")[0] or next((n for n in row if n in imported.metrics), "")
    if isinstance(value := row.get(chosen), float):
        metric = imported.metrics.get(chosen)
        shown = f"{percent(value)} %" if metric and metric.unit != "raw" else f"{value:g}"
        where = f"epoch {row['epoch']}" if "epoch" in row else f"step {row['step']}"
        text += f", {'best' if imported.best else 'last'} {chosen} {shown} at {where}"
        text += f" ({metric.split})" if metric else ""
    return f"{text} [{imported.format}]"


def describe_mappings() -> str:
    """The shipped mappings, each with its first comment, and the table of known names, as Markdown."""
    rows = ["| `--as` | reads |", "|---|---|"]
    rows += [f"| `{reader.name}` | {reader.looks_for} |" for reader in READERS]
    rows.append(f"| `ours` | {ours.LOOKS_FOR} |")
    for name in shipped():
        first = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8").split("\n", 1)[0]
        rows.append(f"| `{name}` | {first.removeprefix('# ')} |")
    return "\n".join(rows) + "\n\n" + names.table()


def _rename(runs: list[ImportedRun], arguments: argparse.Namespace) -> None:
    if arguments.variant is None and arguments.seed is None:
        return
    if len(runs) != 1:
        raise LogError(f"--variant and --seed name one run, but these files hold {len(runs)}")
    runs[0].variant = arguments.variant or runs[0].variant
    runs[0].seed = arguments.seed if arguments.seed is not None else runs[0].seed


# -- finding and reading files --------------------------------------------------------------------


def read(
    paths: Iterable[Path], options: Options = _RECOGNISED, study: str | None = None
) -> tuple[list[ImportedRun], list[str]]:
    """All runs of some files and folders.

    Args:
        study: the study of all runs; None tells it from the folders.

    Returns:
        The runs, and one complaint for each file that could not be read.

    Raises:
        LogError: a path that does not exist.
    """
    runs: list[ImportedRun] = []
    complaints: list[str] = []
    for given in map(Path, paths):
        root = given if given.is_dir() else given.absolute().parent
        found = _read_below(given, replace(options, root=root), complaints)
        store.name_studies(found, root, study)
        runs += found
    return runs, complaints


def _read_below(given: Path, options: Options, complaints: list[str]) -> list[ImportedRun]:
    """The runs of one file or of the files below one folder, in the order of their paths."""
    runs: list[ImportedRun] = []
    events: dict[Path, list[Path]] = {}
    mapping = options.mapping
    for path in _files(given, mapping.files if mapping else "*", complaints):
        try:
            content = path.read_bytes()
            if content.startswith(_LFS):
                complaints.append(
                    f"{path}: a Git LFS pointer, not the file itself; fetch it with git lfs pull"
                )
            elif tensorboard.recognises(path.name, content):
                folder = path.parent.parent if mapping and mapping.tag_folders else path.parent
                events.setdefault(folder, []).append(path)
            else:
                runs += _read_file(path, content, options)
        except LogError as error:
            complaints.append(str(error))
        except OSError as error:
            complaints.append(f"{path}: {error.strerror or error}")
    for files in events.values():
        try:
            ours_alone = all(path.name.endswith(".sdtps") for path in files)
            if mapping is None and not ours_alone:
                raise LogError(_unknown(files[0], "its tags mean what a mapping says"))
            folders = mapping is not None and mapping.tag_folders
            runs += _read_table(tensorboard.open_events(sorted(files), folders=folders), options)
        except LogError as error:
            complaints.append(str(error))
    return runs


def _read_file(path: Path, content: bytes, options: Options) -> list[ImportedRun]:
    """The runs of one file. Raises LogError: it is not read, and why."""
    if options.mapping is not None:
        return _read_table(open_table(path, content, options.mapping), options)
    text = clean(decode(content[:_HEAD]))
    for reader in READERS:
        if options.format == reader.name or (options.format is None and reader.recognises(text)):
            return reader.read(path, content, options.restarts, options.split)
    try:
        table = open_table(path, content, None)
    except LogError:
        table = None
    if table is not None and (options.format == ours.NAME or ours.recognises(table)):
        return _read_table(table, options)
    if table is not None and ours.describes_runs(table):
        return []
    if (failed := crashed(path, content)) is not None:
        return [failed]
    why = "empty" if not content.strip() else "no log of a program that is known here"
    raise LogError(_unknown(path, why))


def _read_table(table: Table, options: Options) -> list[ImportedRun]:
    if options.mapping is None:
        return ours.read(table, options.restarts)
    return mapped.read(table, options.mapping, options)


def propose(paths: list[Path], name: str | None) -> str:
    """A mapping for one file, or the text of the mapping `name`, to be adapted.

    Raises:
        LogError: not one file, or no table in it.
    """
    if name is not None:
        load(name)
        path = SHIPPED / f"{name}.yaml"
        return (path if path.is_file() else Path(name)).read_text(encoding="utf-8")
    found = [path for given in paths for path in _files(given, "*", [])]
    if len(found) != 1:
        raise LogError(f"--propose takes one file, but these are {len(found)}")
    content = found[0].read_bytes()
    if tensorboard.recognises(found[0].name, content):
        return mapped.propose(tensorboard.open_events(found))
    try:
        return mapped.propose(open_table(found[0], content, None))
    except LogError as error:
        text = "Lines of text are read by a pattern that you write: docs/importing.md shows one"
        raise LogError(f"{error}. {text}") from None


def crashed(path: Path, content: bytes) -> ImportedRun | None:
    """A run that failed before its program logged anything: a log that ends in an exception."""
    builder = RunBuilder(path, content, "crash")
    for line in lines(content):
        builder.follow_traceback(line.number, line.text, False)
    return builder.finish(finished=False) if builder.error else None


def _files(given: Path, names_read: str, complaints: list[str]) -> Iterator[Path]:
    """The file itself, or the logs below a folder; a folder that cannot be read is a complaint."""
    if given.is_file():
        yield given
        return
    if not given.is_dir():
        raise LogError(f"{given}: no such file or folder")
    found = []

    def unreadable(error: OSError) -> None:
        complaints.append(f"{error.filename}: {error.strerror or error}")

    for folder, _, files in os.walk(given, onerror=unreadable, followlinks=False):
        found += [
            Path(folder, name)
            for name in files
            if fnmatchcase(name, names_read)
            and any(fnmatchcase(name, glob) for glob in _LOGS)
            and not name.endswith(QUERIES)
        ]
    if not found and not complaints:
        raise LogError(f"{given}: no log below it. Looked for: {', '.join(_LOGS)}")
    yield from sorted(path for path in found if path.is_file())


def _unknown(path: Path, why: str) -> str:
    known = ", ".join(reader.name for reader in READERS)
    return (
        f"{path}: not read: {why}. Known programs: {known}. For any other, --as takes a shipped "
        f"mapping ({', '.join(shipped())}) or a file of yours; start one with: "
        f"sdtps import {path} --propose > mapping.yaml"
    )
