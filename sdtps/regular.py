"""The bytes of a regular file, however odd the thing is that lies under its name.

A run folder is a place that people and programs leave things in. Opening a FIFO waits for a writer who
never comes, and a device may give bytes without an end: neither is opened to be waited for or read.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# Nothing of that name, a symbolic link that leads nowhere or round in a circle, a socket.
_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})
_NEVER_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)


def content(path: Path | str, last: int | None = None) -> bytes | None:
    """The bytes of `path`, or None where no regular file is to be had under that name.

    Args:
        last: no more than so many bytes, from the end.

    Raises:
        OSError: there is a file, and it may not or cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | _NEVER_WAIT)
    except OSError as error:
        if error.errno in _NOTHING:
            return None
        raise
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return None
        with open(handle, "rb", closefd=False) as stream:
            if last is not None and found.st_size > last:
                stream.seek(found.st_size - last)
            return stream.read(-1 if last is None else last)
    except OSError as error:
        error.filename = os.fspath(path)  # reading knows no name
        raise
    finally:
        os.close(handle)
