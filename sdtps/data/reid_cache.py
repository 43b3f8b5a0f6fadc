"""The cached pipeline: images decoded and resized once, kept as uint8, augmented in batches.

One memory-mapped file per split serves all jobs of a node; on a GPU with room it is copied there whole.
The JPEG path (`reid_images`) is the reference: same pixels, same distribution of augmentation.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sdtps.config.reid import ReidDataConfig
from sdtps.data.augment import BatchAugmentation, normalise_
from sdtps.data.reid_folders import MISTAKES_SHOWN, Sample
from sdtps.data.reid_images import BICUBIC, BILINEAR, ReidBatch, augment_config, decode, own_rows
from sdtps.data.sampler import PkSampler
from sdtps.errors import DataError
from sdtps.run.locations import made_below

RESIDENT_SHARE = 0.25  # of the GPU's free memory that a split may take


def cached_pixels(
    samples: Sequence[Sample],
    config: ReidDataConfig,
    resampling: Image.Resampling,
    folder: Path,
) -> np.ndarray:
    """uint8 [samples, M, 3, H, W] as a read-only memory map; made first if no job has made it.

    Raises:
        DataError: files that cannot be decoded, all of them (named).
    """
    target = folder / f"reid-{pixels_key(samples, config, resampling)}.npy"
    shape = (len(samples), 3, 3, config.height, config.width)
    return mapped_once(target, shape, lambda file: _decode_all(samples, config, resampling, file))


def mapped_once(target: Path, shape: tuple[int, ...], write: Callable[[Path], None]) -> np.ndarray:
    """The array in `target` as a read-only memory map; `write` makes the file if no job has made it.

    The file is whole or absent: `write` is given another name in the same folder.

    Args:
        shape: of the array, or as much of it from the left as is known beforehand.

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
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others of this node wait and then find the file
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


def pixels_key(samples: Sequence[Sample], config: ReidDataConfig, resampling: Image.Resampling) -> str:
    """Changes with every file's path, size and time, and with the size they are brought to."""
    digest = hashlib.sha256(f"{config.height}x{config.width} {resampling.name}\n".encode())
    for sample in samples:
        for path in sample.images:
            state = path.stat()
            digest.update(f"{path.absolute()}:{state.st_size}:{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _decode_all(
    samples: Sequence[Sample], config: ReidDataConfig, resampling: Image.Resampling, target: Path
) -> None:
    shape = (len(samples), 3, 3, config.height, config.width)
    mistakes: list[str] = []
    pixels = new_map(target, np.dtype(np.uint8), shape)

    def fill(index: int) -> None:
        try:
            images = decode(samples[index], config.height, config.width, resampling)
        except DataError as error:
            mistakes.append(str(error))
            return
        pixels[index] = np.stack(images).transpose(0, 3, 1, 2)

    with ThreadPoolExecutor(max(1, config.workers)) as pool:  # Pillow decodes without the GIL
        list(pool.map(fill, range(len(samples))))
    if mistakes:
        shown = sorted(mistakes)[:MISTAKES_SHOWN]
        raise DataError(f"{len(mistakes)} image(s) cannot be read:\n  " + "\n  ".join(shown))
    pixels.flush()


class MappedRows:
    """Rows of a split on the device: gathered there if they fit, else copied from the map."""

    def __init__(self, mapped: np.ndarray, device: torch.device) -> None:
        self.mapped = mapped
        self.device = device
        self.resident: Tensor | None = None
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if mapped.nbytes <= RESIDENT_SHARE * free:
                self.resident = torch.from_numpy(np.array(mapped)).to(device)

    def rows(self, indices: np.ndarray) -> Tensor:
        """[len(indices), ...] of the map's own type."""
        if self.resident is not None:
            index = torch.from_numpy(indices).pin_memory().to(self.device, non_blocking=True)
            return self.resident[index]
        rows = torch.from_numpy(self.mapped[indices])
        return rows.pin_memory().to(self.device, non_blocking=True) if self._gpu else rows

    def views(self, indices: np.ndarray) -> list[np.ndarray]:
        """The rows themselves, on the host, read-only and not yet read."""
        return [self.mapped[index] for index in indices]

    @property
    def _gpu(self) -> bool:
        return self.device.type == "cuda"


class CachedBatches:
    """Training batches from the cache."""

    def __init__(
        self,
        samples: Sequence[Sample],
        config: ReidDataConfig,
        seed: int,
        device: torch.device,
        folder: Path,
    ) -> None:
        labels = [s.label for s in samples]
        self.sampler = PkSampler(labels, config.batch_size, config.instances, seed)
        self.steps_per_epoch = self.sampler.batches
        self.seed = seed
        self.pixels = MappedRows(cached_pixels(samples, config, BICUBIC, folder), device)
        self.augment = BatchAugmentation(augment_config(config), device)
        self.labels = torch.tensor(labels, device=device)
        self.camids = torch.tensor([s.camid for s in samples], device=device)
        self.own = own_rows(config.batch_size)

    def epoch(self, epoch: int, first: int) -> Iterator[ReidBatch]:
        """Batches `first`, `first` + 1, ... of `epoch` on the device."""
        order = self.sampler.epoch(epoch)
        for number in range(first, len(order)):
            indices = order[number][self.own]
            rng = np.random.default_rng([self.seed, epoch, number, self.own.start, 103])
            rows = self.pixels.views if self.labels.device.type == "cpu" else self.pixels.rows
            images = self.augment(rows(indices), rng)
            index = torch.from_numpy(indices).to(self.labels.device, non_blocking=True)
            yield ReidBatch(images, self.labels[index], self.camids[index])


class CachedTestBatches:
    """Batches from the cache as they are evaluated, in the order of `samples`."""

    def __init__(
        self,
        samples: Sequence[Sample],
        config: ReidDataConfig,
        device: torch.device,
        folder: Path,
        resampling: Image.Resampling = BILINEAR,
    ) -> None:
        self.pixels = MappedRows(cached_pixels(samples, config, resampling, folder), device)
        self.labels = torch.tensor([s.label for s in samples], device=device)
        self.camids = torch.tensor([s.camid for s in samples], device=device)
        self.size = config.test_batch_size

    def __iter__(self) -> Iterator[ReidBatch]:
        for start in range(0, len(self.labels), self.size):
            rows = slice(start, start + self.size)
            indices = np.arange(start, min(start + self.size, len(self.labels)))
            pixels = self.pixels.rows(indices).transpose(0, 1)
            yield ReidBatch(normalise_(pixels.to(torch.float32)), self.labels[rows], self.camids[rows])
