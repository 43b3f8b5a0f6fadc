"""DeMo's augmentation: flip, pad and crop, normalise, erase; each modality on its own.

Two implementations of one distribution. `augment_image` is the reference: one image, on the JPEG path.
`BatchAugmentation` does a batch on its device, for the cached pipeline. Draws of the first come from a
generator seeded by (seed, epoch, position in the epoch), of the second by (seed, epoch, batch), so
neither depends on workers, prefetching or resuming.
"""

from __future__ import annotations

import math
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


class BatchAugmentation:
    """The same distribution for a whole batch, as a gather and two masks on the batch's device."""

    def __init__(self, config: AugmentConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.rows = torch.arange(config.height, device=device)
        self.columns = torch.arange(config.width, device=device)

    def __call__(self, pixels: Tensor, rng: np.random.Generator) -> Tensor:
        """uint8 [n, 3, H, W] to augmented, normalised float32 [n, 3, H, W].

        Draws on the host (a few numbers an image); noise is drawn on the device from a seed of `rng`.
        """
        config, n = self.config, len(pixels)
        flip = rng.random(n) < config.flip
        shift = rng.integers(0, 2 * config.pad + 1, size=(n, 2)) - config.pad
        boxes = self._boxes(n, rng)
        noise_seed = int(rng.integers(0, 2**63 - 1))
        drawn = np.concatenate([flip[:, None], shift, boxes], axis=1).astype(np.int64)
        flips, shifts, tops, lefts, heights, widths = self._on_device(drawn)

        # Crop of the padded image: row r of the output is row r + shift of the input, black outside.
        rows = self.rows + shifts[0]  # [n, H]
        columns = self.columns + shifts[1]  # [n, W]
        inside = ((rows >= 0) & (rows < config.height))[:, :, None] & (
            (columns >= 0) & (columns < config.width)
        )[:, None, :]
        rows = rows.clamp(0, config.height - 1)
        columns = columns.clamp(0, config.width - 1)
        columns = torch.where(flips, config.width - 1 - columns, columns)
        index = torch.arange(n, device=self.device)[:, None, None]
        # Advanced indices around the channel slice put the channels last: [n, H, W, 3].
        image = pixels.movedim(1, -1)[index, rows[:, :, None], columns[:, None, :]]
        image = image.movedim(-1, 1).to(torch.float32).div_(255.0 * DEVIATION).sub_(MEAN / DEVIATION)
        image.masked_fill_(~inside[:, None], -MEAN / DEVIATION)

        erased = ((self.rows >= tops) & (self.rows < tops + heights))[:, :, None] & (
            (self.columns >= lefts) & (self.columns < lefts + widths)
        )[:, None, :]
        generator = torch.Generator(self.device).manual_seed(noise_seed)
        noise = torch.randn(image.shape, generator=generator, device=self.device)
        return torch.where(erased[:, None], noise, image)

    def _on_device(self, drawn: np.ndarray) -> tuple[Tensor, ...]:
        host = torch.from_numpy(drawn)
        if self.device.type == "cuda":
            host = host.pin_memory()
        columns = host.to(self.device, non_blocking=True)
        shifts = columns[:, 1:3].T[:, :, None]  # [2, n, 1]
        tops, lefts, heights, widths = columns[:, 3:].T[:, :, None]
        return columns[:, :1].bool(), shifts, tops, lefts, heights, widths

    def _boxes(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """[n, 4] top, left, height, width; an empty box where nothing is erased."""
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
