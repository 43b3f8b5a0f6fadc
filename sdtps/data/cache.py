"""What is computed once and shared by every run that wants the same: one NumPy file for each array.

A file's name is a digest of all that decides its content. Jobs that start together wait for the first;
a file is whole or absent. Files are mapped into memory, so that the jobs of a node share their pages.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from sdtps.run.locations import made_below
from sdtps.system.errors import DataError

CACHE_VERSION = 1  # raise when the same inputs give other arrays


def cache_key(**parts: Any) -> str:
    """A digest of everything that decides an array."""
    text = json.dumps({"version": CACHE_VERSION, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def mapped_once(target: Path, shape: tuple[int, ...], write: Callable[[Path], None]) -> np.ndarray:
    """The array in `target` as a read-only memory map; `write` makes the file if no job has made it.

    Args:
        shape: of the array, or as much of it from the left as is known beforehand.
        write: is given another name in the same folder, so that `target` is whole or absent.

    Raises:
        DataError: a file that holds no such array (named; deleting it is safe); a folder that cannot be
            written and lacks the file.
    """
    if not target.exists():  # a cache that may only be read serves those who find their file in it
        with made_below(target.parent):
            _make(target, write)
    try:
        mapped: np.ndarray = np.load(target, mmap_mode="r")
        if mapped.shape[: len(shape)] != shape:
            raise ValueError(f"its shape is {mapped.shape}, expected {shape}")
        return mapped
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{target}: cannot be read ({error}); delete it to make it again") from None


def _make(target: Path, write: Callable[[Path], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Others of this node wait here and then find the file.
    with FileLock(target.parent / f".{target.name}.lock"):
        if not target.exists():
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            os.close(handle)
            temporary = Path(name)
            try:
                write(temporary)
                temporary.chmod(0o644)
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)


def new_map(target: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.memmap:
    """A new file that holds the array, its room taken at once.

    Without that the file is sparse, and a write to memory finds the disk full: SIGBUS, no exception.

    Raises:
        OSError: there is no room.
    """
    array = np.lib.format.open_memmap(target, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with target.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    return array


class Ragged:
    """Rows of different lengths in one array: row i is values[starts[i] : starts[i + 1]]."""

    def __init__(self, values: np.ndarray, lengths: np.ndarray) -> None:
        self.values = values
        self.lengths = np.asarray(lengths, np.int64)
        self.starts = np.concatenate([np.zeros(1, np.int64), self.lengths.cumsum()])

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, index: int) -> np.ndarray:
        return self.values[self.starts[index] : self.starts[index + 1]]


def padded(rows: Sequence[np.ndarray], fill: float = 0) -> tuple[Tensor, Tensor]:
    """Rows as one tensor (T, L, ...), filled up to the longest, and their lengths (T)."""
    lengths = torch.tensor([len(row) for row in rows])
    values = np.full((len(rows), int(lengths.max()), *rows[0].shape[1:]), fill, rows[0].dtype)
    for number, row in enumerate(rows):
        values[number, : len(row)] = row
    return torch.from_numpy(values), lengths
