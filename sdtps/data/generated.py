"""Small data sets for machines without a benchmark, written as real JPEG files in published layouts.

Re-identification, in RGBNT201's layout: an identity is a triple of symbols, one for each modality. Each
symbol is shared by several identities, so no modality alone can tell them apart. The symbol is shown in
a few cells of an 8 x 4 grid, the same cells in the three modalities, placed anew for every image; the
other cells hold clutter. Cameras differ in brightness and tint.

Retrieval, in the layout of LAPS and SEPS: an image shows three coloured shapes in cells of a 4 x 4
grid, the other cells hold clutter. A sparse caption names two of them; the dense description names all
three and where they are. So a caption alone is ambiguous, the dense text of its image is not, and most
patches mean nothing.

The same configuration gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from filelock import FileLock
from PIL import Image, ImageDraw

from sdtps.config.reid import GeneratedReidConfig
from sdtps.config.retrieval import GeneratedRetrievalConfig
from sdtps.data.reid_folders import LAYOUTS
from sdtps.run.locations import made_below
from sdtps.system.errors import DataError

GENERATOR_VERSION = 1  # raise when a byte changes
JPEG_QUALITY = 92

ROWS, COLUMNS = 8, 4  # cells of the grid of re-identification
IDENTITY_CELLS = 4  # of 32
SYMBOL_PIXELS = 4  # a symbol is a 4 x 4 pattern, enlarged to its cell
SHARED_BY = 5  # identities that share a symbol, about
CHANNELS = (3, 1, 1)  # colour, and two grey images

GRID = 4  # rows and columns of the grid of retrieval
CELL = 16  # pixels
SHAPES_SHOWN = 3
CAPTIONS = 5
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 80, 220),
    "yellow": (230, 210, 50),
    "white": (240, 240, 240),
    "purple": (150, 50, 180),
}
SHAPES = ("disc", "square", "triangle", "cross")
ROW_NAMES = ("top", "upper", "lower", "bottom")
COLUMN_NAMES = ("left", "inner left", "inner right", "right")
SENTENCES = (
    "a {} and a {} .",
    "there is a {} beside a {} .",
    "a picture of a {} with a {} .",
    "one {} , one {} .",
    "a {} can be seen , also a {} .",
)

Thing = tuple[str, str, int]  # colour, shape, cell


def _written_once(
    parent: Path, kind: str, recipe: dict[str, int], write: Callable[[Path], None]
) -> Path:
    """The folder of this recipe in `parent`; `write` fills it if no job has.

    Its name changes with anything that changes a byte. Jobs that start together wait for the first.
    """
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    target = parent / f"generated-{kind}-{digest[:10]}"
    if not target.exists():
        with made_below(parent):
            parent.mkdir(parents=True, exist_ok=True)
            with FileLock(parent / f".{target.name}.lock"), TemporaryDirectory(dir=parent) as drafts:
                if not target.exists():
                    draft = Path(drafts) / "data"
                    draft.mkdir()
                    write(draft)
                    draft.rename(target)
    return target


def _jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return stream.getvalue()


# -- re-identification -----------------------------------------------------------------------------


def generate_rgbnt201(config: GeneratedReidConfig, height: int, width: int, parent: Path) -> Path:
    """Write a folder with RGBNT201/ into `parent` unless it is there; returns it.

    Raises:
        DataError: images of a size that the grid does not divide.
    """
    if height % (ROWS * SYMBOL_PIXELS) or width % (COLUMNS * SYMBOL_PIXELS):
        raise DataError(
            f"generated images of {height}x{width}: the height must be a multiple of "
            f"{ROWS * SYMBOL_PIXELS} and the width of {COLUMNS * SYMBOL_PIXELS}"
        )
    recipe = {"version": GENERATOR_VERSION, "height": height, "width": width, **config.model_dump()}
    return _written_once(parent, "reid", recipe, partial(_write_reid, config, height, width))


def identity_symbols(config: GeneratedReidConfig) -> np.ndarray:
    """Symbols [identities, 3] of training and then test identities; no two rows are equal.

    Within each modality every symbol is used about equally often, within each split too.
    """
    rng = np.random.default_rng([config.seed, 1])
    rows: list[tuple[int, ...]] = []
    for count in (config.train_pids, config.test_pids):
        alphabet = symbol_count(config)
        for _ in range(10_000):
            columns = [rng.permutation(np.arange(count) % alphabet) for _ in CHANNELS]
            drawn = [tuple(int(s) for s in row) for row in zip(*columns, strict=True)]
            if len({*rows, *drawn}) == len(rows) + count:
                rows += drawn
                break
        else:
            raise DataError(
                f"generated data: {config.train_pids} + {config.test_pids} identities do not fit "
                f"{alphabet} symbols a modality"
            )
    return np.array(rows)


def symbol_count(config: GeneratedReidConfig) -> int:
    """Symbols of each modality: enough for all triples to differ, few enough to be shared."""
    identities = config.train_pids + config.test_pids
    return max(4, round(identities / SHARED_BY))


def _write_reid(config: GeneratedReidConfig, height: int, width: int, root: Path) -> None:
    """All images: a camera has a tint and a brightness, an identity a symbol of each modality."""
    rng = np.random.default_rng([config.seed, 0])
    alphabet = [_symbols(rng, symbol_count(config), channels) for channels in CHANNELS]
    tints = rng.uniform(0.85, 1.15, size=(config.cameras, len(CHANNELS), 3))
    offsets = rng.uniform(-12, 12, size=(config.cameras, len(CHANNELS)))
    symbols = identity_symbols(config)
    folders = LAYOUTS["rgbnt201"].modalities
    for split, folder in product(("train_171", "test"), folders):
        (root / "RGBNT201" / split / folder).mkdir(parents=True)

    def write(pid: int) -> None:
        """The images of an identity (from 0; training identities come first)."""
        split = root / "RGBNT201" / ("train_171" if pid < config.train_pids else "test")
        for camera, shot in product(range(config.cameras), range(config.images_per_camera)):
            draws = np.random.default_rng([config.seed, 2, pid, camera, shot])
            cells = draws.choice(ROWS * COLUMNS, size=IDENTITY_CELLS, replace=False)
            name = f"{pid + 1:06d}_cam{camera + 1}_0_{shot:02d}.jpg"
            for m, folder in enumerate(folders):
                own = alphabet[m][symbols[pid, m]]
                picture = _picture(draws, own, cells, CHANNELS[m], height, width)
                picture = picture * tints[camera, m, : CHANNELS[m]] + offsets[camera, m]
                (split / folder / name).write_bytes(_jpeg(_pixels(picture)))

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow encodes without the GIL
        list(pool.map(write, range(config.train_pids + config.test_pids)))


def _symbols(rng: np.random.Generator, count: int, channels: int) -> np.ndarray:
    """[count, 4, 4, channels] patterns of two levels, within the range of the clutter."""
    return rng.choice([65.0, 190.0], size=(count, SYMBOL_PIXELS, SYMBOL_PIXELS, channels))


def _picture(
    rng: np.random.Generator,
    symbol: np.ndarray,
    cells: np.ndarray,
    channels: int,
    height: int,
    width: int,
) -> np.ndarray:
    """[height, width, channels]: clutter in every cell, the symbol in its own, noise over all."""
    clutter = rng.uniform(25, 230, size=(ROWS * COLUMNS, SYMBOL_PIXELS, SYMBOL_PIXELS, channels))
    clutter[cells] = symbol
    grid = clutter.reshape(ROWS, COLUMNS, SYMBOL_PIXELS, SYMBOL_PIXELS, channels)
    small = grid.transpose(0, 2, 1, 3, 4).reshape(ROWS * SYMBOL_PIXELS, COLUMNS * SYMBOL_PIXELS, -1)
    picture = small.repeat(height // small.shape[0], axis=0).repeat(width // small.shape[1], axis=1)
    return picture + rng.normal(0, 8, size=picture.shape)


def _pixels(picture: np.ndarray) -> Image.Image:
    pixels = np.clip(picture, 0, 255).round().astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


# -- retrieval -------------------------------------------------------------------------------------


def generate_captions(config: GeneratedRetrievalConfig, parent: Path) -> Path:
    """Write the data set as a folder into `parent` unless it is there; returns it."""
    recipe = {"version": GENERATOR_VERSION, **config.model_dump()}
    return _written_once(parent, "captions", recipe, partial(_write_captions, config))


def _write_captions(config: GeneratedRetrievalConfig, folder: Path) -> None:
    (folder / "images").mkdir()
    counts = {"train": config.train_images, "dev": config.dev_images, "test": config.test_images}
    mapping: dict[str, str] = {}
    for split, count in counts.items():
        ids: list[str] = []
        captions: list[str] = []
        dense: list[str] = []
        for _ in range(count):
            number = len(mapping)
            rng = np.random.default_rng([config.seed, number])
            things = _things(rng)
            name = f"{number:06d}.jpg"
            (folder / "images" / name).write_bytes(_jpeg(_shapes(rng, things)))
            mapping[str(number)] = name
            # As published: training lists an image once, the others once for each caption.
            ids += [str(number)] * (1 if split == "train" else CAPTIONS)
            captions += _captions(rng, things)
            dense.append(_description(things))
        _write_lines(folder / f"{split}_ids.txt", ids)
        _write_lines(folder / f"{split}_caps.txt", captions)
        for dataset in ("f30k", "coco"):
            rows = [json.dumps({"text": text}) for text in dense]
            _write_lines(folder / f"{dataset}_{split}.jsonl", rows)
    (folder / "id_mapping.json").write_text(json.dumps(mapping), encoding="utf-8")


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _things(rng: np.random.Generator) -> list[Thing]:
    kinds = rng.choice(len(COLOURS) * len(SHAPES), size=SHAPES_SHOWN, replace=False)
    cells = rng.choice(GRID * GRID, size=SHAPES_SHOWN, replace=False)
    colours = list(COLOURS)
    return [
        (colours[kind // len(SHAPES)], SHAPES[kind % len(SHAPES)], int(cell))
        for kind, cell in zip(kinds, cells, strict=True)
    ]


def _captions(rng: np.random.Generator, things: list[Thing]) -> list[str]:
    captions = []
    for sentence in rng.permutation(SENTENCES)[:CAPTIONS]:
        first, second = rng.choice(len(things), size=2, replace=False)
        named = [f"{things[i][0]} {things[i][1]}" for i in (first, second)]
        captions.append(str(sentence).format(*named))
    return captions


def _description(things: list[Thing]) -> str:
    parts = [
        f"in the {ROW_NAMES[cell // GRID]} row , {COLUMN_NAMES[cell % GRID]} , "
        f"there is a {colour} {shape} ."
        for colour, shape, cell in sorted(things, key=lambda thing: thing[2])
    ]
    return "the picture shows three shapes . " + " ".join(parts)


def _shapes(rng: np.random.Generator, things: list[Thing]) -> Image.Image:
    side = GRID * CELL
    clutter = rng.uniform(70, 150, size=(side // 4, side // 4, 3)).repeat(4, 0).repeat(4, 1)
    image = Image.fromarray((clutter + rng.normal(0, 6, clutter.shape)).clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for colour, shape, cell in things:
        left, top = cell % GRID * CELL, cell // GRID * CELL
        _draw(draw, shape, left, top, COLOURS[colour])
    return image


def _draw(
    draw: ImageDraw.ImageDraw, shape: str, left: int, top: int, colour: tuple[int, int, int]
) -> None:
    low_x, low_y, high_x, high_y = left + 1, top + 1, left + CELL - 2, top + CELL - 2
    middle_x, middle_y = left + CELL // 2, top + CELL // 2
    if shape == "disc":
        draw.ellipse((low_x, low_y, high_x, high_y), fill=colour)
    elif shape == "square":
        draw.rectangle((low_x, low_y, high_x, high_y), fill=colour)
    elif shape == "triangle":
        draw.polygon([(middle_x, low_y), (low_x, high_y), (high_x, high_y)], fill=colour)
    else:
        draw.rectangle((middle_x - 2, low_y, middle_x + 1, high_y), fill=colour)
        draw.rectangle((low_x, middle_y - 2, high_x, middle_y + 1), fill=colour)
