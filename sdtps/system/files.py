"""Reading regular files, and writing files that are whole or absent.

Written files go to a temporary name, are synced, and are renamed into place: a reader sees the old file
or the new one, never a part. Reading never blocks: anything but a regular file (a directory, a pipe, a
broken link) counts as missing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})


@contextmanager
def open_regular(path: Path | str) -> Iterator[BinaryIO | None]:
    """`path` open for reading, or None where there is no regular file of that name.

    Raises:
        OSError: the file exists and cannot be read; the error names it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        yield None
        return
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            yield None
            return
        with open(handle, "rb", closefd=False) as stream:
            yield stream
    except OSError as error:
        error.filename = error.filename or os.fspath(path)  # a failing read names no file
        raise
    finally:
        os.close(handle)


def read_bytes(path: Path | str, last: int | None = None) -> bytes | None:
    """The bytes of `path`, or None where there is no regular file of that name.

    Args:
        last: read at most this many bytes, from the end.

    Raises:
        OSError: the file exists and cannot be read.
    """
    with open_regular(path) as stream:
        if stream is None:
            return None
        if last is not None:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - last))
        return stream.read(-1 if last is None else last)


def digest(data: bytes) -> str:
    """Digest of contents, 32 hexadecimal digits: equal contents, equal digest."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def oddity(path: Path | str) -> str | None:
    """`a directory` or `not a regular file`, where `path` is one; None for a file or nothing."""
    try:  # one look at what is there: it may come or go meanwhile
        mode = Path(path).stat(follow_symlinks=Path(path).exists()).st_mode
    except OSError:
        return None
    return None if stat.S_ISREG(mode) else "a directory" if stat.S_ISDIR(mode) else "not a regular file"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content replaces `path` when the block ends: all of it, or nothing on an error.

    Raises:
        OSError: disk full, permission; it names `path`, the old file is untouched and no temporary file
            is left.
    """
    path = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            # mkstemp makes it private; a group that shares the folder shares the file.
            shared = path.parent.stat().st_mode & stat.S_IWGRP
            temporary.chmod(0o664 if shared else 0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # not the temporary name
        raise
    sync_directory(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`."""
    with replacing(path) as stream:
        stream.write(content)


def write_text(path: Path, content: str) -> None:
    """`write_bytes` in UTF-8 with the newlines as given."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Strict JSON (NaN raises ValueError: it would make the file unreadable elsewhere)."""
    write_text(path, json.dumps(value, allow_nan=False, indent=indent, ensure_ascii=False) + "\n")


def finite_tree(value: Any) -> Any:
    """`value` as strict JSON can hold it, non-finite numbers as null at any depth."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def share(folder: Path) -> None:
    """Below a folder that its group may write to (`chmod g+ws runs`), so is what this process makes."""
    with suppress(OSError):
        if folder.stat().st_mode & stat.S_IWGRP:
            os.umask(os.umask(0o077) & ~0o070)


def sync_directory(directory: Path) -> None:
    """Make a rename inside `directory` durable, where the file system supports it."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
