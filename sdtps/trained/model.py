"""A trained model from a run's folder or from a weights file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sdtps.config import AnyConfig, Config, ProgramConfig, ReidConfig, load_config, parse_config
from sdtps.data.inputs import weights_file, weights_of
from sdtps.models.convert import convert, find_layout
from sdtps.models.reid import ReidModel
from sdtps.models.weights import load_exactly, read_tensors, weights_digest
from sdtps.run.folder import RunFolder, Weights
from sdtps.run.locations import find_folder, runs_root
from sdtps.system.errors import ConfigError, RunError, WeightsError
from sdtps.training.checkpoint import load_weights
from sdtps.training.device import for_machine, seed_everything
from sdtps.training.reid import ReidTask, trained_sizes
from sdtps.training.retrieval import RetrievalTask

WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")


@dataclass(frozen=True)
class Trained:
    """Weights with the configuration and the seed that they were trained with.

    Attributes:
        name: for readers: the variant and seed, or the file.
        which: best or last, of a run; None for a file.
        folder: the run, if it is one.
        epoch, step: of the weights; 0 where the file does not say.
        metrics: what was measured in training, by name; empty where the file does not say.
    """

    name: str
    file: Path
    which: Weights | None
    folder: RunFolder | None
    config: Config
    seed: int
    epoch: int
    step: int
    weights: dict[str, Tensor]
    metrics: dict[str, float]


def find_target(target: Path) -> Path:
    """A weights file as it is named, or the folder of a run (`find_folder`). Raises RunError."""
    target = Path(target)
    of_runs = any(next(target.glob(f"{level}seed*-*"), None) for level in ("", "*/"))
    if target.is_file() or target.suffix in WEIGHTS or (target.is_dir() and not of_runs):
        return target
    return find_folder(str(target), runs_root())


def load(
    target: Path,
    which: Weights = "best",
    config: Path | None = None,
    device: str | None = None,
) -> Trained:
    """The model in a run's folder, or in a weights file.

    Args:
        which: the run's selected or its last epoch.
        config: a config.yaml, for a file that does not hold its configuration (converted weights).
        device: where to compute; as in training by default.

    Raises:
        RunError: no finished run, or a file that cannot be read or does not say what it is of.
        ConfigError: a configuration with mistakes.
    """
    target = find_target(target)
    folder = RunFolder(target) if target.is_dir() else None
    if folder is not None:
        file = folder.weights_file(which)
        if not file.is_file():
            why = f"no {file.name}: the run has not completed, or the file was removed. "
            why += f"Train it: sdtps run {target}"
            if folder.config_file.is_file() and isinstance(folder.config(), ProgramConfig):
                why = "the run belongs to a program, of which no weights are kept here: nothing to load"
            raise RunError(f"{target}: {why}")
    else:
        file = target
    if file.suffix == ".safetensors":
        weights, about = load_weights(file)
    else:
        weights, about = read_tensors(file), {}
    if not about:
        weights = _under_our_names(weights)
    chosen: AnyConfig
    if config is not None:
        chosen = load_config(config)
    elif "config" in about:
        chosen = parse_config(about["config"], where=str(file))
    else:
        raise RunError(
            f"{file}: does not say its configuration (it was not written by a run). "
            "Give it: --config FILE, a run's config.yaml"
        )
    if isinstance(chosen, ProgramConfig):
        raise ConfigError(f"{target}: a run of another program has no model that can be evaluated here")
    if device is not None:
        train = chosen.train.model_copy(update={"device": device})
        chosen = chosen.model_copy(update={"train": train})
    seed = int(about.get("seed", 0))
    name = f"{about['variant']}, seed {seed}" if about.get("variant") else file.name
    return Trained(
        name,
        file,
        which if folder is not None else None,
        folder,
        chosen,
        seed,
        int(about.get("epoch") or 0),
        int(about.get("step") or 0),
        weights,
        about.get("metrics") or {},
    )


def _under_our_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Published weights (DeMo, LAPS, SEPS) by our names; others as they are."""
    weights = {name.removeprefix("module."): value for name, value in weights.items()}
    try:
        layout = find_layout(list(weights), "ours")
    except WeightsError:
        return weights
    return convert(weights, layout, "ours")


def with_data(config: Config, place: Path | None, dataset: str | None) -> Config:
    """`config` with other data: a folder or a table, a benchmark, or both; generated data give way."""
    if place is None and dataset is None:
        return config
    tree = config.model_dump(mode="json")
    data = tree["data"]
    data["generate"] = None
    if place is not None and place.is_file():
        data |= {"dataset": "own", "file": str(place.absolute())}
    elif place is not None:
        data["root"] = str(place.absolute())
    data["dataset"] = dataset or data["dataset"]
    if data["dataset"] != "own" and config.task == "reid":
        data["file"] = None
    changed = parse_config(tree, where="--data-root, --dataset")
    assert not isinstance(changed, ProgramConfig)
    return changed


def task_of(trained: Trained, config: Config, device: torch.device) -> Any:
    """The task of `config` for evaluation alone, its model with the trained weights.

    Raises:
        WeightsError: the weights do not fit the configuration. DataError: as the readers say.
        RunError: see `_check_frozen`.
    """

    def build(config: Config) -> Any:
        if isinstance(config, ReidConfig):
            return ReidTask(config, trained.seed, device, trained=trained.weights)
        return RetrievalTask(config, trained.seed, device, trains=False)

    task = _built(trained, config, device, build)
    load_exactly(task.model, trained.weights, str(trained.file))
    return task


def reid_model(trained: Trained, config: ReidConfig, device: torch.device) -> ReidModel:
    """The whole model of re-identification, a frozen backbone among it. Raises as `task_of` does."""
    pids, cameras = trained_sizes(trained.weights)
    model: ReidModel = _built(trained, config, device, lambda c: ReidModel(c, pids, cameras))
    backbone = model.take_backbone() if config.backbone.frozen else None
    load_exactly(model, trained.weights, str(trained.file))
    if backbone is not None:
        model.backbone = backbone
    return model.to(device)


def _built(trained: Trained, config: Config, device: torch.device, build: Callable[[Any], Any]) -> Any:
    """What `build` makes; from random weights where the file that ours replace is not here."""
    _check_frozen(trained, config)
    config, _ = for_machine(config, device)
    seed_everything(trained.seed)
    try:
        return build(config)
    except WeightsError:
        if not isinstance(config, ReidConfig) or config.backbone.frozen:
            raise
        backbone = config.backbone.model_copy(update={"weights": "random"})
        return build(config.model_copy(update={"backbone": backbone}))


def _check_frozen(trained: Trained, config: Config) -> None:
    """Frozen encoders are not among a run's weights.

    Raises:
        RunError: the weight file of one is not the one that the run was trained with.
    """
    known = (trained.folder.run().get("weights") or {}) if trained.folder is not None else {}
    for part, weights in weights_of(config).items():
        before = known.get(part)
        if before and getattr(getattr(config, part, None), "frozen", False):
            file = weights_file(config, part, weights)
            if weights_digest(file, part) != before["digest"]:
                raise RunError(
                    f"{trained.name}: its frozen {part} came from {before['file']}, and {file} holds "
                    "other weights"
                )
