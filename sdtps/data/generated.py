"""A three-modality data set for machines without a benchmark, as real JPEG files in RGBNT201's layout.

An identity is a triple of symbols, one for each modality. Each symbol is shared by several identities,
so no modality alone can tell them apart. The symbol is shown in a few cells of an 8 x 4 grid, the same
cells in the three modalities, placed anew for every image; the other cells hold clutter. Cameras differ
in brightness and tint. The same configuration gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from PIL import Image

from sdtps.config.reid import GeneratedReidConfig
from sdtps.data.reid_folders import RGBNT201_FOLDERS
from sdtps.errors import DataError
from sdtps.run.locations import made_below

GENERATOR_VERSION = 1  # raise when the pictures change
ROWS, COLUMNS = 8, 4  # cells of the grid
IDENTITY_CELLS = 4  # of 32
SYMBOL_PIXELS = 4  # a symbol is a 4 x 4 pattern, enlarged to its cell
SHARED_BY = 5  # identities that share a symbol, about
CHANNELS = (3, 1, 1)  # colour, and two grey images
JPEG_QUALITY = 92


def generated_name(config: GeneratedReidConfig, height: int, width: int) -> str:
    """A folder name that changes with anything that changes a byte."""
    text = json.dumps(_recipe(config, height, width), sort_keys=True)
    return f"generated-reid-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def generate_rgbnt201(
    config: GeneratedReidConfig, height: int, width: int, root: Path, *, processes: int = 1
) -> Path:
    """Write RGBNT201/ below `root` unless it is there; returns `root`. Same bytes by any `processes`.

    Several processes may call this at once: each writes its own copy, the first to finish renames it
    into place, and the others drop theirs.

    Raises:
        DataError: `root` holds an RGBNT201/ that is not this data set, or images of a size that the
            grid does not divide.
    """
    if height % (ROWS * SYMBOL_PIXELS) or width % (COLUMNS * SYMBOL_PIXELS):
        raise DataError(
            f"generated images of {height}x{width}: the height must be a multiple of "
            f"{ROWS * SYMBOL_PIXELS} and the width of {COLUMNS * SYMBOL_PIXELS}"
        )
    root = Path(root)
    target = root / "RGBNT201"
    if not target.exists():
        with made_below(root):
            root.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(dir=root, prefix=".RGBNT201."))
            try:
                _write(config, height, width, draft, processes)
                draft.chmod(0o755)
                try:
                    draft.rename(target)
                except OSError:
                    if not target.is_dir():  # otherwise another process was first
                        raise
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    _check_recipe(config, height, width, target)
    return root


def _recipe(config: GeneratedReidConfig, height: int, width: int) -> dict[str, int]:
    return {"version": GENERATOR_VERSION, "height": height, "width": width, **config.model_dump()}


def _check_recipe(config: GeneratedReidConfig, height: int, width: int, target: Path) -> None:
    wanted = _recipe(config, height, width)
    try:
        found = json.loads((target / "generated.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        found = None
    if found != wanted:
        raise DataError(
            f"{target}: exists, but was not generated with {wanted} (found {found}). "
            "Name another folder, or move this one away."
        )


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


def _write(config: GeneratedReidConfig, height: int, width: int, folder: Path, processes: int) -> None:
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
    recipe = json.dumps(_recipe(config, height, width), sort_keys=True, indent=2)
    (folder / "generated.json").write_text(recipe + "\n", encoding="utf-8")


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
                (folder / split / modality / name).write_bytes(_jpeg(picture))


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


def _jpeg(picture: np.ndarray) -> bytes:
    pixels = np.clip(picture, 0, 255).round().astype(np.uint8)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return stream.getvalue()
