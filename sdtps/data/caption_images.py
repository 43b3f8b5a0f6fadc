"""Photographs of retrieval as normalised pixels: augmented in training, resized at evaluation."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from sdtps.errors import DataError
from sdtps.models.encoders import ImageShape

BICUBIC = Image.Resampling.BICUBIC
# RandomResizedCrop of released SEPS: share of the area, and torchvision's aspect ratios.
CROP_AREA = (0.6, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
CROP_TRIES = 10
FLIP = 0.5


def load_image(path: Path) -> Image.Image:
    """The photograph in RGB.

    Raises:
        DataError: a file that cannot be decoded to its end (named).
    """
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise DataError(f"{path}: cannot be decoded: {error}") from None


def plain(path: Path, size: int, shape: ImageShape) -> np.ndarray:
    """float32 (3, size, size), the whole image resized (evaluation, and frozen features)."""
    return _normalise(load_image(path).resize((size, size), BICUBIC), shape)


def augmented(path: Path, size: int, shape: ImageShape, rng: np.random.Generator) -> np.ndarray:
    """float32 (3, size, size): a random crop, resized, flipped every other time."""
    image = load_image(path)
    image = image.resize((size, size), BICUBIC, box=_crop(image.width, image.height, rng))
    if rng.random() < FLIP:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return _normalise(image, shape)


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


def _normalise(image: Image.Image, shape: ImageShape) -> np.ndarray:
    pixels = np.asarray(image, dtype=np.float32) / 255.0
    scaled = (pixels - np.array(shape.mean, np.float32)) / np.array(shape.std, np.float32)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))
