"""Settings that act only with others.

A setting off its default that nothing reads would make one network two runs under two names, so it is
refused, with the setting that would make it act. Settings of a part that is switched off as a whole
(`sdtps.enabled: false`, `fusion.kind: none`) are no mistake: variants inherit them from their base.
`effective` shows that such configurations are one.

Whoever adds a setting that some code reads only in one case adds its rule here; an axis value's entry
in `sdtps.config.axes` says which settings act with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from sdtps.config.axes import SECTIONS, VALUES, Axes, acting_with
from sdtps.config.identity import flatten, resolved
from sdtps.config.reid import DGAF
from sdtps.config.wording import shown

_TRUNK = ("optim.layer_decay", "train.freeze_epochs")  # only an encoder that trains has use for them


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


def _with_axis_value(setting: str) -> Rule:
    """The rule of a setting that some values of an axis name."""
    needed = acting_with(setting)
    section = next(SECTIONS.get(axis, "sdtps") for axis in needed)
    words = " or ".join(f"{section}.{axis} {' or '.join(values)}" for axis, values in needed.items())

    def acts(config: Any) -> bool:
        chosen = getattr(config, section)
        return any(getattr(chosen, axis) in values for axis, values in needed.items())

    return Rule((f"{section}.{setting}",), acts, words)


def _settings(*axes: str) -> tuple[str, ...]:
    """Settings that act with some values of these axes only."""
    return tuple(dict.fromkeys(s for axis in axes for value in VALUES[axis] for s in value.settings))


SDTPS = (
    Rule(
        tuple(
            f"sdtps.{key}"
            for key in (*Axes._fields, *_settings(*Axes._fields), "keep_ratio", "loss_weight")
        ),
        lambda c: c.sdtps.enabled,
        "sdtps.enabled true",
        switched_off=True,
    ),
    *map(_with_axis_value, _settings(*Axes._fields)),
    Rule(
        ("sdtps.keep_ratio",),
        lambda c: c.sdtps.axes.decision.reads_keep_ratio,
        "a decision that keeps a share",
    ),
)
OPTIM = (
    Rule(
        ("optim.backbone_lr_factor",),
        lambda c: c.optim.backbone_lr is None,
        "optim.backbone_lr null, which is taken first",
    ),
    Rule(
        ("optim.lr_min_factor",),
        lambda c: c.optim.schedule in ("cosine", "linear"),
        "optim.schedule cosine or linear",
    ),
    Rule(
        ("optim.milestones", "optim.gamma"),
        lambda c: c.optim.schedule == "multistep",
        "optim.schedule multistep",
    ),
    Rule(("optim.warmup_factor",), lambda c: c.optim.warmup_epochs > 0, "optim.warmup_epochs above 0"),
)
REID = (
    *SDTPS,
    *OPTIM,
    Rule(
        tuple(f"backbone.{key}" for key in ("patch", "width", "depth", "heads", "embed")),
        lambda c: c.backbone.name == "tiny_vit",
        "backbone.name tiny_vit",
    ),
    Rule(
        ("backbone.camera_coefficient", "backbone.camera_std"),
        lambda c: c.backbone.camera_embedding,
        "backbone.camera_embedding true",
    ),
    Rule(
        ("optim.backbone_lr", "optim.backbone_lr_factor", *_TRUNK),
        lambda c: not c.backbone.frozen,
        "backbone.frozen false",
    ),
    Rule(
        ("fusion.heads", "fusion.tau", "fusion.alpha", "fusion.beside_sdtps"),
        lambda c: c.fusion.kind != "none",
        "a fusion.kind",
        switched_off=True,
    ),
    Rule(
        ("fusion.heads",),
        lambda c: c.fusion.kind in ("hdm_atmoe", "dgaf_v3", "parallel"),
        "fusion.kind hdm_atmoe, dgaf_v3 or parallel",
    ),
    Rule(
        ("fusion.tau", "fusion.alpha"),
        lambda c: c.fusion.kind in DGAF,
        f"fusion.kind {', '.join(DGAF)}",
    ),
    Rule(
        ("fusion.beside_sdtps",),
        lambda c: c.sdtps.enabled and c.fusion.kind in DGAF[:3],
        f"sdtps.enabled true and fusion.kind {', '.join(DGAF[:3])}",
    ),
    Rule(("fusion.dilations",), lambda c: c.fusion.sacr != "none", "a fusion.sacr"),
    Rule(("fusion.lif_beta", "fusion.lif_weight"), lambda c: c.fusion.lif, "fusion.lif true"),
    Rule(("fusion.direct",), lambda c: c.loss.global_branch, "loss.global_branch true"),
    Rule(("loss.label_smoothing",), lambda c: c.loss.id_weight > 0, "loss.id_weight above 0"),
    Rule(("loss.triplet_margin",), lambda c: c.loss.triplet_weight > 0, "loss.triplet_weight above 0"),
    Rule(
        ("eval.feature",),
        lambda c: c.second_branch,
        "sdtps.enabled true or a fusion.kind",
        switched_off=True,
    ),
)
_DENSE = ("matching.form", "matching.dense_text", "matching.eval_dense_text", "matching.sparse_guide")
RETRIEVAL = (
    *SDTPS,
    *OPTIM,
    Rule(
        (
            *_DENSE,
            "data.max_dense_words",
            "data.train_dense_words",
            *(f"loss.{key}" for key in ("ratio", "ratio_weight", "lambda_sparse", "lambda_dense")),
        ),
        lambda c: c.sdtps.enabled,
        "sdtps.enabled true",
        switched_off=True,
    ),
    Rule(("sdtps.loss_weight",), lambda c: False, "task reid"),
    Rule(
        tuple(f"image_encoder.{key}" for key in ("patch", "width", "depth", "heads")),
        lambda c: c.image_encoder.name in ("tiny_vit", "tiny_swin"),
        "image_encoder.name tiny_vit or tiny_swin",
    ),
    Rule(
        tuple(f"text_encoder.{key}" for key in ("width", "depth", "heads")),
        lambda c: c.text_encoder.name == "tiny_bert",
        "text_encoder.name tiny_bert",
    ),
    Rule(
        ("optim.backbone_lr", "optim.backbone_lr_factor", *_TRUNK),
        lambda c: not (c.image_encoder.frozen and c.text_encoder.frozen),
        "an encoder that is not frozen",
    ),
    *map(_with_axis_value, _settings("alignment", "ratio")),
    Rule(
        ("data.max_dense_words",),
        lambda c: any(
            mode != "none"
            for mode in (c.matching.dense_text, c.matching.eval_dense_text, *c.eval.also_dense_text)
        ),
        "a dense text in matching.dense_text, matching.eval_dense_text or eval.also_dense_text",
    ),
    Rule(
        ("data.train_dense_words",),
        lambda c: c.matching.dense_text != "none" and not c.text_encoder.frozen,
        "matching.dense_text own or shuffled and text_encoder.frozen false",
        switched_off=True,
    ),
    Rule(
        ("loss.lambda_dense",),
        lambda c: c.matching.dense_text != "none",
        "matching.dense_text own or shuffled",
    ),
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
    found: dict[str, str] = {}
    off = {key for key, rule in _idle(config) if rule.switched_off}
    for key, rule in _idle(config):
        value, default = values[key], defaults[key]
        if key in off or key in found or value in (default, None, []):
            continue
        found[key] = (
            f"{shown(value)} does nothing here: it acts with {rule.needs}. "
            f"Set that, or leave {key} at {shown(default)}."
        )
    return list(found.items())


def effective(config: BaseModel) -> dict[str, Any]:
    """The configuration as dotted keys, without those that nothing reads.

    Configurations for which it is equal build and train the same network.
    """
    idle = {key for key, _ in _idle(config)}
    return {key: value for key, value in flatten(resolved(config)).items() if key not in idle}
