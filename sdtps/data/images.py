"""Image files: which are read, how they become RGB, and whether they can be decoded to their end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from PIL import Image, ImageOps, UnidentifiedImageError

from sdtps.system.errors import DataError

FORMATS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
# Image formats that are refused by name where a data set is expected; other files are ignored.
NOT_READ = frozenset(
    (".tif", ".tiff", ".gif", ".heic", ".heif", ".avif", ".jp2", ".npy", ".pgm", ".ppm")
)
SIGNATURES = (b"\xff\xd8", b"\x89PNG\r\n", b"BM", b"RIFF")
LFS_POINTER = b"version https://git-lfs"
BICUBIC, BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR
MISTAKES_SHOWN = 20


@dataclass(frozen=True)
class PixelFormat:
    """What an image encoder takes: squares of `size` pixels, (value / 255 - mean) / std a channel."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def list_images(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The images of a folder by name without suffix, sorted, and what is wrong with the folder.

    Hidden files (the `._x.jpg` that macOS leaves, for one) are skipped. An image in a format that is
    not read is a mistake, and so are two images that differ in their suffix only.
    """
    images: dict[str, Path] = {}
    mistakes = []
    refused: dict[str, int] = {}
    for path in sorted(folder.iterdir()):
        suffix = path.suffix.lower()
        if path.name.startswith("."):
            continue
        if suffix in NOT_READ:
            refused[suffix] = refused.get(suffix, 0) + 1
        elif suffix in FORMATS:
            if path.stem in images:
                mistakes.append(f"{path}: {images[path.stem].name} has the same name; remove one")
            images.setdefault(path.stem, path)
    for suffix, count in refused.items():
        mistakes.append(
            f"{folder}: {count} {suffix} file(s), a format that is not read; convert them to one of "
            f"{' '.join(FORMATS)}"
        )
    return images, mistakes


def open_image(path: Path) -> Image.Image:
    """The image in RGB as it is meant to be seen, decoded to its end.

    EXIF rotation is applied. 16 bits a channel become 8 by dropping the lower ones, as PNG defines it;
    Pillow alone would clip them, so that nearly every pixel is white.

    Raises:
        DataError: a file that cannot be decoded to its end (named).
    """
    try:
        with Image.open(path) as image:
            return _rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path}: cannot be decoded: {error}. Replace the file, or leave its sample out."
        ) from None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if 0 < values.max() < 256:
            raise OSError(
                "has 16 bits a pixel, but no value above 255: it would be black; save it as 8"
            )
        image = Image.fromarray((values >> 8).clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def signature_mistake(path: Path) -> str | None:
    """What is wrong with a file by its first bytes; None where an image may follow."""
    try:
        with path.open("rb") as stream:
            start = stream.read(32)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not start:
        return "is an empty file"
    if start.startswith(LFS_POINTER):
        return "is a Git LFS pointer, not the image itself; fetch it with `git lfs pull`"
    if not start.startswith(SIGNATURES):
        return "is not an image of a format that is read (JPEG, PNG, BMP, WebP)"
    return None


def files_key(paths: Iterable[Path], *more: object) -> str:
    """A digest of each file's path, size and time of change, and of `more`."""
    digest = hashlib.sha256(f"{' '.join(map(str, more))}\n".encode())
    for path in paths:
        state = path.stat()
        digest.update(f"{path.absolute()}:{state.st_size}:{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def check_images(paths: Iterable[Path], folder: Path) -> None:
    """Decode every image once before training, unless the cache `folder` records that this was done.

    Raises:
        DataError: files that cannot be decoded to their end, all of them (the first 20 named).
    """
    paths = list(dict.fromkeys(paths))
    record = folder / f"checked-{files_key(paths)}"
    if record.exists():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{record.name}.lock"):  # others of this node wait for the first
            if not record.exists():
                raise_mistakes("images", undecodable(paths))
                record.touch()
    except OSError:  # a cache that cannot be written: each run checks for itself
        raise_mistakes("images", undecodable(paths))


def undecodable(paths: Sequence[Path]) -> list[str]:
    """A sentence for each image that cannot be decoded to its end."""

    def mistake(path: Path) -> str | None:
        try:
            with Image.open(path) as image:
                image.draft("RGB", (1, 1))  # JPEG: every byte is read, an eighth of the pixels made
                image.load()
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            return f"{path}: cannot be decoded: {error}"
        return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes without the GIL
        return sorted(text for text in pool.map(mistake, paths) if text is not None)


def raise_mistakes(where: object, mistakes: Sequence[str]) -> None:
    """Raises DataError with the first 20 of `mistakes`, if there are any.

    Args:
        where: what they are about, in front of their number.
    """
    if mistakes:
        more = len(mistakes) - MISTAKES_SHOWN
        shown = [*mistakes[:MISTAKES_SHOWN], *([f"... and {more} more"] if more > 0 else [])]
        raise DataError(f"{where}: {len(mistakes)} mistake(s)\n  " + "\n  ".join(shown))
