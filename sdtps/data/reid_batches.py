"""Triples of images as batches, from three places.

`jpeg` decodes the files at every access, for data whose pixels a disk cannot hold. `cached` decodes and
resizes once and keeps uint8: one memory-mapped file per split serves all jobs of a node, and on a GPU
with room it is copied there whole. Both give the same batches, bit for bit. With a frozen backbone its
cached outputs stand in for the images.

`absent` names modalities that the data set lacks (letters of r, n, t): they are zero in every batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sdtps.config.reid import ReidDataConfig
from sdtps.data.augment import AugmentConfig, BatchAugmentation, image_statistics, normalise_
from sdtps.data.cache import mapped_once, new_map
from sdtps.data.contents import digest
from sdtps.data.images import BICUBIC, BILINEAR, open_image, raise_mistakes
from sdtps.data.reid_folders import Sample, third, too_few
from sdtps.system import distributed
from sdtps.system.errors import DataError

DECODING_VERSION = 2  # raise when a file gives other pixels; 2: EXIF rotation, 16 bits
BATCHES_AHEAD = 4  # decoded before their turn
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


def augment_config(config: ReidDataConfig) -> AugmentConfig:
    """The part of a data configuration that augmentation needs."""
    by_image = config.normalise == "image"
    return AugmentConfig(config.height, config.width, config.flip, config.pad, config.erase, by_image)


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

    def stream(self, batches: Iterable[np.ndarray]) -> Iterator[Tensor | list[np.ndarray]]:
        """Rows [B, ...] of each batch of indices; on a CPU as they lie, read-only and not yet read."""
        for indices in batches:
            on_cpu = self.device.type == "cpu"
            yield [self.mapped[index] for index in indices] if on_cpu else self.rows(indices)

    def rows(self, indices: np.ndarray) -> Tensor:
        """[len(indices), ...] of the map's own type."""
        if self.resident is None:
            return _on_device(self.mapped[indices], self.device)
        index = torch.from_numpy(indices).pin_memory().to(self.device, non_blocking=True)
        return self.resident[index]


class DecodedRows:
    """Rows of a split decoded from their files at every access, a few batches ahead of their turn."""

    def __init__(
        self,
        samples: Sequence[Sample],
        config: ReidDataConfig,
        resampling: Image.Resampling,
        device: torch.device,
    ) -> None:
        self.samples = samples
        self.how = config, resampling
        self.device = device
        self.pool = ThreadPoolExecutor(max(1, config.workers))  # Pillow decodes without the GIL

    def stream(self, batches: Iterable[np.ndarray]) -> Iterator[Tensor | list[np.ndarray]]:
        """Pixels uint8 [B, M, 3, H, W] of each batch of indices."""
        waiting: deque[list[Future[np.ndarray]]] = deque()
        for indices in batches:
            waiting.append([self.pool.submit(self._decoded, int(index)) for index in indices])
            if len(waiting) > BATCHES_AHEAD:
                yield self._taken(waiting.popleft())
        while waiting:
            yield self._taken(waiting.popleft())

    def _taken(self, rows: list[Future[np.ndarray]]) -> Tensor | list[np.ndarray]:
        decoded = [row.result() for row in rows]
        on_cpu = self.device.type == "cpu"
        return decoded if on_cpu else _on_device(np.stack(decoded), self.device)

    def _decoded(self, index: int) -> np.ndarray:
        return np.stack(decode(self.samples[index], *self.how)).transpose(0, 3, 1, 2)


def _on_device(rows: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(rows)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class _Split:
    """A split's rows: pixels uint8 [n, M, 3, H, W], or tokens of an encoder [n, M, 1 + N, C].

    Args:
        array: from the cache; None decodes the files at every access.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        array: np.ndarray | None,
        config: ReidDataConfig,
        device: torch.device,
        absent: str,
        resampling: Image.Resampling,
    ) -> None:
        self.rows: MappedRows | DecodedRows
        if array is None:
            self.rows = DecodedRows(samples, config, resampling, device)
        else:
            self.rows = MappedRows(array, device)
        self.absent = absent
        self.holds_pixels = array is None or array.dtype == np.uint8
        self.labels = torch.tensor([s.label for s in samples], device=device)
        self.camids = torch.tensor([s.camid for s in samples], device=device)
        self.device = device

    def batch(self, images: Tensor, indices: np.ndarray) -> ReidBatch:
        """`images` [M, B, ...] with what is known of them."""
        index = torch.from_numpy(indices).to(self.device, non_blocking=True)
        batch = ReidBatch(images, self.labels[index], self.camids[index])
        return batch.without(self.absent) if self.holds_pixels else batch

    def stacked(self, rows: Tensor | list[np.ndarray]) -> Tensor:
        """[M, B, ...] on the device. NumPy has no bfloat16: its bits are kept as int16."""
        tensor = rows if isinstance(rows, Tensor) else torch.from_numpy(np.stack(rows))
        if tensor.dtype == torch.int16:
            tensor = tensor.view(torch.bfloat16)
        return tensor.transpose(0, 1)


class TrainBatches(_Split):
    """Training batches; pixels are augmented, encoder outputs are taken as they are."""

    def __init__(
        self,
        samples: Sequence[Sample],
        array: np.ndarray | None,
        config: ReidDataConfig,
        seed: int,
        device: torch.device,
        absent: str = "",
    ) -> None:
        super().__init__(samples, array, config, device, absent, BICUBIC)
        labels = [s.label for s in samples]
        self.sampler = PkSampler(labels, config.batch_size, config.instances, seed)
        self.steps_per_epoch = self.sampler.batches
        self.seed = seed
        self.augment = BatchAugmentation(augment_config(config), device)
        self.own = own_rows(config.batch_size)

    def epoch(self, epoch: int, first: int) -> Iterator[ReidBatch]:
        """Batches `first`, `first` + 1, ... of `epoch` on the device."""
        wanted = [indices[self.own] for indices in self.sampler.epoch(epoch)[first:]]
        for number, (indices, rows) in enumerate(
            zip(wanted, self.rows.stream(wanted), strict=True), first
        ):
            if self.holds_pixels:
                rng = np.random.default_rng([self.seed, epoch, number, self.own.start, 103])
                images = self.augment(rows, rng)
            else:
                images = self.stacked(rows)
            yield self.batch(images, indices)


class TestBatches(_Split):
    """Batches as they are evaluated, in the order of `samples`, `test_batch_size` at a time."""

    __test__ = False  # for pytest: no test class

    def __init__(
        self,
        samples: Sequence[Sample],
        array: np.ndarray | None,
        config: ReidDataConfig,
        device: torch.device,
        absent: str = "",
        resampling: Image.Resampling = BILINEAR,
    ) -> None:
        super().__init__(samples, array, config, device, absent, resampling)
        every = np.arange(len(samples))
        self.wanted = [every[k : k + config.test_batch_size] for k in every[:: config.test_batch_size]]
        self.by_image = config.normalise == "image"

    def __iter__(self) -> Iterator[ReidBatch]:
        for indices, rows in zip(self.wanted, self.rows.stream(self.wanted), strict=True):
            images = self.stacked(rows)
            if self.holds_pixels:
                statistics = image_statistics(images) if self.by_image else None
                images = normalise_(images.to(torch.float32), statistics)
            yield self.batch(images, indices)
