"""What a run does to the patches of some images: kept or dropped, and how much each is aggregated.

Read from the model itself while it encodes the images: nothing is computed a second way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sdtps.config import ReidConfig
from sdtps.errors import RunError
from sdtps.run.folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sdtps.data.reid_folders import ReidDataset, Sample
    from sdtps.multimodal import OneModality
    from sdtps.selection import Selection


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


def reid_config(folder: RunFolder) -> ReidConfig:
    """Raises RunError for a run of another task, or without a configuration (imported runs)."""
    if not folder.config_file.exists():
        raise RunError(f"{folder.path}: no config.yaml; patch pictures need a run of ours")
    config = folder.config()
    if not isinstance(config, ReidConfig):
        raise RunError(
            f"{folder.path}: task {config.task}; patch pictures are drawn for re-identification runs"
        )
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
    """Decode `samples` at the size that the model sees."""
    from sdtps.data.images import BILINEAR
    from sdtps.data.reid_batches import decode
    from sdtps.multimodal import MODALITIES

    size = config.data.height, config.data.width
    pixels = [dict(zip(MODALITIES, decode(sample, *size, BILINEAR), strict=True)) for sample in samples]
    return Images(tuple(name_of(s, dataset) for s in samples), tuple(pixels))


def run_maps(path: Path | str, names: Sequence[str], *, initial: bool = False) -> RunMaps:
    """Maps of the images called `names` in the run's own data set.

    Args:
        initial: the weights before training instead of those of the last epoch.

    Raises:
        RunError: no weights, weights that are not finite, or an image that the data do not have.
    """
    import torch

    from sdtps.data.reid_batches import TestImages, collate
    from sdtps.data.reid_folders import load_reid_data
    from sdtps.models.reid import ReidModel
    from sdtps.training import checkpoint
    from sdtps.training.device import seed_everything

    folder = RunFolder(path)
    config = reid_config(folder)
    dataset, _ = load_reid_data(config)
    by_name = {name_of(s, dataset): s for s in dataset.query}
    if missing := [name for name in names if name not in by_name]:
        raise RunError(f"{folder.path}: its data ({dataset.root}) have no image {missing[0]}")
    samples = [by_name[name] for name in names]
    seed = int(folder.run().get("seed", 0))
    if initial:
        seed_everything(seed)
        model = ReidModel(config, dataset.train_pids, dataset.cameras)
        when = "before training"
    else:
        file = folder.weights_file("last")
        if not file.is_file():
            raise RunError(
                f"{folder.path}: no last.safetensors, so there is no trained model to draw. "
                "Run it: sdtps run FOLDER; or draw it before training: --initial"
            )
        weights, about = checkpoint.load_weights(file)
        # The file holds every weight: pretrained files need not be on this machine.
        backbone = config.backbone.model_copy(update={"weights": "random"})
        plain = config.model_copy(update={"backbone": backbone})
        model = ReidModel(plain, dataset.train_pids, dataset.cameras)
        model.load_state_dict(weights)
        when = f"step {about.get('step', '?')}"
    if not all(torch.isfinite(p).all() for p in model.parameters()):
        raise RunError(f"{folder.path}: its weights are not finite; there is nothing to draw")
    label = f"{folder.run().get('variant', folder.path.parent.name)}, seed {seed}, {when}"
    if model.sdtps is None:
        return RunMaps(label, ())
    images = TestImages(samples, config.data)
    batch = collate([images[i] for i in range(len(samples))])
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
            patch = _patch_size(config)
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


def _patch_size(config: ReidConfig) -> int:
    return 16 if config.backbone.name == "clip_vit_b16" else config.backbone.patch


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
