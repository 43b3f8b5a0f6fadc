"""What a study ran, in words from its configuration: data, encoders, training, seeds and time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from scipy import special

from analysis.results import numbers
from analysis.results.frames import Results
from analysis.results.outcomes import machines
from analysis.results.stats import ALPHA
from analysis.runs.record import Run, mapping
from sdtps.config import ProgramConfig, ReidConfig, resolved
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


def setups(collected: Collected) -> dict[str, dict[str, Any]]:
    """What `setup.tex.j2` says of each study of ours, by name; `earlier`: one of the same setup."""
    made: dict[str, dict[str, Any]] = {}
    first: list[tuple[dict[str, Any], str]] = []
    for study in collected.studies:
        if not getattr(study, "imported", False):
            runs = collected.runs_of(study.name)
            shared = _shared(study, runs)
            earlier = next((name for facts, name in first if facts == shared), "")
            if not earlier:
                first.append((shared, study.name))
            seeds = sorted({run.seed for run in runs if run.planned} or study.seeds)
            done = (run.machine_seconds for run in runs if run.state == "completed")
            took = [seconds for seconds in done if seconds]
            made[study.name] = {
                **shared,
                "earlier": earlier,
                "seeds": f"{counted(len(seeds), 'seed')} ({', '.join(map(str, seeds))})",
                "took": numbers.duration(median(took)) if took else "",
                "machines": machines(runs),
            }
    return made


def least_significant(found: Results) -> str:
    """The smallest difference that can get a star, in standard deviations of its seeds' differences.

    A paired t test of n seeds must reach ALPHA over the size of its family: Holm's first step.
    """
    metric = next(iter(found.study.metrics))
    rows = [found.get(variant, metric) for variant in found.outcomes]
    family = max((row.family_size for row in rows), default=0)
    n = max((row.difference_n for row in rows if row.family_size), default=0)
    if n < 2:
        return ""
    least = float(special.stdtrit(n - 1, 1 - ALPHA / family / 2)) / math.sqrt(n)
    shown = numbers.fixed(least, 0 if least >= 10 else 1)
    return f"{shown} with {n} seeds and {counted(family, 'comparison')}"


class _Settings:
    """Dotted key to the values that a study's variants have, as text."""

    def __init__(self, configs: Iterable[Any]) -> None:
        self._all = [flatten(resolved(config)) for config in configs]

    def __getitem__(self, key: str) -> str:
        found = dict.fromkeys(str(flat[key]) for flat in self._all if flat.get(key) is not None)
        return " or ".join(found)


def _shared(study: Study, runs: Sequence[Run]) -> dict[str, Any]:
    """Data, encoders and training; a setting that variants change is given with all its values.

    Args:
        runs: the study's, whose records say what the data held.
    """
    configs = [variant.config for variant in study.variants.values()]
    config, settings = configs[0], _Settings(configs)
    if isinstance(config, ProgramConfig):
        return {"program": settings["command"]}
    reid = isinstance(config, ReidConfig)
    size = ("data.height", "data.width") if reid else ("image_encoder.size",) * 2
    counts = next((run.counts for run in runs if run.counts), {})
    held = {
        split: [f"{n:,} {name.replace('_', ' ')}" for name, n in mapping(amounts).items() if n]
        for split, amounts in counts.items()
        if isinstance(amounts, dict)
    }
    parts = ("backbone",) if reid else ("image_encoder", "text_encoder")
    return {
        "program": "",
        "task": "Re-identification" if reid else "Image-text retrieval",
        "generated": config.data.generate is not None,
        "data": _named(settings["data.dataset"], _DATA),
        "held": "; ".join(f"{split}: {', '.join(amounts)}" for split, amounts in held.items()),
        "encoders": " and ".join(_encoder(settings, part) for part in parts),
        "size": " × ".join(settings[key] for key in size),
        "epochs": settings["train.epochs"],
        "optimiser": _named(settings["optim.name"], _OPTIMISERS),
        "rate": settings["optim.lr"],
        "schedule": _named(settings["optim.schedule"], _SCHEDULES),
        "batch": settings["data.batch_size"],
        "precision": _named(settings["train.amp"], {"off": "float32"}),
    }


def _encoder(settings: _Settings, part: str) -> str:
    name = settings[f"{part}.name"]
    text = _named(name, _ENCODERS)
    if name.startswith("tiny_"):
        text += f" of {settings[f'{part}.depth']} layers and width {settings[f'{part}.width']}"
    if settings[f"{part}.weights"] == "random":
        text += ", random initial weights"
    return f"{text}, frozen" if settings[f"{part}.frozen"] == "True" else text


def _named(values: str, names: Mapping[str, str]) -> str:
    return " or ".join(names.get(value, value) for value in values.split(" or "))
