"""DeMo's augmentation: flip, pad and crop, normalise, erase; each modality on its own.

Two implementations of one distribution. `augment_image` is the reference: one image, on the JPEG path.
`BatchAugmentation` does a batch on its device, for the cached pipeline. Draws of the first come from a
generator seeded by (seed, epoch, position in the epoch), of the second by (seed, epoch, batch), so
neither depends on workers, prefetching or resuming.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Random erasing as DeMo configures timm's: normal noise in each pixel of one box.
ERASE_AREA = (0.02, 1 / 3)
ERASE_ASPECT = (0.3, 1 / 0.3)
ERASE_TRIES = 10
MEAN, DEVIATION = 0.5, 0.5  # DeMo normalises every channel of every modality so


@dataclass(frozen=True)
class AugmentConfig:
    height: int
    width: int
    flip: float
    pad: int  # pixels of black on each side before the random crop
    erase: float


def normalise(pixels: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] to float32 [3, H, W] in [-1, 1]."""
    scaled = pixels.transpose(2, 0, 1).astype(np.float32) / 255.0
    return (scaled - MEAN) / DEVIATION


def augment_image(pixels: np.ndarray, config: AugmentConfig, rng: np.random.Generator) -> np.ndarray:
    """uint8 [H, W, 3] (resized already) to an augmented, normalised float32 [3, H, W]."""
    if rng.random() < config.flip:
        pixels = pixels[:, ::-1]
    if config.pad:
        top, left = rng.integers(0, 2 * config.pad + 1, size=2)
        edges = (config.pad, config.pad)
        padded = np.pad(pixels, (edges, edges, (0, 0)))
        pixels = padded[top : top + config.height, left : left + config.width]
    image = normalise(pixels)
    if rng.random() < config.erase:
        box = draw_box(config.height, config.width, rng)
        if box is not None:
            top, left, height, width = box
            noise = rng.standard_normal((3, height, width), dtype=np.float32)
            image[:, top : top + height, left : left + width] = noise
    return image


def draw_box(height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int] | None:
    """Top, left, height and width of a box to erase; None when ten tries did not fit."""
    for _ in range(ERASE_TRIES):
        area = rng.uniform(*ERASE_AREA) * height * width
        aspect = math.exp(rng.uniform(math.log(ERASE_ASPECT[0]), math.log(ERASE_ASPECT[1])))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < height and w < width:
            top = int(rng.integers(0, height - h + 1))
            left = int(rng.integers(0, width - w + 1))
            return top, left, h, w
    return None


@dataclass(frozen=True)
class Draws:
    """What is drawn for n images: numbers on the host, int64 [n] each."""

    flips: np.ndarray  # 0 or 1
    down: np.ndarray  # output row r shows input row r + down; black outside
    right: np.ndarray
    boxes: np.ndarray  # [n, 4] top, left, height, width; no area = nothing erased
    noise_seed: int


class BatchAugmentation:
    """The same distribution for a whole batch, on its device.

    On a CPU images are moved by slices and only erased pixels are drawn; on a GPU by one gather,
    without a loop. Both give the same pixels outside the erased boxes.
    """

    def __init__(self, config: AugmentConfig, device: torch.device) -> None:
        self.config = config
        self.device = device

    def __call__(self, pixels: Tensor, rng: np.random.Generator) -> Tensor:
        """uint8 [n, 3, H, W] to augmented, normalised float32 [n, 3, H, W]."""
        draws = self.draw(len(pixels), rng)
        generator = torch.Generator(self.device).manual_seed(draws.noise_seed)
        if self.device.type == "cpu":
            return erase_boxes(move_by_slices(pixels, draws), draws, generator)
        return move_and_erase_by_gather(pixels, draws, generator)

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
        first = fits.argmax(axis=0)  # the first try that fits, as in the reference
        chosen = (rng.random(n) < config.erase) & fits.any(axis=0)
        place = np.arange(n)
        h = np.where(chosen, heights[first, place], 0)
        w = np.where(chosen, widths[first, place], 0)
        top = np.floor(rng.random(n) * (config.height - h + 1)).astype(np.int64)
        left = np.floor(rng.random(n) * (config.width - w + 1)).astype(np.int64)
        return np.stack([top, left, h, w], axis=1)


def move_by_slices(pixels: Tensor, draws: Draws) -> Tensor:
    """Flip, pad and crop, normalise; one copy an image, one conversion for all."""
    height, width = pixels.shape[2:]
    source = pixels.numpy()
    if draws.flips.any() or draws.down.any() or draws.right.any():
        moved = np.zeros_like(source)
        for i, (flip, down, right) in enumerate(
            zip(draws.flips.tolist(), draws.down.tolist(), draws.right.tolist(), strict=True)
        ):
            image = source[i, :, :, ::-1] if flip else source[i]
            rows = slice(max(0, -down), height - max(0, down))
            columns = slice(max(0, -right), width - max(0, right))
            moved[i, :, rows, columns] = image[
                :,
                rows.start + down : rows.stop + down,
                columns.start + right : columns.stop + right,
            ]
        source = moved
    return normalised(torch.from_numpy(source))


def erase_boxes(images: Tensor, draws: Draws, generator: torch.Generator) -> Tensor:
    """Fill each box with normal noise, in place."""
    for image, (top, left, height, width) in zip(images, draws.boxes.tolist(), strict=True):
        if height and width:
            image[:, top : top + height, left : left + width].normal_(generator=generator)
    return images


def normalised(pixels: Tensor) -> Tensor:
    """uint8 to float32 in [-1, 1], whatever the shape."""
    return pixels.to(torch.float32).mul_(1 / (255.0 * DEVIATION)).sub_(MEAN / DEVIATION)


def move_and_erase_by_gather(pixels: Tensor, draws: Draws, generator: torch.Generator) -> Tensor:
    """All of it in a few kernels, without waiting for the host's loop."""
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
    return torch.where(_outer(erased_rows, erased_columns, torch.logical_and), noise, normalised(moved))


def _outer(rows: Tensor, columns: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """[n, H] and [n, W] to [n, 1, H, W]."""
    return combine(rows[:, None, :, None], columns[:, None, None, :])
