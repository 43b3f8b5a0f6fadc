"""What a configuration reads from disk, looked at before anything is trained: data and weights.

Every run that would fail at its start, one after the other, is told here once, by name and with what to
do. No torch is imported unless weights are read to their end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdtps.config import AnyConfig, Config, ProgramConfig, ReidConfig
from sdtps.data.captions import CaptionSplit, images_of, record_of, too_few_captions
from sdtps.data.contents import check_once, values_digest
from sdtps.data.images import check_images, raise_mistakes
from sdtps.data.load import load_reid_data, load_splits, split_names
from sdtps.data.reid_folders import impossible, too_few
from sdtps.models.weights import file_mistake, find_weights, initial_file, weights_digest
from sdtps.run.locations import data_file, data_root
from sdtps.system.errors import DataError, SdtpsError, WeightsError


@dataclass
class Look:
    """What was found.

    Attributes:
        data: name, root and counts of each split; None where the data could not be read.
        weights: file by the part of the model that loads it.
        unseen: folders and files that are not to be seen from this machine.
        mistakes: what is wrong with those that are.
        warnings: what a reader of the results should know.
    """

    data: dict[str, Any] | None = None
    weights: dict[str, str] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def look_at(
    configs: Iterable[AnyConfig], *, deep: bool = True, images: bool = False, data: bool = True
) -> list[Look]:
    """`look` at each configuration; those that read the same files alike are looked at once.

    Of other programs (`task: command`): what they need and is not here, in one `Look`.
    """
    given = list(configs)
    distinct = {_inputs_of(one): one for one in given if not isinstance(one, ProgramConfig)}
    looks = [look(config, deep=deep, images=images, data=data) for config in distinct.values()]
    absent = {text for one in given if isinstance(one, ProgramConfig) for text in one.absent()}
    return [*looks, Look(unseen=sorted(absent))] if absent else looks


def look(config: Config, *, deep: bool = True, images: bool = False, data: bool = True) -> Look:
    """The data and the weights of a configuration.

    Args:
        deep: weights are loaded as a run loads them (architecture, resolution, NaN), instead of their
            first bytes and length alone. Once for each file: the cache records what was found good.
        images: every image is decoded, as a run does at its start, instead of its name read alone.
        data: False looks at the weights alone.
    """
    found = Look()
    if data:
        _look_at_data(config, found, images)
    _look_at_weights(config, found, deep)
    return found


def input_digests(config: AnyConfig, seen: dict[str, dict[str, str]]) -> dict[str, str]:
    """Digests of the data (`data`) and of each part's weights on this machine now, of what is here.

    Args:
        seen: takes the answers, so that what configurations read alike is read once.
    """
    if isinstance(config, ProgramConfig):  # another program's: unknown
        return {}
    key = _inputs_of(config)
    if key not in seen:
        seen[key] = found = {}
        with suppress(SdtpsError, OSError):  # not here or not right: told where runs are submitted
            if config.data.generate is None:
                found["data"] = _read(config)[0]["digest"]
        for part, weights in weights_of(config).items():
            with suppress(SdtpsError, OSError):
                found[part] = weights_digest(weights_file(config, part, weights), part)
    return seen[key]


def _inputs_of(config: Config) -> str:
    """Equal for configurations that read the same files in the same way."""
    tree = config.data.model_dump() | {"init": config.train.init}
    for key in ("test_batch_size", "flip", "pad", "erase", "workers"):
        tree.pop(key, None)
    if isinstance(config, ReidConfig):
        tree |= {"backbone": config.backbone.model_dump(), "also": config.eval.also}
    else:
        settings = (config.image_encoder, config.text_encoder, config.matching, config.eval)
        image, text, matching, scored = (section.model_dump() for section in settings)
        dense = {matching["dense_text"], matching["eval_dense_text"], *scored["also_dense_text"]}
        tree |= {"image": image, "text": text, "form": matching["form"], "dense": sorted(dense)}
        tree |= {"splits": [scored["select_on"], scored["test_split"]]}
    return json.dumps(tree, sort_keys=True)


def _look_at_data(config: Config, found: Look, images: bool) -> None:
    data = config.data
    if isinstance(config, ReidConfig) and config.data.generate is not None:
        found.mistakes += _too_small(config, config.data.generate.train_pids)
    if data.generate is not None:
        found.data = {"name": data.dataset, "root": None, "generated": data.generate.model_dump()}
        return
    try:
        root = data_root(data.root) if data.file is None else data_file(data.root, data.file)
    except DataError:
        found.unseen.append("no data root: give --data-root or set SDTPS_DATA_ROOT")
        return
    if not root.exists():
        found.unseen.append(f"{root} is not visible here")
        return
    try:
        found.data, files = _read(config)
        if images:
            check_images(files, getattr(config.data, "bits", None))
    except DataError as error:
        found.mistakes.append(str(error))
    else:
        found.warnings += found.data["warnings"]
        train = found.data["counts"]["train"]
        found.mistakes += _too_small(config, train.get("identities", train.get("captions")))


def _too_small(config: Config, count: int) -> list[str]:
    """What is wrong with a training split of so many identities (retrieval: captions)."""
    size = config.data.batch_size
    if isinstance(config, ReidConfig):
        wanted = size // config.data.instances
        return [too_few(count, wanted)] if count < wanted else []
    return [too_few_captions(count, size)] if count < size else []


def _read(config: Config) -> tuple[dict[str, Any], dict[Path, str]]:
    """What run.json will have of a configuration's data, and its images' digests.

    Raises:
        DataError: as the readers say.
    """
    if isinstance(config, ReidConfig):
        dataset = load_reid_data(config)
        raise_mistakes("eval.also", impossible(config.eval.also, dataset.absent))
        record = dataset.record(camera_embedding=config.backbone.camera_embedding)
        return record, dataset.digests()
    splits, folder = load_splits(config, split_names(config))
    return record_of(splits, config.data.dataset, folder), images_of(splits)


def weights_of(config: Config) -> dict[str, str]:
    """Part of the model to the weights that it loads; untrained parts are left out."""
    parts = ("backbone",) if isinstance(config, ReidConfig) else ("image_encoder", "text_encoder")
    named = {part: getattr(config, part).weights for part in parts}
    named |= {"init": config.train.init or "random"}
    return {part: weights for part, weights in named.items() if weights != "random"}


def weights_file(config: Config, part: str, weights: str) -> Path:
    """The file that a part of the model loads; no torch is imported unless it comes in a package.

    Raises:
        WeightsError: it is not there.
    """
    if part == "init":
        return initial_file(weights)
    if weights == "packaged":
        from sdtps.models.encoders import weight_file

        return weight_file(getattr(config, part).name, weights)
    return find_weights(weights)


def _look_at_weights(config: Config, found: Look, deep: bool) -> None:
    digests, sound = [], True
    for part, weights in weights_of(config).items():
        if weights == "packaged" and not deep:
            continue
        key = "train.init" if part == "init" else f"{part}.weights"
        try:
            file = weights_file(config, part, weights)
        except WeightsError as error:
            told = found.mistakes if weights == "packaged" else found.unseen
            told.append(f"{key}: {str(error).removeprefix(f'{key}: ')}".rstrip("."))
            sound = False
            continue
        found.weights[part] = str(file)
        digests.append(weights_digest(file, part))
        if (wrong := file_mistake(file)) is not None:
            found.mistakes.append(f"{key}: {file}: {wrong}")
            sound = False
    if deep and digests and sound:
        try:
            check_once(values_digest(*digests, _inputs_of(config)), lambda: _load_weights(config))
        except SdtpsError as error:
            found.mistakes.append(str(error))


def _load_weights(config: Config) -> None:
    """Build the model as a run does; its tables of the data's size are small.

    Raises:
        SdtpsError: weights that do not load, as the builders say.
    """
    import torch

    from sdtps.training.checkpoint import load_initial

    model: torch.nn.Module
    if isinstance(config, ReidConfig):
        from sdtps.models.reid import ReidModel

        model = reid = ReidModel(config, 1, 1)
        if config.backbone.frozen:
            reid.take_backbone()
    else:
        from sdtps.training.retrieval import Encoders

        nothing = CaptionSplit("train", (), (), 1, None)
        model = Encoders(config, nothing, torch.device("cpu")).model()
    if config.train.init is not None:
        load_initial(model, config.train.init)
