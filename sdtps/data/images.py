"""Image files: which are read, how they become RGB, and whether they can be decoded to their end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sdtps.data.contents import check_once, values_digest
from sdtps.system.errors import DataError

FORMATS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
# Image formats that are refused by name where a data set is expected; other files are ignored.
NOT_READ = frozenset((".gif", ".heic", ".heif", ".avif", ".jp2", ".npy", ".pgm", ".ppm"))
SIGNATURES = (b"\xff\xd8", b"\x89PNG\r\n", b"BM", b"RIFF", b"II*\0", b"MM\0*")
LFS_POINTER = b"version https://git-lfs"
BICUBIC, BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR
MISTAKES_SHOWN = 20
DARK = 2**14  # 16-bit images without a value from here on are of sensors with fewer bits, or dark


@dataclass(frozen=True)
class PixelFormat:
    """What an image encoder takes: squares of `size` pixels, (value / 255 - mean) / std a channel."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def list_images(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The images of a folder by name without suffix, sorted, and what is wrong with the folder.

    Hidden files (the `._x.jpg` that macOS leaves, for one) are skipped. Mistakes are an image in a
    format that is not read, two images that differ in their suffix only, and images in a folder below.
    """
    images: dict[str, Path] = {}
    mistakes = []
    refused: Counter[str] = Counter()
    with os.scandir(folder) as entries:
        listed = sorted((e.name, e.is_dir()) for e in entries if not e.name.startswith("."))
    for name, is_folder in listed:
        stem, _, ending = name.rpartition(".")
        suffix = f".{ending.lower()}"
        if is_folder:
            below = sum(p.suffix.lower() in FORMATS for p in (folder / name).rglob("*"))
            if below:
                mistakes.append(f"{folder / name}: {below} image(s) in a folder below; move them up")
        elif suffix in NOT_READ:
            refused[suffix] += 1
        elif suffix in FORMATS:
            if stem in images:
                mistakes.append(f"{folder / name}: {images[stem].name} has the same name; remove one")
            images.setdefault(stem, folder / name)
    wanted = f"a format that is not read; convert them to one of {' '.join(FORMATS)}"
    mistakes += [f"{folder}: {n} {suffix} file(s), {wanted}" for suffix, n in refused.items()]
    return images, mistakes


def open_image(path: Path, bits: int | None = None) -> Image.Image:
    """The image in RGB as it is meant to be seen, decoded to its end.

    EXIF rotation is applied. 16 bits a channel become 8 by dropping the lower ones, as PNG defines it;
    Pillow alone would clip them, so that nearly every pixel is white.

    Args:
        bits: how many bits hold a value in files of 16 bits a channel; None: as the file says (PNG's
            sBIT), else 16.

    Raises:
        DataError: a file that cannot be decoded to its end, or not without knowing its bits (named).
    """
    try:
        with Image.open(path) as image:
            return _rgb(ImageOps.exif_transpose(image), path, bits)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path}: cannot be decoded: {error}. Replace the file, or leave its sample out."
        ) from None


def _rgb(image: Image.Image, path: Path, bits: int | None) -> Image.Image:
    if image.mode == "F":
        raise OSError("its values are fractions; save it with 8 or 16 bits a channel")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        largest = int(values.max())
        if bits is None and (said := _significant_bits(path)) is not None:
            # PNG wants values scaled to 16 bits; where they are not, as many hold them as sBIT says.
            unscaled = largest < 2**said and (values % 2 ** (16 - said)).any()
            bits = said if unscaled else 16
        elif bits is None:
            if 0 < largest < DARK:
                raise OSError(
                    f"has 16 bits a channel and no value above {largest}: if the sensor has fewer "
                    f"bits, set data.bits ({largest.bit_length()} or more; 16 for a dark image)"
                )
            bits = 16
        if largest >= 2**bits:
            raise OSError(f"has a value of {largest}, which {bits} bits (data.bits) do not hold")
        image = Image.fromarray((values >> max(0, bits - 8)).clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def _significant_bits(path: Path) -> int | None:
    """What the chunk sBIT of a PNG file says; None where there is none."""
    with path.open("rb") as stream:
        if not stream.read(8).startswith(b"\x89PNG"):
            return None
        while len(head := stream.read(8)) == 8 and head[4:] != b"IDAT":
            content = stream.read(int.from_bytes(head[:4], "big") + 4)
            if head[4:] == b"sBIT":
                return content[0]
    return None


def picture_mistake(file: Path, start: bytes) -> str | None:
    """What is wrong with a file by its first bytes; None where an image may follow."""
    if not start:
        return "is an empty file"
    if start.startswith(LFS_POINTER):
        return "is a Git LFS pointer, not the image itself; fetch it with `git lfs pull`"
    if not start.startswith(SIGNATURES):
        return "is not an image of a format that is read (JPEG, PNG, BMP, WebP, TIFF)"
    return None


def check_images(digests: Mapping[Path, str], bits: int | None = None) -> None:
    """Decode every image once before training, unless the cache records that this was done.

    Args:
        digests: of the images (`sdtps.data.contents.look`).
        bits: as `open_image` has it.

    Raises:
        DataError: files that cannot be decoded to their end, all of them (the first 20 named).
    """
    name = values_digest(bits, *sorted(set(digests.values())))
    check_once(name, lambda: raise_mistakes("images", undecodable(list(digests), bits)))


def undecodable(paths: Sequence[Path], bits: int | None = None) -> list[str]:
    """A sentence for each image that cannot be decoded to its end."""

    def mistake(path: Path) -> str | None:
        try:
            with Image.open(path) as image:
                image.draft("RGB", (1, 1))  # JPEG: every byte is read, an eighth of the pixels made
                image.load()
                if image.mode.startswith(("I", "F")):
                    _rgb(image, path, bits)
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
