"""Settings that act only with others.

A setting off its default that nothing reads would make one network two runs under two names, so it is
refused, with the setting that would make it act. Settings of a part that is switched off as a whole
(`sdtps.enabled: false`, `fusion.kind: none`) are no mistake: variants inherit them from their base.
`effective` shows that such configurations are one.

Whoever adds a setting that some code reads only in one case adds its rule here; an axis value's entry
in `sdtps.config.axes` says which settings act with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pydantic import BaseModel

from sdtps.config.axes import SECTIONS, VALUES, Axes
from sdtps.config.common import SdtpsConfig
from sdtps.config.identity import flatten, resolved
from sdtps.config.reid import DGAF
from sdtps.config.wording import shown


@dataclass(frozen=True)
class Rule:
    """These keys act where `acts` holds; `needs` says in words what that takes.

    Attributes:
        switched_off: whether the keys belong to a part that can be switched off as a whole.
    """

    keys: tuple[str, ...]
    acts: Callable[[Any], bool]
    needs: str
    switched_off: bool = False


def where(setting: str, values: Sequence[Any], *keys: str, switched_off: bool = False) -> Rule:
    """These keys act where a setting has one of these values."""
    words = " or ".join(str(value).lower() for value in values)
    value_of = attrgetter(setting)
    return Rule(keys, lambda c: value_of(c) in values, f"{setting} {words}", switched_off)


def _of_axes(*axes: str) -> Iterator[Rule]:
    """The rules of the settings that some values of these axes name."""
    for axis in axes:
        section = SECTIONS.get(axis, "sdtps")
        for setting in dict.fromkeys(s for value in VALUES[axis] for s in value.settings):
            names = [value.name for value in VALUES[axis] if setting in value.settings]
            yield where(f"{section}.{axis}", names, f"{section}.{setting}")


def _below(section: str, *keys: str) -> tuple[str, ...]:
    return tuple(f"{section}.{key}" for key in keys)


_TRUNK = ("optim.layer_decay", "train.freeze_epochs")  # only an encoder that trains has use for them
_OF_TRAINED = ("optim.backbone_lr", "optim.backbone_lr_factor", *_TRUNK)
_SDTPS = _below("sdtps", *(key for key in SdtpsConfig.model_fields if key != "enabled"))
BOTH = (
    where("sdtps.enabled", [True], *_SDTPS, switched_off=True),
    *_of_axes(*Axes._fields),
    Rule(
        ("sdtps.keep_ratio",),
        lambda c: c.sdtps.axes.decision.reads_keep_ratio,
        "a decision that keeps a share",
    ),
    Rule(
        ("optim.backbone_lr_factor",),
        lambda c: c.optim.backbone_lr is None,
        "optim.backbone_lr null, which is taken first",
    ),
    where("optim.schedule", ["cosine", "linear"], "optim.lr_min_factor"),
    where("optim.schedule", ["multistep"], "optim.milestones", "optim.gamma"),
    Rule(("optim.warmup_factor",), lambda c: c.optim.warmup_epochs > 0, "optim.warmup_epochs above 0"),
)
_FUSION = _below("fusion", "heads", "tau", "alpha", "beside_sdtps")
REID = (
    *BOTH,
    where(
        "backbone.name", ["tiny_vit"], *_below("backbone", "patch", "width", "depth", "heads", "embed")
    ),
    where("backbone.camera_embedding", [True], *_below("backbone", "camera_coefficient", "camera_std")),
    where("backbone.frozen", [False], *_OF_TRAINED),
    Rule(_FUSION, lambda c: c.fusion.kind != "none", "a fusion.kind", switched_off=True),
    where("fusion.kind", ["hdm_atmoe", "dgaf_v3", "parallel"], "fusion.heads"),
    where("fusion.kind", DGAF, "fusion.tau", "fusion.alpha"),
    where("fusion.kind", DGAF[:3], "fusion.beside_sdtps"),
    where("sdtps.enabled", [True], "fusion.beside_sdtps"),
    Rule(("fusion.dilations",), lambda c: c.fusion.sacr != "none", "a fusion.sacr"),
    where("fusion.lif", [True], "fusion.lif_beta", "fusion.lif_weight"),
    where("loss.global_branch", [True], "fusion.direct"),
    Rule(("loss.label_smoothing",), lambda c: c.loss.id_weight > 0, "loss.id_weight above 0"),
    Rule(("loss.triplet_margin",), lambda c: c.loss.triplet_weight > 0, "loss.triplet_weight above 0"),
    Rule(
        ("eval.feature",),
        lambda c: c.second_branch,
        "sdtps.enabled true or a fusion.kind",
        switched_off=True,
    ),
)
_OF_SDTPS = (
    *_below("matching", "form", "dense_text", "eval_dense_text", "sparse_guide"),
    *_below("data", "max_dense_words", "train_dense_words"),
    *_below("loss", "ratio", "ratio_weight", "lambda_sparse", "lambda_dense"),
)
_DENSE_TEXTS = ("own", "shuffled")
RETRIEVAL = (
    *BOTH,
    where("sdtps.enabled", [True], *_OF_SDTPS, switched_off=True),
    where("task", ["reid"], "sdtps.loss_weight"),
    where(
        "image_encoder.name",
        ["tiny_vit", "tiny_swin"],
        *_below("image_encoder", "patch", "width", "depth", "heads"),
    ),
    where("text_encoder.name", ["tiny_bert"], *_below("text_encoder", "width", "depth", "heads")),
    Rule(
        _OF_TRAINED,
        lambda c: not (c.image_encoder.frozen and c.text_encoder.frozen),
        "an encoder that is not frozen",
    ),
    *_of_axes("alignment", "ratio"),
    Rule(
        ("data.max_dense_words",),
        lambda c: any(
            mode != "none"
            for mode in (c.matching.dense_text, c.matching.eval_dense_text, *c.eval.also_dense_text)
        ),
        "a dense text in matching.dense_text, matching.eval_dense_text or eval.also_dense_text",
    ),
    where("matching.dense_text", _DENSE_TEXTS, "data.train_dense_words", switched_off=True),
    where("text_encoder.frozen", [False], "data.train_dense_words", switched_off=True),
    where("matching.dense_text", _DENSE_TEXTS, "loss.lambda_dense"),
)
RULES: dict[str, tuple[Rule, ...]] = {"reid": REID, "retrieval": RETRIEVAL}


def _idle(config: Any) -> Iterator[tuple[str, Rule]]:
    """Keys that nothing reads in this configuration, each with the rule that says so."""
    for rule in RULES.get(config.task, ()):
        if not rule.acts(config):
            yield from ((key, rule) for key in rule.keys)


def idle_settings(config: BaseModel) -> list[tuple[str, str]]:
    """(dotted key, sentence) for each setting off its default that nothing reads.

    Null and an empty list are taken as "off" and never refused, nor is what belongs to a part that is
    switched off as a whole.
    """
    values, defaults = flatten(resolved(config)), flatten(resolved(type(config)()))
    idle: dict[str, str] = {}
    off = {key for key, rule in _idle(config) if rule.switched_off}
    for key, rule in _idle(config):
        value, default = values[key], defaults[key]
        if key in off or key in idle or value in (default, None, []):
            continue
        idle[key] = (
            f"{shown(value)} does nothing here: it acts with {rule.needs}. "
            f"Set that, or leave {key} at {shown(default)}."
        )
    return list(idle.items())


def effective(config: BaseModel) -> dict[str, Any]:
    """The configuration as dotted keys, without those that nothing reads.

    Configurations for which it is equal build and train the same network.
    """
    idle = {key for key, _ in _idle(config)}
    return {key: value for key, value in flatten(resolved(config)).items() if key not in idle}
