"""The logs of one run, from its beginning and, with -f, as they grow."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ablations.store import life
from sdtps.run.folder import RunFolder
from sdtps.system.commandline import add_runs_dir
from sdtps.system.files import oddity, open_regular

_POLL_SECONDS = 1.0


def log_files(folder: Path) -> list[Path]:
    """train.log first, then the scheduler's (it alone speaks before Python starts)."""
    run = RunFolder(folder)
    scheduler = sorted(p for p in run.submitit_folder.glob("*") if p.suffix in (".log", ".out", ".err"))
    return [p for p in (run.log_file, *scheduler) if os.path.lexists(p)]


def end_of(folder: Path) -> str | None:
    """How the run ended, or that nothing is known of it; None while it is active."""
    found = life.from_records(folder)
    waits = found.state == "planned" or (found.state == "unknown" and not found.status)
    if found.active or waits:
        return None
    return f"{found.state}: {found.reason}" if found.reason else found.state


def read(folder: Path) -> Iterator[str]:
    """Every log, headed by its name."""
    files = log_files(folder)
    if not files:
        yield f"{folder}: no log yet"
    for file in files:
        yield f"==> {file}"
        try:
            with open_regular(file) as stream:
                if stream is None:
                    yield f"is {oddity(file) or 'gone'}"
                else:
                    yield from (line.decode(errors="replace").rstrip("\n") for line in stream)
        except OSError as error:
            yield f"cannot be read: {error.strerror}"


def follow(folder: Path, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Lines of train.log as they come, until the run has ended, and how. Earlier lines first."""
    file = RunFolder(folder).log_file
    rest, offset = b"", 0
    while True:
        end = end_of(folder)  # before reading: what was written until then is still shown
        try:
            with open_regular(file) as stream:
                if stream is None:
                    raise FileNotFoundError(file)
                if stream.seek(0, 2) < offset:
                    rest, offset = b"", 0
                stream.seek(offset)
                for line in stream:
                    offset += len(line)
                    rest += line
                    if rest.endswith(b"\n"):
                        yield rest[:-1].decode(errors="replace")
                        rest = b""
        except OSError:
            pass
        if end is not None:
            if rest:
                yield rest.decode(errors="replace")
            if end != "completed":
                yield f"==> {end}"
            return
        sleep(_POLL_SECONDS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="its folder, or enough of its name")
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing until the run ends")
    add_runs_dir(parser)


def command(arguments: argparse.Namespace) -> int:
    from sdtps.run.locations import find_folder

    folder = find_folder(arguments.run, arguments.runs_dir.resolve())
    for line in follow(folder) if arguments.follow else read(folder):
        print(line, flush=True)
    return 0
