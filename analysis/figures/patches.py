"""sdtps patches RUN... -o FILE.png: which patches of the same images runs keep and aggregate.

For retrieval see `analysis.figures.caption_patches`; here re-identification. Read from the model
itself while it encodes the images: nothing is computed a second way. In the picture a row for each
image, its modalities side by side for each run. Dropped patches are dark and grey.
Kept ones show the image; the orange on them is as strong as their share in the aggregated tokens,
relative to an even share among the kept. White lines run between kept and dropped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image, ImageDraw

from analysis.figures.sheet import DROPPED, INK, MUTED, PAPER, borders, fitted, font, png
from sdtps.config import ReidConfig
from sdtps.run.folder import RunFolder
from sdtps.system.commandline import at_least
from sdtps.system.errors import RunError
from sdtps.system.files import write_bytes, write_text

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sdtps.data.reid_folders import ReidDataset, Sample
    from sdtps.multimodal import OneModality
    from sdtps.selection import Selection

TILE = 96  # pixels: the shorter side of an image
GAP, GROUP_GAP, MARGIN = 4, 18, 14
HEAD = 46  # two lines of text above each group
ORANGE = np.array([230, 159, 0], dtype=np.float64)
# Opacity of a share, as a multiple of the even share 1/K: an even one is faint, so that a network that
# weighs nothing looks like it; from three times on it is as strong as it gets.
STRONGEST, MOST = 0.75, 3.0
NAMES = {"rgb": "RGB", "nir": "NIR", "tir": "TIR"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `patches`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, left to right")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        help="FILE.png to write; its caption goes to FILE.txt",
    )
    parser.add_argument(
        "--images",
        type=at_least(1),
        default=4,
        help="test images to show, one for each identity (default 4)",
    )
    parser.add_argument(
        "--captions",
        type=at_least(1),
        metavar="N",
        help="retrieval: captions of each image to show (default 1)",
    )
    parser.add_argument("--initial", action="store_true", help="show the first run before training too")


def command(arguments: argparse.Namespace) -> int:
    """Draw; prints the file. Raises RunError."""
    write(
        arguments.runs,
        arguments.output,
        count=arguments.images,
        captions=arguments.captions,
        initial=arguments.initial,
    )
    print(arguments.output)
    return 0


def write(
    paths: Sequence[Path],
    output: Path,
    *,
    count: int = 4,
    captions: int | None = None,
    initial: bool = False,
) -> None:
    """Write the picture and beside it its caption, which the report shows with it.

    Args:
        count: identities (retrieval: images) of the test split.
        captions: of each image, in retrieval; None = 1.

    Raises:
        RunError: a run that cannot be drawn (named), runs of both tasks, or a count below 1.
    """
    if count < 1:
        raise RunError(f"--images {count}: at least 1")
    if output.suffix.lower() != ".png":
        raise RunError(f"{output}: patch pictures are PNG; name the file FILE.png")
    tasks = {path: task_of_run(path) for path in paths}
    first = tasks[paths[0]]
    for path, task in tasks.items():
        if task != first:
            raise RunError(f"{path}: is a run of {task}, {paths[0]} one of {first}: draw them apart")
    if first == "retrieval":
        from analysis.figures.caption_patches import write_retrieval

        picture, text = write_retrieval(paths, count, captions or 1, initial)
    elif captions is not None:
        raise RunError("--captions is for retrieval; these are runs of re-identification")
    else:
        picture, text = _write_reid(paths, count, initial)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(output, picture)
    write_text(output.with_suffix(".txt"), text + "\n")


def _write_reid(paths: Sequence[Path], count: int, initial: bool) -> tuple[bytes, str]:
    """The picture as PNG and its caption."""
    from sdtps.data.load import load_reid_data

    config = reid_config(RunFolder(paths[0]))
    dataset = load_reid_data(config)
    samples = choose(dataset, count)
    names = [name_of(sample, dataset) for sample in samples]
    images = load_images(config, dataset, samples)
    runs = [run_maps(paths[0], names, initial=True)] if initial else []
    runs += [run_maps(path, names) for path in paths]
    shown = "; ".join(r.label for r in runs)
    text = (
        f"Patches of {len(names)} test images of {dataset.name} in "
        f"{', '.join(NAMES[m] for m in images.pixels[0])}. {shown}. "
        "Dark: dropped; plain: kept; orange: share in the aggregated tokens, faint where it is that of "
        "every kept patch, strongest from three times that."
    )
    return draw(images, runs), text


# -- what a run does ----------------------------------------------------------------------------


@dataclass(frozen=True)
class PatchMap:
    """One modality of one image, on the grid of patches [rows, columns].

    Attributes:
        kept: by the selection, or (dual aggregation) by at least one of its two.
        weight: share of each patch in the aggregated tokens, summing to 1; None without aggregation.
    """

    kept: np.ndarray
    weight: np.ndarray | None


@dataclass(frozen=True)
class RunMaps:
    """A run on some images. `maps`: image by image, modality to map; empty without SDTPS."""

    label: str
    maps: tuple[dict[str, PatchMap], ...]


@dataclass(frozen=True)
class Images:
    """Images of a test split: names below the data set's root, and pixels by modality.

    Attributes:
        pixels: image by image, modality to uint8 [height, width, 3], as the model sees them.
    """

    names: tuple[str, ...]
    pixels: tuple[dict[str, np.ndarray], ...]


def task_of_run(path: Path | str) -> str:
    """reid or retrieval; raises RunError for another program's run, or without a configuration."""
    folder = RunFolder(path)
    if not folder.config_file.exists():
        raise RunError(f"{folder.path}: no config.yaml; patch pictures need a run of ours")
    task = folder.config().task
    if task == "command":
        raise RunError(f"{folder.path}: task command; patch pictures need a run of ours")
    return task


def reid_config(folder: RunFolder) -> ReidConfig:
    """Raises RunError for a run of another task, or without a configuration (imported runs)."""
    if task_of_run(folder.path) != "reid":
        raise RunError(f"{folder.path}: is no run of re-identification")
    config = folder.config()
    assert isinstance(config, ReidConfig)
    return config


def choose(dataset: ReidDataset, count: int) -> list[Sample]:
    """The first query of each of the first `count` test identities: the same for every run."""
    chosen: dict[int, Sample] = {}
    for sample in sorted(dataset.query, key=lambda s: (s.pid, s.camid, s.images)):
        chosen.setdefault(sample.pid, sample)
    return list(chosen.values())[:count]


def name_of(sample: Sample, dataset: ReidDataset) -> str:
    return sample.images[0].relative_to(dataset.root).as_posix()


def load_images(config: ReidConfig, dataset: ReidDataset, samples: Sequence[Sample]) -> Images:
    """Decode `samples` at the size that the model sees, in the modalities that the data set has."""
    from sdtps.data.images import BILINEAR
    from sdtps.data.reid_batches import decode
    from sdtps.multimodal import MODALITIES

    decoded = [decode(s, config.data, BILINEAR).transpose(0, 2, 3, 1) for s in samples]
    pixels = [
        {m: image for m, image in zip(MODALITIES, images, strict=True) if m[0] not in dataset.absent}
        for images in decoded
    ]
    return Images(tuple(name_of(s, dataset) for s in samples), tuple(pixels))


def run_maps(path: Path | str, names: Sequence[str], *, initial: bool = False) -> RunMaps:
    """Maps of the images called `names` in the run's own data set.

    Args:
        initial: the weights before training instead of those of the last epoch.

    Raises:
        RunError: no weights, weights that are not finite, or an image that the data do not have.
    """
    import torch

    from sdtps.data.images import BILINEAR
    from sdtps.data.load import load_reid_data
    from sdtps.data.reid_batches import TestBatches, decode
    from sdtps.models.backbones import patch_size
    from sdtps.models.reid import ReidModel
    from sdtps.trained.model import load
    from sdtps.training.device import seed_everything

    folder = RunFolder(path)
    config = reid_config(folder)
    dataset = load_reid_data(config)
    by_name = {name_of(s, dataset): s for s in dataset.query}
    if missing := [name for name in names if name not in by_name]:
        raise RunError(f"{folder.path}: its data ({dataset.root}) have no image {missing[0]}")
    samples = [by_name[name] for name in names]
    if initial:
        seed = int(folder.run().get("seed", 0))
        seed_everything(seed)
        model = ReidModel(config, dataset.train_pids, dataset.cameras)
        label = f"{folder.run().get('variant', folder.path.parent.name)}, seed {seed}, before training"
    else:
        trained = load(folder.path, "last")
        # The file holds every weight: pretrained files need not be on this machine.
        backbone = config.backbone.model_copy(update={"weights": "random"})
        plain = config.model_copy(update={"backbone": backbone})
        model = ReidModel(plain, dataset.train_pids, dataset.cameras)
        model.load_state_dict(trained.weights)
        label = f"{trained.name}, step {trained.step}"
    if not all(torch.isfinite(p).all() for p in model.parameters()):
        raise RunError(f"{folder.path}: its weights are not finite; there is nothing to draw")
    if model.sdtps is None:
        return RunMaps(label, ())
    pixels = np.stack([decode(s, config.data, BILINEAR) for s in samples])
    (batch,) = TestBatches(samples, pixels, len(samples), torch.device("cpu"), dataset.absent)
    model.eval()
    recorded: dict[str, list[Selection]] = {m: [] for m in model.sdtps.modalities}
    modalities = cast("dict[str, OneModality]", dict(model.sdtps.modalities.items()))
    hooks = [
        module.register_forward_hook(_recorder(recorded[name]))
        for name, modality in modalities.items()
        for module in (modality.selection, modality.selection_dense)
        if module is not None
    ]
    try:
        with torch.inference_mode():
            model(batch.images, batch.camids)
            patch = patch_size(config.backbone)
            grid = config.data.height // patch, config.data.width // patch
            found = {
                name: _patch_maps(modality, recorded[name], grid)
                for name, modality in modalities.items()
            }
    finally:
        for hook in hooks:
            hook.remove()
    maps = tuple({name: found[name][i] for name in found} for i in range(len(samples)))
    return RunMaps(label, maps)


def _recorder(into: list[Selection]) -> Any:
    def record(module: nn.Module, inputs: Any, output: Selection) -> None:
        into.append(output)

    return record


def _patch_maps(
    modality: OneModality, selections: Sequence[Selection], grid: tuple[int, int]
) -> list[PatchMap]:
    """One map for each image, from the one or two selections of a modality."""
    import torch

    weights = [w for w in _shares(modality, selections) if w is not None]
    kept = torch.stack([s.decision > 0.5 for s in selections]).any(dim=0)
    weight = torch.stack(weights).mean(dim=0) if weights else None
    return [
        PatchMap(
            kept[i].reshape(grid).numpy(),
            None if weight is None else weight[i].reshape(grid).double().numpy(),
        )
        for i in range(len(kept))
    ]


def _shares(modality: OneModality, selections: Sequence[Selection]) -> list[Tensor | None]:
    """For each selection the share [B, N] of every patch in all aggregated tokens."""
    from sdtps.selection import order

    aggregation = modality.aggregation
    if aggregation is None:
        return [None] * len(selections)
    shares: list[Tensor | None] = []
    for selection, network in zip(selections, aggregation.networks, strict=True):
        rows = aggregation.weights(
            network, selection.tokens, selection.kept_decision, selection.kept_score
        )
        share = rows.mean(dim=-2)  # [B, A, K] -> [B, K]; each row sums to 1
        index = order(selection.score)[1][..., : share.shape[-1]]
        shares.append(share.new_zeros(selection.score.shape).scatter(-1, index, share))
    return shares


# -- the picture --------------------------------------------------------------------------------


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
                    borders(pen, run.maps[row][modality].kept, (x, y), tile)
    legend = (
        "dark: dropped · plain: kept · orange: share in the aggregated tokens, faint where it is even"
    )
    pen.text(
        (MARGIN, total[1] - MARGIN), fitted(legend, total[0] - 2 * MARGIN, 11), MUTED, font(11), "ls"
    )
    return png(sheet)


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
