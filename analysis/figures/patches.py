"""sdtps patches RUN... -o FILE.png: which patches of the same images runs keep and aggregate.

For retrieval see `analysis.figures.caption_patches`; here re-identification. Read from the model
itself while it encodes the images: nothing is computed a second way. In the picture a row for each
image, its modalities side by side for each run. Dropped patches are dark.
Kept ones show the image; the orange on them is as strong as their share in the aggregated tokens,
relative to an even share among the kept. White lines run between kept and dropped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from analysis.figures.sheet import DARK, Group, Tile, drawn
from sdtps.config import ReidConfig
from sdtps.system.commandline import at_least
from sdtps.system.errors import RunError
from sdtps.system.files import write_bytes, write_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sdtps.data.reid_folders import ReidDataset, Sample
    from sdtps.multimodal import OneModality
    from sdtps.selection import Selection
    from sdtps.trained.model import Trained

TILE = 0.95  # inches
ORANGE = np.array([230, 159, 0]) / 255
# Opacity of a share, as a multiple of the even share 1/K: an even one is faint, so that a network that
# weighs nothing looks like it; from three times on it is as strong as it gets.
STRONGEST, MOST = 0.75, 3.0
NAMES = {"rgb": "RGB", "nir": "NIR", "tir": "TIR"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `patches`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="run folders, left to right")
    add(
        "-o",
        "--output",
        type=Path,
        required=True,
        help="FILE.png to write; its caption goes to FILE.txt",
    )
    add(
        "--images",
        type=at_least(1),
        default=4,
        help="test images to show, one for each identity (default 4)",
    )
    add(
        "--captions",
        type=at_least(1),
        metavar="N",
        help="retrieval: captions of each image to show (default 1)",
    )
    add("--initial", action="store_true", help="show the first run before training too")


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
        RunError: a run that cannot be drawn (named), or runs of both tasks.
    """
    from sdtps.trained.model import load

    if output.suffix.lower() != ".png":
        raise RunError(f"{output}: patch pictures are PNG; name the file FILE.png")
    runs = [load(path, "last") for path in paths]
    first = runs[0].config.task
    for path, run in zip(paths, runs, strict=True):
        if run.config.task != first:
            other = f"is a run of {run.config.task}, {paths[0]} one of {first}"
            raise RunError(f"{path}: {other}: draw them apart")
    shown = [(run, False) for run in runs]
    if initial:
        shown.insert(0, (runs[0], True))
    if first == "retrieval":
        from analysis.figures.caption_patches import retrieval_picture

        picture, text = retrieval_picture(shown, count, captions or 1)
    elif captions is not None:
        raise RunError("--captions is for retrieval; these are runs of re-identification")
    else:
        picture, text = reid_picture(shown, count)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(output, picture)
    write_text(output.with_suffix(".txt"), text + "\n")


def label_of(run: Trained, initial: bool) -> str:
    """What a run is called in a picture."""
    return f"{run.name}, {'before training' if initial else f'step {run.step}'}"


def reid_picture(runs: Sequence[tuple[Trained, bool]], count: int) -> tuple[bytes, str]:
    """The picture as PNG and its caption.

    Args:
        runs: each with whether it is shown before training.
    """
    from sdtps.data.load import load_reid_data

    config = cast("ReidConfig", runs[0][0].config)
    dataset = load_reid_data(config)
    samples = choose(dataset, count)
    names = [name_of(sample, dataset) for sample in samples]
    pixels = load_pixels(config, dataset, samples)
    groups = [
        Group("images", {NAMES[m]: [Tile(images[m]) for images in pixels] for m in pixels[0]}),
        *(_group(run, initial, names, pixels) for run, initial in runs),
    ]
    text = (
        f"Patches of {len(names)} test images of {dataset.name} in "
        f"{', '.join(NAMES[m] for m in pixels[0])}. "
        f"{'; '.join(label_of(run, initial) for run, initial in runs)}. "
        "Dark: dropped; plain: kept; orange: share in the aggregated tokens, faint where it is that of "
        "every kept patch, strongest from three times that."
    )
    legend = (
        "dark: dropped · plain: kept · orange: share in the aggregated tokens, faint where it is even"
    )
    return drawn(groups, legend, TILE), text


def _group(
    run: Trained, initial: bool, names: Sequence[str], pixels: Sequence[dict[str, np.ndarray]]
) -> Group:
    """A run's columns; one without SDTPS shows the images with a word on why."""
    maps = patch_maps(run, names, initial=initial)
    title = label_of(run, initial) + ("" if maps else " (no selection)")
    columns = {
        NAMES[m]: [
            Tile(images[m], layer(maps[m][row]), maps[m][row].kept) if maps else Tile(images[m])
            for row, images in enumerate(pixels)
        ]
        for m in pixels[0]
    }
    return Group(title, columns)


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


def layer(found: PatchMap) -> np.ndarray:
    """RGBA [rows, columns, 4]: dropped patches dark, kept ones as orange as their share."""
    colours = np.zeros((*found.kept.shape, 4))
    if found.weight is not None:
        colours[..., :3] = ORANGE
        colours[..., 3] = STRONGEST * np.minimum(found.weight * found.kept.sum() / MOST, 1.0)
    colours[~found.kept] = DARK
    return colours


def choose(dataset: ReidDataset, count: int) -> list[Sample]:
    """The first query of each of the first `count` test identities: the same for every run."""
    chosen: dict[int, Sample] = {}
    for sample in sorted(dataset.query, key=lambda s: (s.pid, s.camid, s.images)):
        chosen.setdefault(sample.pid, sample)
    return list(chosen.values())[:count]


def name_of(sample: Sample, dataset: ReidDataset) -> str:
    return sample.images[0].relative_to(dataset.root).as_posix()


def load_pixels(
    config: ReidConfig, dataset: ReidDataset, samples: Sequence[Sample]
) -> list[dict[str, np.ndarray]]:
    """Image by image, modality to uint8 [height, width, 3]: as the model sees them, and those that the
    data have."""
    from sdtps.data.images import BILINEAR
    from sdtps.data.reid_batches import decode
    from sdtps.multimodal import MODALITIES

    decoded = [decode(s, config.data, BILINEAR).transpose(0, 2, 3, 1) for s in samples]
    return [
        {m: image for m, image in zip(MODALITIES, images, strict=True) if m[0] not in dataset.absent}
        for images in decoded
    ]


def patch_maps(
    run: Trained, names: Sequence[str], *, initial: bool = False
) -> dict[str, list[PatchMap]]:
    """Modality to the maps of the images called `names` in the run's own data; empty without SDTPS.

    Args:
        initial: the weights before training instead of those of the last epoch.

    Raises:
        RunError: weights that are not finite, or an image that the data do not have.
    """
    import torch

    from sdtps.data.images import BILINEAR
    from sdtps.data.load import load_reid_data
    from sdtps.data.reid_batches import TestBatches, decode
    from sdtps.models.backbones import patch_size
    from sdtps.models.reid import ReidModel
    from sdtps.training.device import seed_everything

    config = cast("ReidConfig", run.config)
    dataset = load_reid_data(config)
    by_name = {name_of(s, dataset): s for s in dataset.query}
    if missing := [name for name in names if name not in by_name]:
        raise RunError(f"{run.file}: its data ({dataset.root}) have no image {missing[0]}")
    samples = [by_name[name] for name in names]
    if not initial:  # the file holds every weight: pretrained files need not be on this machine
        backbone = config.backbone.model_copy(update={"weights": "random"})
        config = config.model_copy(update={"backbone": backbone})
    seed_everything(run.seed)
    model = ReidModel(config, dataset.train_pids, dataset.cameras)
    if not initial:
        model.load_state_dict(run.weights)
    check_finite(model, run)
    if model.sdtps is None:
        return {}
    pixels = np.stack([decode(s, config.data, BILINEAR) for s in samples])
    (batch,) = TestBatches(samples, pixels, len(samples), torch.device("cpu"), dataset.absent)
    model.eval()
    modalities = cast("dict[str, OneModality]", dict(model.sdtps.modalities.items()))
    recorded: dict[str, list[Selection]] = {name: [] for name in modalities}
    for name, modality in modalities.items():
        for module in (modality.selection, modality.selection_dense):
            if module is not None:
                module.register_forward_hook(
                    lambda m, i, found, into=recorded[name]: into.append(found)
                )
    patch = patch_size(config.backbone)
    grid = config.data.height // patch, config.data.width // patch
    with torch.inference_mode():
        model(batch.images, batch.camids)
        return {name: _maps(modalities[name], recorded[name], grid) for name in modalities}


def check_finite(model: torch.nn.Module, run: Trained) -> None:
    """Raises RunError where a weight is not finite."""
    import torch

    if not all(torch.isfinite(p).all() for p in model.parameters()):
        raise RunError(f"{run.file}: its weights are not finite; there is nothing to draw")


def _maps(
    modality: OneModality, selections: Sequence[Selection], grid: tuple[int, int]
) -> list[PatchMap]:
    """One map for each image, from the one or two selections of a modality."""
    import torch

    kept = torch.stack([s.decision > 0.5 for s in selections]).any(dim=0).unflatten(1, grid).numpy()
    shares = _shares(modality, selections)
    if not shares:
        return [PatchMap(k, None) for k in kept]
    weight = torch.stack(shares).mean(dim=0).unflatten(1, grid).double().numpy()
    return [PatchMap(k, w) for k, w in zip(kept, weight, strict=True)]


def _shares(modality: OneModality, selections: Sequence[Selection]) -> list[Tensor]:
    """For each selection the share [B, N] of every patch in all aggregated tokens."""
    from sdtps.selection import order

    aggregation = modality.aggregation
    shares: list[Tensor] = []
    for selection, network in zip(
        selections, aggregation.networks if aggregation else (), strict=False
    ):
        assert aggregation is not None
        rows = aggregation.weights(
            network, selection.tokens, selection.kept_decision, selection.kept_score
        )
        share = rows.mean(dim=-2)  # [B, A, K] -> [B, K]; each row sums to 1
        index = order(selection.score)[1][..., : share.shape[-1]]
        shares.append(share.new_zeros(selection.score.shape).scatter(-1, index, share))
    return shares
