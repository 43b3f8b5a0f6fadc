"""The bytes of a regular file, however odd the thing is that lies under its name.

A run folder is a place that people and programs leave things in. Opening a FIFO waits for a writer who
never comes, and a device may give bytes without an end: neither is opened to be waited for or read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# Nothing of that name, a symbolic link that leads nowhere or round in a circle, a socket.
_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})
CIRCLE, NOTHING = "a link round in a circle", "a link to nothing"
_ODD = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_NEVER_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)


def content(path: Path | str, last: int | None = None) -> bytes | None:
    """The bytes of `path`, or None where no regular file is to be had under that name.

    Args:
        last: no more than so many bytes, from the end.

    Raises:
        OSError: there is a file, and it may not or cannot be read.
    """
    with opened(path) as stream:
        if stream is None:
            return None
        if last is not None:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - last))
        return stream.read(-1 if last is None else last)


@contextmanager
def opened(path: Path | str) -> Iterator[BinaryIO | None]:
    """`path` open for reading, or None where no regular file is to be had under that name.

    Raises:
        OSError: there is a file, and it may not or cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | _NEVER_WAIT)
    except OSError as error:
        if error.errno not in _NOTHING:
            raise
        handle = -1
    if handle < 0:
        yield None
        return
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            yield None
            return
        with open(handle, "rb", closefd=False) as stream:
            yield stream
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)  # reading knows no name
        raise
    finally:
        os.close(handle)


def oddity(path: Path | str) -> str | None:
    """What lies under that name instead of a file, such as `a FIFO`; None: a file, or nothing."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        if not Path(path).is_symlink():
            return None
        return CIRCLE if error.errno == errno.ELOOP else NOTHING
    return next((word for of_kind, word in _ODD if of_kind(mode)), None)
