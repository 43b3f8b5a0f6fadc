"""Triples of images as batches, by three pipelines that give the same kind of batch.

`jpeg` decodes at every access and is the reference. `cached` decodes and resizes once, keeps uint8 and
augments in batches: one memory-mapped file per split serves all jobs of a node, and on a GPU with room
it is copied there whole. With a frozen backbone its cached outputs stand in for the images.

`absent` names modalities that the data set lacks (letters of r, n, t): they are zero in every batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sdtps.config.reid import ReidDataConfig
from sdtps.data.augment import (
    AugmentConfig,
    BatchAugmentation,
    augment_image,
    image_statistics,
    normalise,
    normalise_,
)
from sdtps.data.cache import mapped_once, new_map
from sdtps.data.contents import digest
from sdtps.data.images import BICUBIC, BILINEAR, open_image, raise_mistakes
from sdtps.data.reid_folders import Sample, third, too_few
from sdtps.system import distributed
from sdtps.system.errors import DataError

DECODING_VERSION = 2  # raise when a file gives other pixels; 2: EXIF rotation, 16 bits
RESIDENT_SHARE = 0.25  # of the GPU's free memory that a split may take
_LETTERS = "rnt"  # modalities in `eval.missing`


@dataclass
class ReidBatch:
    """Images float32 [M, B, 3, H, W] in the order rgb, nir, tir; labels and camids int64 [B].

    With a frozen backbone `images` are its outputs [M, B, 1 + N, C], the class token first.
    """

    images: Tensor
    labels: Tensor
    camids: Tensor

    def to(self, device: torch.device) -> ReidBatch:
        return ReidBatch(
            self.images.to(device, non_blocking=True),
            self.labels.to(device, non_blocking=True),
            self.camids.to(device, non_blocking=True),
        )

    def without(self, missing: str) -> ReidBatch:
        """See `without`."""
        return ReidBatch(without(self.images, missing), self.labels, self.camids)

    def pin_memory(self) -> ReidBatch:
        """Called by torch's DataLoader."""
        return ReidBatch(self.images.pin_memory(), self.labels.pin_memory(), self.camids.pin_memory())


def without(images: Tensor, missing: str) -> Tensor:
    """Images [M, B, ...] with those of missing modalities (letters of r, n, t) zeroed."""
    if missing in ("", "nothing"):
        return images
    images = images.clone()
    for modality, letter in enumerate(_LETTERS):
        if letter in missing:
            images[modality] = 0
    return images


def decode(sample: Sample, config: ReidDataConfig, resampling: Image.Resampling) -> list[np.ndarray]:
    """The three modalities of a sample as uint8 [height, width, 3].

    Raises:
        DataError: a file that cannot be decoded to its end, or be cut into three (named).
    """
    opened = {path: open_image(path, config.bits) for path in dict.fromkeys(sample.images)}
    images = [opened[path] for path in sample.images]
    if sample.side_by_side:
        images = [third(image, sample.images[0], m) for m, image in enumerate(images)]
    return [np.asarray(image.resize((config.width, config.height), resampling)) for image in images]


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


# -- images decoded at every access -----------------------------------------------------------------


def augment_config(config: ReidDataConfig) -> AugmentConfig:
    """The part of a data configuration that augmentation needs."""
    by_image = config.normalise == "image"
    return AugmentConfig(config.height, config.width, config.flip, config.pad, config.erase, by_image)


class TrainImages(Dataset[tuple[np.ndarray, int, int]]):
    """Augmented triples by (epoch, position in the epoch, sample): each access draws for itself."""

    def __init__(self, samples: Sequence[Sample], config: ReidDataConfig, seed: int) -> None:
        self.samples = samples
        self.config = config
        self.augment = augment_config(config)
        self.seed = seed

    def __getitem__(self, place: tuple[int, int, int]) -> tuple[np.ndarray, int, int]:
        epoch, position, index = place
        sample = self.samples[index]
        decoded = decode(sample, self.config, BICUBIC)
        rng = np.random.default_rng([self.seed, epoch, position, 102])
        images = np.stack([augment_image(pixels, self.augment, rng) for pixels in decoded])
        return images, sample.label, sample.camid


class TestImages(Dataset[tuple[np.ndarray, int, int]]):
    """Resized and normalised triples in the order of `samples`."""

    __test__ = False  # for pytest: no test class

    def __init__(
        self,
        samples: Sequence[Sample],
        config: ReidDataConfig,
        resampling: Image.Resampling = BILINEAR,
    ) -> None:
        self.samples = samples
        self.config = config
        self.resampling = resampling

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int, int]:
        sample = self.samples[index]
        decoded = decode(sample, self.config, self.resampling)
        by_image = self.config.normalise == "image"
        images = [normalise(pixels, pixels if by_image else None) for pixels in decoded]
        return np.stack(images), sample.label, sample.camid


def collate(rows: list[tuple[np.ndarray, int, int]]) -> ReidBatch:
    """Samples to a batch with the modality axis first."""
    images, labels, camids = zip(*rows, strict=True)
    return ReidBatch(
        torch.from_numpy(np.stack(images, axis=1)), torch.tensor(labels), torch.tensor(camids)
    )


class _EpochBatches:
    """Batch sampler of the epoch and from the batch that is asked for, for this process."""

    def __init__(self, sampler: PkSampler) -> None:
        self.sampler = sampler
        self.epoch = 1
        self.first = 0

    def __len__(self) -> int:
        return self.sampler.batches

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        order = self.sampler.epoch(self.epoch)
        size = order.shape[1]
        for number in range(self.first, len(order)):
            places = [(self.epoch, number * size + i, int(order[number, i])) for i in range(size)]
            yield places[own_rows(size)]


class JpegBatches:
    """Training batches from JPEG files; workers decode ahead and cannot change the result."""

    def __init__(
        self,
        samples: Sequence[Sample],
        config: ReidDataConfig,
        seed: int,
        device: torch.device,
        absent: str = "",
    ) -> None:
        self.absent = absent
        sampler = PkSampler([s.label for s in samples], config.batch_size, config.instances, seed)
        self.batches = _EpochBatches(sampler)
        self.loader = _loader(
            TrainImages(samples, config, seed), config, device, batch_sampler=self.batches
        )
        self.steps_per_epoch = sampler.batches
        self.device = device

    def epoch(self, epoch: int, first: int) -> Iterator[ReidBatch]:
        """Batches `first`, `first` + 1, ... of `epoch` on the device."""
        self.batches.epoch, self.batches.first = epoch, first
        for batch in self.loader:
            yield batch.to(self.device).without(self.absent)


class JpegTestBatches:
    """Batches from JPEG files as they are evaluated, `test_batch_size` at a time."""

    def __init__(
        self,
        samples: Sequence[Sample],
        config: ReidDataConfig,
        device: torch.device,
        resampling: Image.Resampling = BILINEAR,
        absent: str = "",
    ) -> None:
        self.absent = absent
        self.loader = _loader(
            TestImages(samples, config, resampling), config, device, batch_size=config.test_batch_size
        )
        self.device = device

    def __iter__(self) -> Iterator[ReidBatch]:
        for batch in self.loader:
            yield batch.to(self.device).without(self.absent)


def _loader(
    dataset: Dataset[Any], config: ReidDataConfig, device: torch.device, **options: Any
) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        num_workers=config.workers,
        persistent_workers=config.workers > 0,
        collate_fn=collate,
        pin_memory=device.type == "cuda",
        # Without its own generator each pass over the loader would draw from the run's.
        generator=torch.Generator(),
        **options,
    )


# -- pixels or encoder outputs from the cache -------------------------------------------------------


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
    key = pixels_key(samples, config, resampling)
    target = folder / f"reid-{key}.npy"
    shape = (len(samples), 3, 3, config.height, config.width)
    return mapped_once(target, shape, lambda file: _decode_all(samples, config, resampling, file))


def pixels_key(samples: Sequence[Sample], config: ReidDataConfig, resampling: Image.Resampling) -> str:
    """Changes with what the files hold, and with how they are decoded and resized."""
    how = (config.height, config.width, config.bits, resampling.name, DECODING_VERSION)
    return digest(how, *(sample.digests for sample in samples))


def _decode_all(
    samples: Sequence[Sample], config: ReidDataConfig, resampling: Image.Resampling, target: Path
) -> None:
    shape = (len(samples), 3, 3, config.height, config.width)
    mistakes: list[str] = []
    pixels = new_map(target, np.dtype(np.uint8), shape)

    def fill(index: int) -> None:
        try:
            images = decode(samples[index], config, resampling)
        except DataError as error:
            mistakes.append(str(error))
            return
        pixels[index] = np.stack(images).transpose(0, 3, 1, 2)

    with ThreadPoolExecutor(max(1, config.workers)) as pool:  # Pillow decodes without the GIL
        list(pool.map(fill, range(len(samples))))
    raise_mistakes("images", sorted(mistakes))
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


class _CachedSplit:
    """A split's rows: pixels uint8 [n, M, 3, H, W], or tokens of an encoder [n, M, 1 + N, C]."""

    def __init__(
        self, samples: Sequence[Sample], array: np.ndarray, device: torch.device, absent: str
    ) -> None:
        self.rows = MappedRows(array, device)
        self.absent = absent
        self.holds_pixels = array.dtype == np.uint8
        self.labels = torch.tensor([s.label for s in samples], device=device)
        self.camids = torch.tensor([s.camid for s in samples], device=device)
        self.device = device

    def batch(self, images: Tensor, indices: np.ndarray) -> ReidBatch:
        """`images` [M, B, ...] with what is known of them."""
        index = torch.from_numpy(indices).to(self.device, non_blocking=True)
        batch = ReidBatch(images, self.labels[index], self.camids[index])
        return batch.without(self.absent) if self.holds_pixels else batch

    def tokens(self, indices: np.ndarray) -> Tensor:
        """[M, B, 1 + N, C]. NumPy has no bfloat16: its bits are kept as int16."""
        tokens = self.rows.rows(indices)
        if tokens.dtype == torch.int16:
            tokens = tokens.view(torch.bfloat16)
        return tokens.transpose(0, 1)


class CachedBatches(_CachedSplit):
    """Training batches from the cache; pixels are augmented, encoder outputs are taken as they are."""

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
        self.augment = BatchAugmentation(augment_config(config), device)
        self.own = own_rows(config.batch_size)

    def epoch(self, epoch: int, first: int) -> Iterator[ReidBatch]:
        """Batches `first`, `first` + 1, ... of `epoch` on the device."""
        order = self.sampler.epoch(epoch)
        for number in range(first, len(order)):
            indices = order[number][self.own]
            if self.holds_pixels:
                rng = np.random.default_rng([self.seed, epoch, number, self.own.start, 103])
                rows = self.rows.views if self.device.type == "cpu" else self.rows.rows
                images = self.augment(rows(indices), rng)
            else:
                images = self.tokens(indices)
            yield self.batch(images, indices)


class CachedTestBatches(_CachedSplit):
    """Batches from the cache as they are evaluated, in the order of `samples`."""

    def __init__(
        self,
        samples: Sequence[Sample],
        array: np.ndarray,
        config: ReidDataConfig,
        device: torch.device,
        absent: str = "",
    ) -> None:
        super().__init__(samples, array, device, absent)
        self.size = config.test_batch_size
        self.by_image = config.normalise == "image"

    def __iter__(self) -> Iterator[ReidBatch]:
        for start in range(0, len(self.labels), self.size):
            indices = np.arange(start, min(start + self.size, len(self.labels)))
            if self.holds_pixels:
                pixels = self.rows.rows(indices).transpose(0, 1)
                statistics = image_statistics(pixels) if self.by_image else None
                images = normalise_(pixels.to(torch.float32), statistics)
            else:
                images = self.tokens(indices)
            yield self.batch(images, indices)
