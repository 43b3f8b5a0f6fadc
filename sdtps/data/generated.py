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

import argparse
import hashlib
import io
import json
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from sdtps.config.reid import GeneratedReidConfig
from sdtps.config.retrieval import GeneratedRetrievalConfig
from sdtps.data.reid_folders import RGBNT201_FOLDERS
from sdtps.run.locations import made_below
from sdtps.system.commandline import at_least
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


def _name(kind: str, recipe: dict[str, int]) -> str:
    """A folder name that changes with anything that changes a byte."""
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    return f"generated-{kind}-{digest[:10]}"


def _written_once(target: Path, recipe: dict[str, int], write: Callable[[Path], None]) -> None:
    """Have `write` fill the folder `target` unless it is there.

    Several processes may call this at once: each writes its own copy, the first to finish renames it
    into place, and the others drop theirs.

    Raises:
        DataError: `target` exists and was not made by this recipe.
    """
    root = target.parent
    if not target.exists():
        with made_below(root):
            root.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(dir=root, prefix=f".{target.name}."))
            try:
                write(draft)
                text = json.dumps(recipe, sort_keys=True, indent=2)
                (draft / "generated.json").write_text(text + "\n", encoding="utf-8")
                draft.chmod(0o755)
                try:
                    draft.rename(target)
                except OSError:
                    if not target.is_dir():  # otherwise another process was first
                        raise
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    try:
        found = json.loads((target / "generated.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        found = None
    if found != recipe:
        raise DataError(
            f"{target}: exists, but was not generated with {recipe} (found {found}). "
            "Name another folder, or move this one away."
        )


def _jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return stream.getvalue()


# -- re-identification -----------------------------------------------------------------------------


def rgbnt201_name(config: GeneratedReidConfig, height: int, width: int) -> str:
    """The name of the folder of this data set in a cache."""
    return _name("reid", _reid_recipe(config, height, width))


def generate_rgbnt201(
    config: GeneratedReidConfig, height: int, width: int, root: Path, *, processes: int = 1
) -> Path:
    """Write RGBNT201/ below `root` unless it is there; returns `root`. Same bytes by any `processes`.

    Raises:
        DataError: `root` holds an RGBNT201/ that is not this data set, or images of a size that the
            grid does not divide.
    """
    if height % (ROWS * SYMBOL_PIXELS) or width % (COLUMNS * SYMBOL_PIXELS):
        raise DataError(
            f"generated images of {height}x{width}: the height must be a multiple of "
            f"{ROWS * SYMBOL_PIXELS} and the width of {COLUMNS * SYMBOL_PIXELS}"
        )
    write = partial(_write_reid, config, height, width, processes)
    _written_once(Path(root) / "RGBNT201", _reid_recipe(config, height, width), write)
    return Path(root)


def _reid_recipe(config: GeneratedReidConfig, height: int, width: int) -> dict[str, int]:
    return {"version": GENERATOR_VERSION, "height": height, "width": width, **config.model_dump()}


def image_count(config: GeneratedReidConfig) -> int:
    """Files that `generate_rgbnt201` writes."""
    triples = (config.train_pids + config.test_pids) * config.cameras * config.images_per_camera
    return len(CHANNELS) * triples


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


def _write_reid(
    config: GeneratedReidConfig, height: int, width: int, processes: int, folder: Path
) -> None:
    for split in ("train_171", "test"):
        for modality in RGBNT201_FOLDERS:
            (folder / split / modality).mkdir(parents=True)
    write = partial(_write_identity, config, height, width, folder)
    pids = range(config.train_pids + config.test_pids)
    if processes > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            list(pool.map(write, pids, chunksize=4))
    else:
        for pid in pids:
            write(pid)


def _write_identity(
    config: GeneratedReidConfig, height: int, width: int, folder: Path, pid: int
) -> None:
    """All images of identity `pid` (from 0; training identities come first)."""
    alphabet, symbols, tints, offsets = _world(config)
    split = "train_171" if pid < config.train_pids else "test"
    for camera in range(config.cameras):
        for shot in range(config.images_per_camera):
            draws = np.random.default_rng([config.seed, 2, pid, camera, shot])
            cells = draws.choice(ROWS * COLUMNS, size=IDENTITY_CELLS, replace=False)
            name = f"{pid + 1:06d}_cam{camera + 1}_0_{shot:02d}.jpg"
            for m, modality in enumerate(RGBNT201_FOLDERS):
                own = alphabet[m][symbols[pid, m]]
                picture = _picture(draws, own, cells, CHANNELS[m], height, width)
                picture = picture * tints[camera, m, : CHANNELS[m]] + offsets[camera, m]
                (folder / split / modality / name).write_bytes(_jpeg(_pixels(picture)))


@lru_cache(maxsize=1)
def _world(
    config: GeneratedReidConfig,
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Each modality's symbols, each identity's, and each camera's tint and brightness."""
    rng = np.random.default_rng([config.seed, 0])
    alphabet = [_symbols(rng, symbol_count(config), channels) for channels in CHANNELS]
    tints = rng.uniform(0.85, 1.15, size=(config.cameras, len(CHANNELS), 3))
    offsets = rng.uniform(-12, 12, size=(config.cameras, len(CHANNELS)))
    return alphabet, identity_symbols(config), tints, offsets


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


def captions_name(config: GeneratedRetrievalConfig) -> str:
    """The name of the folder of this data set in a cache."""
    return _name("captions", _captions_recipe(config))


def generate_captions(config: GeneratedRetrievalConfig, root: Path) -> Path:
    """Write the data set as the folder `root` unless it is there; returns `root`.

    Raises:
        DataError: `root` exists and is not this data set.
    """
    _written_once(Path(root), _captions_recipe(config), partial(_write_captions, config))
    return Path(root)


def _captions_recipe(config: GeneratedRetrievalConfig) -> dict[str, int]:
    return {"version": GENERATOR_VERSION, **config.model_dump()}


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


# -- the verb `generate` ---------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", type=Path, help="folder that will hold the generated RGBNT201/")
    parser.add_argument("--train-pids", type=at_least(2), default=24)
    parser.add_argument("--test-pids", type=at_least(1), default=16)
    parser.add_argument("--cameras", type=at_least(2), default=2)
    parser.add_argument("--images-per-camera", type=at_least(1), default=4)
    parser.add_argument("--height", type=at_least(1), default=64)
    parser.add_argument("--width", type=at_least(1), default=32)
    parser.add_argument("--seed", type=at_least(0), default=0)


def command(arguments: argparse.Namespace) -> int:
    """Write the images; prints their folder."""
    config = GeneratedReidConfig(
        train_pids=arguments.train_pids,
        test_pids=arguments.test_pids,
        cameras=arguments.cameras,
        images_per_camera=arguments.images_per_camera,
        seed=arguments.seed,
    )
    print(generate_rgbnt201(config, arguments.height, arguments.width, arguments.root))
    return 0
