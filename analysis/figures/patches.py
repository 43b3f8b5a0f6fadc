"""sdtps patches RUN... -o FILE.png: which patches of the same images runs keep and aggregate.

A row for each image, three modalities side by side for each run. Dropped patches are dark and grey.
Kept ones show the image; the orange on them is as strong as their share in the aggregated tokens,
relative to an even share among the kept. White lines run between kept and dropped.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sdtps.commandline import at_least
from sdtps.errors import RunError
from sdtps.files import write_bytes, write_text
from sdtps.run.folder import RunFolder

if TYPE_CHECKING:
    from analysis.figures.patch_maps import Images, PatchMap, RunMaps

TILE = 96  # pixels: the shorter side of an image
GAP, GROUP_GAP, MARGIN = 4, 18, 14
HEAD = 46  # two lines of text above each group
ORANGE = np.array([230, 159, 0], dtype=np.float64)
# Opacity of a share, as a multiple of the even share 1/K: an even one is faint, so that a network that
# weighs nothing looks like it; from three times on it is as strong as it gets.
STRONGEST, MOST = 0.75, 3.0
DROPPED = 0.25  # brightness of dropped patches
PAPER, INK, MUTED = (255, 255, 255), (28, 33, 39), (92, 102, 112)
NAMES = {"rgb": "RGB", "nir": "NIR", "tir": "TIR"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `patches`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, left to right")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="a .png; FILE.txt gets its caption"
    )
    parser.add_argument(
        "--images", type=at_least(1), default=4, help="test identities to show (default 4)"
    )
    parser.add_argument("--initial", action="store_true", help="show the first run before training too")


def command(arguments: argparse.Namespace) -> int:
    """Draw; prints the file. Raises RunError."""
    write(arguments.runs, arguments.output, count=arguments.images, initial=arguments.initial)
    print(arguments.output)
    return 0


def write(paths: Sequence[Path], output: Path, *, count: int = 4, initial: bool = False) -> None:
    """Write the picture and beside it its caption, which the report shows with it.

    Raises:
        RunError: a run that cannot be drawn (named), or a count below 1.
    """
    from analysis.figures.patch_maps import choose, load_images, name_of, reid_config, run_maps
    from sdtps.data.reid_folders import load_reid_data

    if count < 1:
        raise RunError(f"--images {count}: at least 1")
    if output.suffix.lower() != ".png":
        raise RunError(f"{output}: patch pictures are PNG; name the file FILE.png")
    config = reid_config(RunFolder(paths[0]))
    dataset, _ = load_reid_data(config)
    samples = choose(dataset, count)
    names = [name_of(sample, dataset) for sample in samples]
    images = load_images(config, dataset, samples)
    runs = [run_maps(paths[0], names, initial=True)] if initial else []
    runs += [run_maps(path, names) for path in paths]
    output.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(output, draw(images, runs))
    shown = "; ".join(r.label for r in runs)
    text = (
        f"Patches of {len(names)} test images of {dataset.name} in their three modalities. {shown}. "
        "Dark: dropped; plain: kept; orange: share in the aggregated tokens, faint where it is that of "
        "every kept patch, strongest from three times that."
    )
    write_text(output.with_suffix(".txt"), text + "\n")


def draw(images: Images, runs: Sequence[RunMaps]) -> bytes:
    """The picture as PNG; the same input gives the same bytes.

    Args:
        images: originals, shown in the first group.
        runs: one group of columns each; one without SDTPS shows the images with a word on why.
    """
    height, width = next(iter(images.pixels[0].values())).shape[:2]
    scale = TILE / min(height, width)
    tile = round(width * scale), round(height * scale)
    modalities = list(images.pixels[0])
    group = len(modalities) * (tile[0] + GAP) - GAP
    groups = 1 + len(runs)
    total = (
        2 * MARGIN + groups * group + (groups - 1) * GROUP_GAP,
        2 * MARGIN + HEAD + len(images.names) * (tile[1] + GAP) - GAP + 24,
    )
    sheet = Image.new("RGB", total, PAPER)
    pen = ImageDraw.Draw(sheet)
    for number in range(groups):
        left = MARGIN + number * (group + GROUP_GAP)
        run = runs[number - 1] if number else None
        title = "images" if run is None else run.label
        pen.text((left, MARGIN), fitted(title, group, 13), INK, font(13))
        if run is not None and not run.maps:
            pen.text((left + group, MARGIN + 18), "no selection", MUTED, font(11), anchor="ra")
        for column, modality in enumerate(modalities):
            x = left + column * (tile[0] + GAP)
            name = NAMES.get(modality, modality)
            pen.text((x, MARGIN + HEAD - 14), name, MUTED, font(11))
            for row in range(len(images.names)):
                pixels = images.pixels[row][modality]
                shown = (
                    pixels if run is None or not run.maps else painted(pixels, run.maps[row][modality])
                )
                picture = Image.fromarray(shown).resize(tile, Image.Resampling.BILINEAR)
                y = MARGIN + HEAD + row * (tile[1] + GAP)
                sheet.paste(picture, (x, y))
                if run is not None and run.maps:
                    _borders(pen, run.maps[row][modality].kept, (x, y), tile)
    legend = (
        "dark: dropped · plain: kept · orange: share in the aggregated tokens, faint where it is even"
    )
    pen.text(
        (MARGIN, total[1] - MARGIN), fitted(legend, total[0] - 2 * MARGIN, 11), MUTED, font(11), "ls"
    )
    stream = io.BytesIO()
    sheet.save(stream, format="PNG", compress_level=9)
    return stream.getvalue()


def painted(pixels: np.ndarray, patch_map: PatchMap) -> np.ndarray:
    """Pixels uint8 [H, W, 3] with a map [rows, columns] laid over them."""
    rows, columns = patch_map.kept.shape
    size = pixels.shape[0] // rows, pixels.shape[1] // columns
    kept = np.kron(patch_map.kept, np.ones(size, dtype=bool))[..., None]
    image = pixels.astype(np.float64)
    grey = np.repeat(image.mean(axis=2, keepdims=True), 3, axis=2) * DROPPED
    result = np.where(kept, image, grey)
    if patch_map.weight is not None and patch_map.weight.max() > 0:
        multiple = patch_map.weight * patch_map.kept.sum()
        opacity = STRONGEST * np.minimum(multiple / MOST, 1.0)
        opacity = np.kron(opacity, np.ones(size))[..., None] * kept
        result = (1 - opacity) * result + opacity * ORANGE
    return np.floor(result + 0.5).astype(np.uint8)


def _borders(
    pen: ImageDraw.ImageDraw, kept: np.ndarray, corner: tuple[int, int], tile: tuple[int, int]
) -> None:
    """White lines where a kept patch meets a dropped one."""
    rows, columns = kept.shape
    xs = [corner[0] + round(i * tile[0] / columns) for i in range(columns + 1)]
    ys = [corner[1] + round(i * tile[1] / rows) for i in range(rows + 1)]
    for r, c in zip(*np.nonzero(kept[:, 1:] != kept[:, :-1]), strict=True):
        pen.line([(xs[c + 1], ys[r]), (xs[c + 1], ys[r + 1])], fill=PAPER)
    for r, c in zip(*np.nonzero(kept[1:] != kept[:-1]), strict=True):
        pen.line([(xs[c], ys[r + 1]), (xs[c + 1], ys[r + 1])], fill=PAPER)


def font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans as matplotlib ships it: the same letters on every machine."""
    import matplotlib as mpl

    return ImageFont.truetype(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)


def fitted(text: str, width: int, size: int) -> str:
    """`text` cut with an ellipsis to `width` pixels."""
    letters = font(size)
    if letters.getlength(text) <= width:
        return text
    while text and letters.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
