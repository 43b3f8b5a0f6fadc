"""What a study ran, in words from its configuration: data, encoders, training, seeds and time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from analysis.results import numbers
from analysis.results.frames import Results
from analysis.results.outcomes import machines
from analysis.results.stats import ALPHA
from analysis.runs.record import Run, mapping
from sdtps.config import CommandConfig, ReidConfig, RetrievalConfig, resolved
from sdtps.config.identity import flatten
from sdtps.system.errors import counted

if TYPE_CHECKING:
    from ablations.study.model import Study
    from analysis.runs.collect import Collected

_DATA = {
    "rgbnt201": "RGBNT201",
    "rgbnt100": "RGBNT100",
    "msvr310": "MSVR310",
    "f30k": "Flickr30K",
    "coco": "MS-COCO",
    "own": "data of one's own",
}
_ENCODERS = {
    "tiny_vit": "a vision transformer",
    "tiny_swin": "a Swin transformer",
    "tiny_bert": "a text transformer",
    "clip_vit_b16": "CLIP ViT-B/16",
    "vit_b16": "ViT-B/16",
    "swin_b": "Swin-B",
    "efficientnet_lite0": "EfficientNet-Lite0",
    "bert_base": "BERT-base",
    "minilm": "MiniLM",
    "checkpoint": "an encoder read with its weights",
}
_OPTIMISERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}
_SCHEDULES = {"multistep": "lowered in steps", "constant": "constant"}


def setups(collected: Collected) -> dict[str, list[str]]:
    """Sentences on each study of ours by its name; what an earlier study shares is not said twice."""
    made: dict[str, list[str]] = {}
    first: dict[tuple[str, ...], str] = {}
    for study in collected.studies:
        if not getattr(study, "imported", False):
            *shared, own = _setup(study, collected.runs_of(study.name))
            earlier = first.setdefault(tuple(shared), study.name)
            if earlier != study.name:
                shared = [f"Data, encoder and training as in {earlier}."]
            made[study.name] = [*shared, own]
    return made


def _setup(study: Study, runs: Sequence[Run]) -> list[str]:
    """A setting that variants change is given with all its values; seeds and time come last.

    Args:
        runs: the study's, whose records say what the data held and how long it took.
    """
    configs = [variant.config for variant in study.variants.values()]
    settings = _Settings(configs)
    if isinstance(configs[0], CommandConfig):
        sentences = [f"Each run is a program: {settings['command']}."]
    else:
        sentences = [
            _data(configs[0], settings, runs),
            _model(configs[0], settings),
            _training(settings),
        ]
    seeds = sorted({run.seed for run in runs if run.planned} or study.seeds)
    text = f"{counted(len(seeds), 'seed')} ({', '.join(map(str, seeds))})"
    took = [run.machine_seconds for run in runs if run.state == "completed" and run.machine_seconds]
    if took:
        text += f"; a run took {numbers.duration(median(took))} (median) on {machines(runs)}"
    return [*sentences, f"{text}."]


def least_significant(found: Results) -> str:
    """The smallest difference that can get a star, in standard deviations of its seeds' differences.

    A paired t test of n seeds must reach ALPHA over the size of its family: Holm's first step.
    """
    from scipy.stats import t

    metric = next(iter(found.study.metrics))
    rows = [found.get(variant, metric) for variant in found.outcomes]
    family = max((row.family_size for row in rows), default=0)
    n = max((row.difference_n for row in rows if row.family_size), default=0)
    if n < 2:
        return ""
    least = float(t.ppf(1 - ALPHA / family / 2, n - 1)) / math.sqrt(n)
    shown = numbers.fixed(least, 0 if least >= 10 else 1)
    return f"{shown} with {n} seeds and {counted(family, 'comparison')}"


class _Settings:
    """Dotted key to the values that a study's variants have, as text."""

    def __init__(self, configs: Iterable[Any]) -> None:
        self._all = [flatten(resolved(config)) for config in configs]

    def __getitem__(self, key: str) -> str:
        found = dict.fromkeys(str(flat[key]) for flat in self._all if flat.get(key) is not None)
        return " or ".join(found)


def _data(config: ReidConfig | RetrievalConfig, settings: _Settings, runs: Sequence[Run]) -> str:
    names = _named(settings["data.dataset"], _DATA)
    made = config.data.generate is not None
    where = f"images that this project generates, in the layout of {names}" if made else names
    task = "Re-identification" if isinstance(config, ReidConfig) else "Image-text retrieval"
    counts = next((run.counts for run in runs if run.counts), {})
    parts = [
        f"{split}: {', '.join(_amounts(mapping(amounts)))}"
        for split, amounts in counts.items()
        if isinstance(amounts, dict)
    ]
    held = f" ({'; '.join(parts)})" if parts else ""
    return f"{task} on {where}{held}."


def _amounts(counts: dict[str, Any]) -> list[str]:
    """`288 samples`, `864 images`, `24 identities`."""
    return [f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items() if number]


def _model(config: ReidConfig | RetrievalConfig, settings: _Settings) -> str:
    if isinstance(config, ReidConfig):
        size = f"images of {settings['data.height']} × {settings['data.width']} pixels"
        encoders = [_encoder(settings, "backbone")]
    else:
        size = f"images of {settings['image_encoder.size']} × {settings['image_encoder.size']} pixels"
        encoders = [_encoder(settings, "image_encoder"), _encoder(settings, "text_encoder")]
    return f"Encoder: {' and '.join(encoders)}; {size}."


def _encoder(settings: _Settings, part: str) -> str:
    name = settings[f"{part}.name"]
    text = _named(name, _ENCODERS)
    if name.startswith("tiny_"):
        text += f" of {settings[f'{part}.depth']} layers and width {settings[f'{part}.width']}"
    if settings[f"{part}.weights"] == "random":
        text += ", random initial weights"
    return f"{text}, frozen" if settings[f"{part}.frozen"] == "True" else text


def _training(settings: _Settings) -> str:
    schedule = _named(settings["optim.schedule"], _SCHEDULES)
    optimiser = _named(settings["optim.name"], _OPTIMISERS)
    precision = _named(settings["train.amp"], {"off": "float32"})
    return (
        f"{settings['train.epochs']} epochs of {optimiser}, learning rate {settings['optim.lr']} "
        f"({schedule}), batches of {settings['data.batch_size']}, arithmetic in {precision}."
    )


def _named(values: str, names: Mapping[str, str]) -> str:
    return " or ".join(names.get(value, value) for value in values.split(" or "))
