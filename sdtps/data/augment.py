"""From pixels to what an encoder takes: DeMo's augmentation, and SEPS's for photographs.

DeMo: flip, pad and crop, normalise, erase; each modality on its own. `BatchAugmentation` does a batch
on its device, ten times as fast on a CPU as what libraries offer; the tests hold one image's arithmetic
against it. Draws come from a generator seeded by (seed, epoch, batch), so that they depend on no worker
and no resuming.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sdtps.config.reid import ReidDataConfig
from sdtps.data.images import BICUBIC, PixelFormat

# Random erasing as DeMo configures timm's: normal noise in each pixel of one box.
ERASE_AREA = (0.02, 1 / 3)
ERASE_ASPECT = (0.3, 1 / 0.3)
ERASE_TRIES = 10
NOISE_LEVELS = 2**16  # on a CPU
CACHED_VALUES = 2**20  # four megabytes of float32: a core's share of the cache, and few calls
MEAN, DEVIATION = 0.5, 0.5  # DeMo normalises every channel of every modality so
_SHIFT = torch.tensor(-MEAN / DEVIATION)
# RandomResizedCrop of released SEPS: share of the area, and torchvision's aspect ratios.
CROP_AREA = (0.6, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
CROP_TRIES = 10
FLIP = 0.5


@dataclass(frozen=True)
class Draws:
    """What is drawn for n images: numbers on the host, int64 [n] each."""

    flips: np.ndarray  # 0 or 1
    down: np.ndarray  # output row r shows input row r + down; black outside
    right: np.ndarray
    boxes: np.ndarray  # [n, 4] top, left, height, width; no area = nothing erased
    noise_seed: int


class BatchAugmentation:
    """DeMo's augmentation of a whole batch, on its device.

    On a CPU images are moved by slices, straight from where they lie, and only erased pixels are drawn;
    on a GPU by one gather, without a loop. Both give the same pixels outside the erased boxes.
    """

    def __init__(self, config: ReidDataConfig, device: torch.device) -> None:
        self.config = config
        self.device = device

    def __call__(self, pixels: Tensor | Sequence[np.ndarray], rng: np.random.Generator) -> Tensor:
        """uint8 [B, M, 3, H, W] to augmented, normalised float32 [M, B, 3, H, W].

        On a CPU also B arrays [M, 3, H, W], wherever each lies.
        """
        batch, modalities = len(pixels), len(pixels[0])
        draws = self.draw(batch * modalities, rng)
        if isinstance(pixels, Tensor) and self.device.type != "cpu":
            generator = torch.Generator(self.device).manual_seed(draws.noise_seed)
            images = pixels.transpose(0, 1).flatten(0, 1)
            done = augment_by_gather(images, draws, generator)
        else:
            samples = [np.asarray(sample) for sample in pixels]
            sources = [sample[m] for m in range(modalities) for sample in samples]
            done = augment_by_slices(sources, draws)
        return done.view(modalities, batch, *done.shape[1:])

    def draw(self, n: int, rng: np.random.Generator) -> Draws:
        """Draws of n images, vectorised over them."""
        pad = self.config.pad
        flips = (rng.random(n) < self.config.flip).astype(np.int64)
        down, right = rng.integers(0, 2 * pad + 1, size=(2, n)) - pad
        return Draws(flips, down, right, self._boxes(n, rng), int(rng.integers(0, 2**63 - 1)))

    def _boxes(self, n: int, rng: np.random.Generator) -> np.ndarray:
        config = self.config
        shape = (ERASE_TRIES, n)
        area = rng.uniform(*ERASE_AREA, size=shape) * config.height * config.width
        aspect = np.exp(rng.uniform(math.log(ERASE_ASPECT[0]), math.log(ERASE_ASPECT[1]), size=shape))
        heights = np.rint(np.sqrt(area * aspect)).astype(np.int64)
        widths = np.rint(np.sqrt(area / aspect)).astype(np.int64)
        fits = (heights < config.height) & (widths < config.width)
        first = fits.argmax(axis=0)  # the first try that fits
        chosen = (rng.random(n) < config.erase) & fits.any(axis=0)
        place = np.arange(n)
        h = np.where(chosen, heights[first, place], 0)
        w = np.where(chosen, widths[first, place], 0)
        top = np.floor(rng.random(n) * (config.height - h + 1)).astype(np.int64)
        left = np.floor(rng.random(n) * (config.width - w + 1)).astype(np.int64)
        return np.stack([top, left, h, w], axis=1)


def augment_by_slices(sources: Sequence[np.ndarray], draws: Draws) -> Tensor:
    """n images uint8 [3, H, W] to float32 [n, 3, H, W].

    Images move while they are bytes, a quarter of what they become, and a few at a time, so that they
    stay in the processor's cache from first to last.
    """
    channels = len(sources[0])
    done = torch.empty(len(sources), *sources[0].shape)
    images, boxes = done.numpy(), draws.boxes.tolist()
    flips, down, right = draws.flips.tolist(), draws.down.tolist(), draws.right.tolist()
    areas = [channels * tall * wide for _, _, tall, wide in boxes]
    noise, used = normal_noise(sum(areas), draws.noise_seed), 0
    moved = np.empty(sources[0].shape, np.uint8)
    shared = torch.from_numpy(moved)  # the same memory: torch mirrors bytes four times as fast
    at_once = max(1, CACHED_VALUES // done[0].numel())
    for begin in range(0, len(images), at_once):
        chunk = range(begin, min(begin + at_once, len(images)))
        for i in chunk:
            # Mirrored afterwards, where the pixels are at hand: so the shift goes the other way.
            _move(moved, sources[i], down[i], -right[i] if flips[i] else right[i])
            images[i] = shared.flip(2).numpy() if flips[i] else moved
        normalise_(done[begin : chunk.stop])
        for i in chunk:
            top, left, tall, wide = boxes[i]
            own = noise[used : used + areas[i]].reshape(channels, tall, wide)
            images[i, :, top : top + tall, left : left + wide] = own
            used += areas[i]
    return done


def _move(image: np.ndarray, source: np.ndarray, down: int, right: int) -> None:
    """Write the shifted `source` into `image` [3, H, W], black outside.

    A channel is one run of pixels that moves as a whole; what comes round an edge is blackened.
    """
    channels, height, width = source.shape
    seen = source.reshape(channels, -1)
    by = down * width + right
    first, last = max(0, -by), height * width - max(0, by)
    image.reshape(channels, -1)[:, first:last] = seen[:, first + by : last + by]
    image[:, : max(0, -down)] = 0
    image[:, height - max(0, down) :] = 0
    image[:, :, : max(0, -right)] = 0
    image[:, :, width - max(0, right) :] = 0


def normal_noise(n: int, seed: int) -> np.ndarray:
    """n values of N(0, 1), float32, of 65,536 equally likely levels: twice as fast as torch.randn.

    The levels are the distribution's quantiles, so that no probability is off by more than 2^-17; the
    outermost lie at 4.3 deviations.
    """
    words = np.random.SFC64(seed).random_raw(n // 4 + 1).view(np.uint16)
    return np.take(_normal_levels(), words[:n], mode="clip")


@cache
def _normal_levels() -> np.ndarray:
    middles = (torch.arange(NOISE_LEVELS, dtype=torch.float64) + 0.5) / NOISE_LEVELS
    return torch.special.ndtri(middles).float().numpy()


def normalise_(values: Tensor) -> Tensor:
    """float32 in [0, 255] to [-1, 1], in place."""
    return torch.add(_SHIFT, values, alpha=1 / (255.0 * DEVIATION), out=values)


def augment_by_gather(pixels: Tensor, draws: Draws, generator: torch.Generator) -> Tensor:
    """uint8 [n, 3, H, W] to float32 in a few kernels, without a loop on the host."""
    device, (height, width) = pixels.device, pixels.shape[2:]
    drawn = np.column_stack([draws.flips, draws.down, draws.right, draws.boxes])
    host = torch.from_numpy(drawn.T.copy())
    if device.type == "cuda":
        host = host.pin_memory()
    flips, down, right, top, left, tall, wide = host.to(device, non_blocking=True)[:, :, None]
    row, column = torch.arange(height, device=device), torch.arange(width, device=device)

    rows, columns = row + down, column + right  # [n, H], [n, W] in the flipped input
    black_rows = (rows < 0) | (rows >= height)
    black_columns = (columns < 0) | (columns >= width)
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    columns = torch.where(flips.bool(), width - 1 - columns, columns)
    flat = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)[:, None]  # [n, 1, H W]
    moved = pixels.flatten(2).gather(2, flat.expand(-1, pixels.shape[1], -1)).view(pixels.shape)
    moved = moved.masked_fill(_outer(black_rows, black_columns, torch.logical_or), 0)

    erased_rows = (row >= top) & (row < top + tall)
    erased_columns = (column >= left) & (column < left + wide)
    noise = torch.randn(pixels.shape, generator=generator, device=device)
    shown = normalise_(moved.float())
    return torch.where(_outer(erased_rows, erased_columns, torch.logical_and), noise, shown)


def _outer(rows: Tensor, columns: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """[n, H] and [n, W] to [n, 1, H, W]."""
    return combine(rows[:, None, :, None], columns[:, None, None, :])


# -- photographs of retrieval -----------------------------------------------------------------------


def whole_photograph(image: Image.Image, wanted: PixelFormat) -> np.ndarray:
    """float32 (3, size, size), the whole image resized (evaluation, and frozen features)."""
    return _normalised(image.resize((wanted.size, wanted.size), BICUBIC), wanted)


def cropped_photograph(image: Image.Image, wanted: PixelFormat, rng: np.random.Generator) -> np.ndarray:
    """float32 (3, size, size): a random crop, resized, flipped every other time."""
    box = _crop(image.width, image.height, rng)
    image = image.resize((wanted.size, wanted.size), BICUBIC, box=box)
    if rng.random() < FLIP:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return _normalised(image, wanted)


def _crop(width: int, height: int, rng: np.random.Generator) -> tuple[float, float, float, float]:
    """Left, upper, right, lower; the largest centred crop of an allowed aspect where none fits."""
    for _ in range(CROP_TRIES):
        area = rng.uniform(*CROP_AREA) * width * height
        aspect = math.exp(rng.uniform(*np.log(CROP_ASPECT)))
        w, h = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if w <= width and h <= height:
            left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
            return left, top, left + w, top + h
    w = min(width, height * CROP_ASPECT[1])
    h = min(height, width / CROP_ASPECT[0])
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def _normalised(image: Image.Image, wanted: PixelFormat) -> np.ndarray:
    pixels = np.asarray(image, dtype=np.float32) / 255.0
    scaled = (pixels - np.array(wanted.mean, np.float32)) / np.array(wanted.std, np.float32)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))
