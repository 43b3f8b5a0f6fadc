"""Files that are whole or absent: written to a temporary name, synced, renamed into place."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content replaces `path` when the block ends: all of it, or nothing on an error.

    Raises:
        OSError: disk full, permission; it names `path`, the old file is untouched and no temporary file
            is left.
    """
    path = Path(path)
    try:
        with _replacing(path) as stream:
            yield stream
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # not a temporary name, or none at all
        raise


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)  # mkstemp makes it private; runs are read by the whole group
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` so that a reader sees the old file or the new one, never a part."""
    with replacing(path) as stream:
        stream.write(content)


def write_text(path: Path, content: str) -> None:
    """`write_bytes` in UTF-8 with the newlines as given."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Strict JSON (a NaN raises ValueError: it would make the file unreadable elsewhere)."""
    write_text(path, json.dumps(value, allow_nan=False, indent=indent, ensure_ascii=False) + "\n")


def sync_directory(directory: Path) -> None:
    """Make a rename inside `directory` durable; file systems that refuse are left alone."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
