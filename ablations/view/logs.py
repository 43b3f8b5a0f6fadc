"""The logs of one run, from its beginning and, with -f, as they grow."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sdtps.commandline import add_runs_dir
from sdtps.files import oddity, open_regular, read_bytes
from sdtps.run.folder import RunFolder

_POLL_SECONDS = 1.0


def log_files(folder: Path) -> list[Path]:
    """train.log first, then the scheduler's (it alone speaks before Python starts)."""
    run = RunFolder(folder)
    scheduler = sorted(p for p in run.submitit_folder.glob("*") if p.suffix in (".log", ".out", ".err"))
    return [p for p in (run.log_file, *scheduler) if os.path.lexists(p)]


def has_ended(folder: Path) -> bool:
    """The run says of itself that it came to an end."""
    run = RunFolder(folder)
    status = run.status()
    return run.result_file.exists() or (status or {}).get("state") in (
        "diverged",
        "failed",
        "cancelled",
    )


def read(folder: Path) -> Iterator[str]:
    """Every log, headed by its name."""
    files = log_files(folder)
    if not files:
        yield f"{folder}: no log yet"
    for file in files:
        yield f"==> {file}"
        try:
            content = read_bytes(file)
        except OSError as error:
            yield f"cannot be read: {error.strerror}"
            continue
        if content is None:
            yield f"is {oddity(file) or 'gone'}"
        else:
            yield content.decode(errors="replace").rstrip("\n")


def follow(folder: Path, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Lines of train.log as they come, until the run has ended. Earlier lines first."""
    file = RunFolder(folder).log_file
    rest, offset = b"", 0
    while True:
        ended = has_ended(folder)  # before reading: what was written until then is still shown
        try:
            with open_regular(file) as stream:
                if stream is None:
                    raise FileNotFoundError(file)
                if stream.seek(0, 2) < offset:
                    rest, offset = b"", 0
                stream.seek(offset)
                added = stream.read()
        except OSError:
            added = b""
        offset += len(added)
        *lines, rest = (rest + added).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
        if ended:
            if rest:
                yield rest.decode(errors="replace")
            return
        sleep(_POLL_SECONDS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="its folder, or enough of its name")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    add_runs_dir(parser)


def command(arguments: argparse.Namespace) -> int:
    from ablations.study.arguments import find_folder

    folder = find_folder(arguments.run, arguments.runs_dir.resolve())
    for line in follow(folder) if arguments.follow else read(folder):
        print(line, flush=True)
    return 0
