"""Small images with sparse captions and dense descriptions, for machines without a benchmark.

An image shows three coloured shapes in cells of a 4 x 4 grid, the other cells hold clutter. A sparse
caption names two of them; the dense description names all three and where they are. So a caption alone
is ambiguous, the dense text of its image is not, and most patches mean nothing. The files have the
layout of LAPS and SEPS (`sdtps.data.captions`); the same configuration gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from sdtps.config.retrieval import GeneratedRetrievalConfig
from sdtps.errors import DataError
from sdtps.run.locations import made_below

GENERATOR_VERSION = 1  # raise when a byte changes
GRID = 4
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
ROWS = ("top", "upper", "lower", "bottom")
COLUMNS = ("left", "inner left", "inner right", "right")
SENTENCES = (
    "a {} and a {} .",
    "there is a {} beside a {} .",
    "a picture of a {} with a {} .",
    "one {} , one {} .",
    "a {} can be seen , also a {} .",
)

Thing = tuple[str, str, int]  # colour, shape, cell


def generated_name(config: GeneratedRetrievalConfig) -> str:
    """A folder name that changes with anything that changes a byte."""
    text = json.dumps(_recipe(config), sort_keys=True)
    return f"generated-captions-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def generate_captions(config: GeneratedRetrievalConfig, root: Path) -> Path:
    """Write the data set as the folder `root` unless it is there; returns `root`.

    Several processes may call this at once: each writes its own copy, the first to finish renames it
    into place, and the others drop theirs.

    Raises:
        DataError: `root` exists and is not this data set.
    """
    root = Path(root)
    if not root.exists():
        with made_below(root.parent):
            root.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(dir=root.parent, prefix=f".{root.name}."))
            try:
                _write(config, draft)
                draft.chmod(0o755)
                try:
                    draft.rename(root)
                except OSError:
                    if not root.is_dir():  # otherwise another process was first
                        raise
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    try:
        found = json.loads((root / "generated.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        found = None
    if found != _recipe(config):
        raise DataError(
            f"{root}: exists, but was not generated with {_recipe(config)} (found {found}). "
            "Name another folder, or move this one away."
        )
    return root


def _recipe(config: GeneratedRetrievalConfig) -> dict[str, int]:
    return {"version": GENERATOR_VERSION, **config.model_dump()}


def _write(config: GeneratedRetrievalConfig, folder: Path) -> None:
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
            (folder / "images" / name).write_bytes(_picture(rng, things))
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
    recipe = json.dumps(_recipe(config), sort_keys=True, indent=2)
    (folder / "generated.json").write_text(recipe + "\n", encoding="utf-8")


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
        f"in the {ROWS[cell // GRID]} row , {COLUMNS[cell % GRID]} , there is a {colour} {shape} ."
        for colour, shape, cell in sorted(things, key=lambda thing: thing[2])
    ]
    return "the picture shows three shapes . " + " ".join(parts)


def _picture(rng: np.random.Generator, things: list[Thing]) -> bytes:
    side = GRID * CELL
    clutter = rng.uniform(70, 150, size=(side // 4, side // 4, 3)).repeat(4, 0).repeat(4, 1)
    image = Image.fromarray((clutter + rng.normal(0, 6, clutter.shape)).clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for colour, shape, cell in things:
        left, top = cell % GRID * CELL, cell // GRID * CELL
        _draw(draw, shape, left, top, COLOURS[colour])
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=92, subsampling=0)
    return stream.getvalue()


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
