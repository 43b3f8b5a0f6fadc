"""Outputs of frozen encoders, computed once and shared by every run that wants the same.

One safetensors file for each (texts or images, encoder weights, limits): its name is a digest of all
that decides its content. Jobs that start together wait for the first; a file is whole or absent.
Features are kept in float16: what a frozen encoder's rounding costs is far below what training moves.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from sdtps.errors import DataError
from sdtps.files import write_bytes
from sdtps.run.locations import made_below

FEATURES_VERSION = 1  # raise when the same inputs give other features


def feature_key(**parts: Any) -> str:
    """A digest of everything that decides the features."""
    text = json.dumps({"version": FEATURES_VERSION, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def state_digest(module: nn.Module) -> str:
    """sha256 of a module's parameters and buffers with their names."""
    digest = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        digest.update(key.encode())
        digest.update(np.ascontiguousarray(value.cpu().numpy()).tobytes())
    return digest.hexdigest()


def cached(folder: Path, key: str, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of `key`, from `folder` or computed and put there.

    Raises:
        DataError: a cache file that cannot be read (named; deleting it is safe).
    """
    target = folder / f"features-{key}.safetensors"
    if not target.exists():
        with made_below(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f".{target.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # others of this node wait and then find the file
                if not target.exists():
                    write_bytes(target, save(compute()))
    try:
        return load_file(target)
    except Exception as error:  # safetensors raises its own type, and whatever the disk does
        raise DataError(f"{target}: cannot be read ({error}); delete it to compute it again") from None


class Ragged:
    """Rows of different lengths in one tensor: row i is values[starts[i] : starts[i + 1]]."""

    def __init__(self, values: Tensor, lengths: Tensor) -> None:
        self.values = values
        self.lengths = lengths
        self.starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])

    @classmethod
    def of(cls, rows: Iterable[Tensor]) -> Ragged:
        rows = list(rows)
        return cls(torch.cat(rows), torch.tensor([len(row) for row in rows]))

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(self, indices: Sequence[int], fill: float = 0) -> tuple[Tensor, Tensor]:
        """Rows (T, L, ...) of `indices`, filled up to the longest, and their lengths (T)."""
        lengths = self.lengths[torch.as_tensor(indices)]
        shape = (len(lengths), int(lengths.max()), *self.values.shape[1:])
        rows = self.values.new_full(shape, fill)
        for row, index in enumerate(indices):
            start, end = int(self.starts[index]), int(self.starts[index + 1])
            rows[row, : end - start] = self.values[start:end]
        return rows, lengths
