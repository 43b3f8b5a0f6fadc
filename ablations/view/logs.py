"""The logs of one run, from its beginning and, with -f, as they grow."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ablations.store import states
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
    found = states.from_records(folder)
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


class Tail:
    """Whole lines that a file gets; one that became shorter is read again, after `again` was called."""

    def __init__(self, file: Path, again: Callable[[], object] = lambda: None) -> None:
        self.file, self.again = file, again
        self.rest, self._offset = b"", 0

    def lines(self) -> list[bytes]:
        """What came since the last call; of a file that cannot be read nothing."""
        try:
            with open_regular(self.file) as stream:
                if stream is None:
                    return []
                if stream.seek(0, 2) < self._offset:
                    self.rest, self._offset = b"", 0
                    self.again()
                stream.seek(self._offset)
                added = stream.read()
        except OSError:
            return []
        self._offset += len(added)
        *lines, self.rest = (self.rest + added).split(b"\n")
        return lines


def follow(folder: Path, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Lines of train.log as they come, until the run has ended, and how. Earlier lines first."""
    tail = Tail(RunFolder(folder).log_file)
    while True:
        end = end_of(folder)  # before reading: what was written until then is still shown
        yield from (line.decode(errors="replace") for line in tail.lines())
        if end is not None:
            if tail.rest:
                yield tail.rest.decode(errors="replace")
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
