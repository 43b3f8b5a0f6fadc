"""What files hold, by digest; and the stat cache that makes every look after the first a cheap one.

As git's index does it: a digest is kept with the file's size, times of change and inode, and while
these stay, the file is not read again. The cache is a JSON file for each data folder, below
`cache_root`. Names, sizes and times of data never stand for what they hold.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from sdtps.run.locations import cache_root
from sdtps.system.errors import DataError
from sdtps.system.files import read_bytes, write_text

# A file written again within one tick of its file system's clock keeps its time of change. One that was
# read so soon after its last change is read again next time. Some file systems count whole seconds.
TICK_NS, COARSE_TICK_NS = 50_000_000, 2_000_000_000
AT_ONCE = 64  # files that a thread reads between two reports
REPORTED_FROM = 500  # files to read; reading fewer takes no time to speak of
START = 32  # bytes of a file that `check` is given

Check = Callable[[Path, bytes], str | None]


def values_digest(*parts: object) -> str:
    """32 hexadecimal digits of some values, each as a line of text."""
    return hashlib.blake2b("".join(f"{p}\n" for p in parts).encode(), digest_size=16).hexdigest()


def file_digest(file: Path) -> str:
    """The digest of one file, through the cache of its folder.

    Raises:
        DataError: it cannot be read.
    """
    found, wrong = look(file.parent, [file])
    if wrong:
        raise DataError(f"{file}: {wrong[file]}")
    return found[file]


def look(
    root: Path, files: Iterable[Path], check: Check = lambda file, start: None
) -> tuple[dict[Path, str], dict[Path, str]]:
    """The digest of each file, and what is wrong with those that have none.

    Args:
        root: the folder that the files lie in; each has a cache of its own.
        check: what is wrong with a file that starts with these bytes, asked when it is read; None for a
            good one.
    """
    files = list(dict.fromkeys(files))
    place = cache_root() / f"contents-{values_digest(root.absolute())}.json"
    known = _read_cache(place)
    found, todo = _compared(files, known)
    wrong: dict[Path, str] = {}
    if todo:
        with _alone(place):  # others of this node wait for the first and find what it read
            known = _read_cache(place)
            found, todo = _compared(files, known)
            fresh = {}
            for file, here, mark in _read_all(todo, check):
                if mark is None:
                    wrong[file] = here
                else:
                    found[file] = here
                    fresh[str(file.absolute())] = [mark, here]
            if any(mark for mark, _ in fresh.values()):
                _write_cache(place, {**known, **{k: v for k, v in fresh.items() if v[0]}})
    return found, wrong


def _compared(
    files: Sequence[Path], known: Mapping[str, list[str]]
) -> tuple[dict[Path, str], list[Path]]:
    """The digests of files that are as they were, and the files that must be read."""
    found, todo = {}, []
    for file in files:
        entry = known.get(str(file.absolute()))
        if entry is not None and entry[0] == _mark_of(file):
            found[file] = entry[1]
        else:
            todo.append(file)
    return found, todo


def _mark_of(file: Path) -> str:
    try:
        return _mark(file.stat())
    except OSError:
        return ""


def _mark(state: os.stat_result) -> str:
    """What changes whenever a file is written or replaced, its times set back or not."""
    return f"{state.st_size} {state.st_mtime_ns} {state.st_ctime_ns} {state.st_ino}"


def _read_all(files: Sequence[Path], check: Check) -> Iterator[tuple[Path, str, str | None]]:
    """(file, digest, mark) of each, or (file, what is wrong, None); "" marks what is not to be kept."""
    parts = [files[k : k + AT_ONCE] for k in range(0, len(files), AT_ONCE)]
    # Reading and digesting leave Python's lock; a disk on the network answers many at once.
    with ThreadPoolExecutor(min(32, 4 * (os.cpu_count() or 1))) as pool:
        read: Iterable[Any] = pool.map(lambda part: [(f, *_read(f, check)) for f in part], parts)
        if len(files) >= REPORTED_FROM and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import track

            said = f"Reading {len(files)} files once"
            read = track(read, said, len(parts), console=Console(stderr=True), transient=True)
        for part in read:
            yield from part


def _read(file: Path, check: Check) -> tuple[str, str | None]:
    try:
        with file.open("rb") as stream:
            state = os.fstat(stream.fileno())
            if not stat.S_ISREG(state.st_mode):
                return "is no regular file", None
            begun = time.time_ns()
            start = stream.read(START)
            wrong = check(file, start)
            if wrong is not None:
                return wrong, None
            stream.seek(0)
            here = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
            mark = _mark(os.fstat(stream.fileno()))
    except FileNotFoundError:
        return "is missing", None
    except OSError as error:
        return f"cannot be read: {error.strerror}", None
    tick = TICK_NS if state.st_ctime_ns % 1_000_000_000 else COARSE_TICK_NS
    settled = begun - max(state.st_ctime_ns, state.st_mtime_ns) > tick
    return here, mark if settled and mark == _mark(state) else ""


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """One process of this machine at a time; without a lock where the cache cannot be written."""
    with ExitStack() as held:
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(place.with_name(f".{place.name}.lock")))
        yield


def check_once(name: str, check: Callable[[], object]) -> None:
    """Call `check`, which raises what is wrong, unless the cache records that it has passed.

    Args:
        name: a digest of all that decides.
    """
    record = cache_root() / f"checked-{name}"
    if record.exists():
        return
    with _alone(record):  # others of this node wait for the first
        if not record.exists():
            check()
            with suppress(OSError):  # a cache that cannot be written: each checks for itself
                record.touch()


def _read_cache(place: Path) -> dict[str, list[str]]:
    """Absolute path to [mark, digest]; empty where there is no cache that can be read."""
    try:
        tree = json.loads(read_bytes(place) or b"{}")
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _write_cache(place: Path, entries: Mapping[str, list[str]]) -> None:
    with suppress(OSError):  # looking does not need a cache
        write_text(place, json.dumps(entries, separators=(",", ":")))
