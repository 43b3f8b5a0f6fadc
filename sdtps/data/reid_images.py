"""Triples of images as batches: the JPEG path, which decodes at every access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sdtps import distributed
from sdtps.config.reid import ReidDataConfig
from sdtps.data.augment import AugmentConfig, augment_image, normalise
from sdtps.data.reid_folders import Sample
from sdtps.data.sampler import PkSampler
from sdtps.errors import DataError

BICUBIC, BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR


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

    def pin_memory(self) -> ReidBatch:
        """Called by torch's DataLoader."""
        return ReidBatch(self.images.pin_memory(), self.labels.pin_memory(), self.camids.pin_memory())


def decode(sample: Sample, height: int, width: int, resampling: Image.Resampling) -> list[np.ndarray]:
    """The three modalities of a sample as uint8 [height, width, 3].

    Raises:
        DataError: a file that cannot be decoded to its end (named).
    """
    opened: dict[Path, Image.Image] = {}
    for path in dict.fromkeys(sample.images):
        try:
            with Image.open(path) as image:
                opened[path] = image.convert("RGB")
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise DataError(
                f"{path}: cannot be decoded as JPEG: {error}. Replace the file, or leave its triple "
                "out in all three modalities."
            ) from None
    images = [opened[path] for path in sample.images]
    if sample.crops is not None:
        images = [image.crop(box) for image, box in zip(images, sample.crops, strict=True)]
    return [np.asarray(image.resize((width, height), resampling)) for image in images]


def augment_config(config: ReidDataConfig) -> AugmentConfig:
    """The part of a data configuration that augmentation needs."""
    return AugmentConfig(config.height, config.width, config.flip, config.pad, config.erase)


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
        decoded = decode(sample, self.config.height, self.config.width, BICUBIC)
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
        decoded = decode(sample, self.config.height, self.config.width, self.resampling)
        return np.stack([normalise(pixels) for pixels in decoded]), sample.label, sample.camid


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


def own_rows(batch_size: int) -> slice:
    """This process's part of a batch.

    Raises:
        DataError: the processes cannot share the batch evenly.
    """
    world, rank = distributed.world_size(), distributed.rank()
    if batch_size % world:
        raise DataError(f"a batch of {batch_size} cannot be shared evenly by {world} processes")
    return slice(rank * batch_size // world, (rank + 1) * batch_size // world)


class JpegBatches:
    """Training batches from JPEG files; workers decode ahead and cannot change the result."""

    def __init__(
        self, samples: Sequence[Sample], config: ReidDataConfig, seed: int, device: torch.device
    ) -> None:
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
            yield batch.to(self.device)


class JpegTestBatches:
    """Batches from JPEG files as they are evaluated, `test_batch_size` at a time."""

    def __init__(
        self,
        samples: Sequence[Sample],
        config: ReidDataConfig,
        device: torch.device,
        resampling: Image.Resampling = BILINEAR,
    ) -> None:
        self.loader = _loader(
            TestImages(samples, config, resampling), config, device, batch_size=config.test_batch_size
        )
        self.device = device

    def __iter__(self) -> Iterator[ReidBatch]:
        for batch in self.loader:
            yield batch.to(self.device)


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
