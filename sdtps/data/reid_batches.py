"""Triples of images as batches, decoded and resized once and kept as uint8.

One memory-mapped file per split serves all jobs of a node, and on a GPU with room it is copied there
whole. With a frozen backbone its cached outputs stand in for the images.

`absent` names modalities that the data set lacks (letters of r, n, t): they are zero in every batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sdtps.config.reid import MODALITY_LETTERS, ReidDataConfig
from sdtps.data.augment import BatchAugmentation, normalise_
from sdtps.data.cache import mapped_once, new_map
from sdtps.data.contents import values_digest
from sdtps.data.images import open_image, raise_mistakes
from sdtps.data.reid_folders import Sample, third, too_few
from sdtps.system import distributed
from sdtps.system.errors import DataError

DECODING_VERSION = 2  # raise when a file gives other pixels; 2: EXIF rotation, 16 bits
RESIDENT_SHARE = 0.25  # of the GPU's free memory that a split may take


class ReidBatch(NamedTuple):
    """Images float32 [M, B, 3, H, W] in the order rgb, nir, tir; labels and camids int64 [B].

    With a frozen backbone `images` are its outputs [M, B, 1 + N, C], the class token first.
    """

    images: Tensor
    labels: Tensor
    camids: Tensor


def without(images: Tensor, missing: str) -> Tensor:
    """Images [M, B, ...] with those of missing modalities (letters of r, n, t) zeroed."""
    if missing in ("", "nothing"):
        return images
    images = images.clone()
    for modality, letter in enumerate(MODALITY_LETTERS):
        if letter in missing:
            images[modality] = 0
    return images


def decode(sample: Sample, config: ReidDataConfig, resampling: Image.Resampling) -> np.ndarray:
    """The three modalities of a sample as uint8 [M, 3, height, width].

    Raises:
        DataError: a file that cannot be decoded to its end, or be cut into three (named).
    """
    opened = {path: open_image(path, config.bits) for path in dict.fromkeys(sample.images)}
    images = [opened[path] for path in sample.images]
    if sample.side_by_side:
        images = [third(image, sample.images[0], m) for m, image in enumerate(images)]
    resized = [image.resize((config.width, config.height), resampling) for image in images]
    return np.stack([np.asarray(image) for image in resized]).transpose(0, 3, 1, 2)


def own_rows(batch_size: int) -> slice:
    """This process's part of a batch.

    Raises:
        DataError: the processes cannot share the batch evenly.
    """
    world, rank = distributed.world_size(), distributed.rank()
    if batch_size % world:
        raise DataError(f"a batch of {batch_size} cannot be shared evenly by {world} processes")
    return slice(rank * batch_size // world, (rank + 1) * batch_size // world)


# -- identity sampling ------------------------------------------------------------------------------


class PkSampler:
    """Batches of `batch_size / instances` identities with `instances` images each.

    Follows DeMo's RandomIdentitySampler: each identity's images are shuffled and cut into groups of K
    (an identity with fewer than K images is filled by drawing again), a batch takes one group of each
    of P identities drawn at random. Two deliberate differences: the order is a function of (seed,
    epoch) alone, and every epoch has the same number of batches: where fewer than P identities have
    groups left, the others are shuffled anew (DeMo ends the epoch there).

    Args:
        labels: identity of each training sample.

    Raises:
        DataError: fewer identities than a batch needs.
    """

    def __init__(self, labels: Sequence[int], batch_size: int, instances: int, seed: int) -> None:
        self.instances = instances
        self.identities_per_batch = batch_size // instances
        self.seed = seed
        self.members: dict[int, np.ndarray] = {
            label: np.flatnonzero(np.asarray(labels) == label) for label in sorted(set(labels))
        }
        if len(self.members) < self.identities_per_batch:
            raise DataError(too_few(len(self.members), self.identities_per_batch))
        groups = sum(max(1, len(m) // instances) for m in self.members.values())
        self.batches = max(1, groups // self.identities_per_batch)

    def epoch(self, epoch: int) -> np.ndarray:
        """Sample indices [batches, batch_size] of `epoch` (from 1)."""
        rng = np.random.default_rng([self.seed, epoch, 101])
        groups = {label: self._groups(label, rng) for label in self.members}
        order = []
        for _ in range(self.batches):
            open_labels = [label for label, left in groups.items() if left]
            if len(open_labels) < self.identities_per_batch:
                for label, left in groups.items():
                    if not left:
                        groups[label] = self._groups(label, rng)
                open_labels = list(groups)
            chosen = rng.choice(len(open_labels), self.identities_per_batch, replace=False)
            order.append(np.concatenate([groups[open_labels[i]].pop() for i in chosen]))
        return np.stack(order)

    def _groups(self, label: int, rng: np.random.Generator) -> list[np.ndarray]:
        members = self.members[label]
        if len(members) < self.instances:
            return [rng.choice(members, self.instances, replace=True)]
        shuffled = rng.permutation(members)
        whole = len(members) // self.instances
        return np.split(shuffled[: whole * self.instances], whole)


# -- pixels or encoder outputs ----------------------------------------------------------------------


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
    shape = (len(samples), 3, 3, config.height, config.width)

    def write(target: Path) -> None:
        mistakes: list[str] = []
        pixels = new_map(target, np.dtype(np.uint8), shape)

        def fill(index: int) -> None:
            try:
                pixels[index] = decode(samples[index], config, resampling)
            except DataError as error:
                mistakes.append(str(error))

        with ThreadPoolExecutor(max(1, config.workers)) as pool:  # Pillow decodes without the GIL
            list(pool.map(fill, range(len(samples))))
        raise_mistakes("images", sorted(mistakes))
        pixels.flush()

    return mapped_once(folder / f"reid-{pixels_key(samples, config, resampling)}.npy", shape, write)


def pixels_key(samples: Sequence[Sample], config: ReidDataConfig, resampling: Image.Resampling) -> str:
    """Changes with what the files hold, and with how they are decoded and resized."""
    how = (config.height, config.width, config.bits, resampling.name, DECODING_VERSION)
    return values_digest(how, *(sample.digests for sample in samples))


class _Split:
    """A split's rows: pixels uint8 [n, M, 3, H, W], or tokens of an encoder [n, M, 1 + N, C].

    They are gathered on a GPU if they fit there, else copied from the map.
    """

    def __init__(
        self, samples: Sequence[Sample], array: np.ndarray, device: torch.device, absent: str
    ) -> None:
        self.array = array
        self.absent = absent
        self.device = device
        self.holds_pixels = array.dtype == np.uint8
        self.labels = torch.tensor([s.label for s in samples], device=device)
        self.camids = torch.tensor([s.camid for s in samples], device=device)
        self.resident: Tensor | None = None
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if array.nbytes <= RESIDENT_SHARE * free:
                self.resident = torch.from_numpy(np.array(array)).to(device)

    def rows(self, indices: np.ndarray) -> Tensor | list[np.ndarray]:
        """Rows [B, ...] of the map's own type; on a CPU as they lie, read-only and not yet read."""
        if self.device.type == "cpu":
            return [self.array[index] for index in indices]
        if self.resident is not None:
            return self.resident[self._on_device(indices)]
        return self._on_device(self.array[indices])

    def _on_device(self, values: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(values)
        pinned = tensor.pin_memory() if self.device.type == "cuda" else tensor
        return pinned.to(self.device, non_blocking=True)

    def batch(self, images: Tensor, indices: np.ndarray) -> ReidBatch:
        """`images` [M, B, ...] with what is known of them."""
        index = self._on_device(indices)
        shown = without(images, self.absent) if self.holds_pixels else images
        return ReidBatch(shown, self.labels[index], self.camids[index])

    def stacked(self, indices: np.ndarray) -> Tensor:
        """[M, B, ...] on the device. NumPy has no bfloat16: its bits are kept as int16."""
        rows = self.rows(indices)
        tensor = rows if isinstance(rows, Tensor) else torch.from_numpy(np.stack(rows))
        if tensor.dtype == torch.int16:
            tensor = tensor.view(torch.bfloat16)
        return tensor.transpose(0, 1)


class TrainBatches(_Split):
    """Training batches; pixels are augmented, encoder outputs are taken as they are."""

    def __init__(
        self,
        samples: Sequence[Sample],
        array: np.ndarray,
        config: ReidDataConfig,
        seed: int,
        device: torch.device,
        absent: str = "",
    ) -> None:
        super().__init__(samples, array, device, absent)
        labels = [s.label for s in samples]
        self.sampler = PkSampler(labels, config.batch_size, config.instances, seed)
        self.steps_per_epoch = self.sampler.batches
        self.seed = seed
        self.augment = BatchAugmentation(config, device)
        self.own = own_rows(config.batch_size)

    def epoch(self, epoch: int, first: int) -> Iterator[ReidBatch]:
        """Batches `first`, `first` + 1, ... of `epoch` on the device."""
        for number, whole in enumerate(self.sampler.epoch(epoch)[first:], first):
            indices = whole[self.own]
            if self.holds_pixels:
                rng = np.random.default_rng([self.seed, epoch, number, self.own.start, 103])
                images = self.augment(self.rows(indices), rng)
            else:
                images = self.stacked(indices)
            yield self.batch(images, indices)


class TestBatches(_Split):
    """Batches as they are evaluated, in the order of `samples`, `size` at a time."""

    __test__ = False  # for pytest: no test class

    def __init__(
        self,
        samples: Sequence[Sample],
        array: np.ndarray,
        size: int,
        device: torch.device,
        absent: str = "",
    ) -> None:
        super().__init__(samples, array, device, absent)
        every = np.arange(len(samples))
        self.wanted = [every[k : k + size] for k in every[::size]]

    def __iter__(self) -> Iterator[ReidBatch]:
        for indices in self.wanted:
            images = self.stacked(indices)
            if self.holds_pixels:
                images = normalise_(images.to(torch.float32))
            yield self.batch(images, indices)
