"""One variant under examination: its gradients before and after training, and what proves a cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sdtps.audit.gradients import Gradient, gradient_of, share_without, watched
from sdtps.audit.subject import Subject
from sdtps.audit.subject_reid import reid_subject
from sdtps.audit.subject_retrieval import retrieval_subject
from sdtps.config import Config, ReidConfig, RetrievalConfig
from sdtps.training.optim import build_optimizer, parameter_groups

INITIAL_SCALE = 65536.0  # torch.amp.GradScaler's


@dataclass(frozen=True)
class Look:
    """One backward pass, looked at."""

    loss: float
    parts: dict[str, Gradient]
    without_gradient: float  # share of trainable parameters with no gradient, in [0, 1]
    patch_gradient: Tensor | None  # at the encoder's outputs, for cosines


@dataclass(frozen=True)
class Scaler:
    """What fp16's loss scaler did in the training steps."""

    skipped: int
    steps: int
    scale: float


@dataclass(frozen=True)
class Examination:
    """A variant, looked at twice.

    Attributes:
        counterfactuals: the first look of the same variant with one axis changed, to prove a cause:
            `mask none`, `mask log`, `constant / 10`, `decision topk`, `ratio none`.
    """

    config: Config
    initial: Look
    after: Look
    scaler: Scaler | None
    counterfactuals: dict[str, Look]


def examine(config: Config, weights: Mapping[str, Tensor], steps: int, seed: int) -> Examination:
    """Look at one variant, train it, look again, and look at what would prove a cause."""
    examined = built(config, seed, weights)
    initial = look(examined, seed)
    changed = {name: look(built(other, seed, weights), seed) for name, other in changes(config).items()}
    scaler = train(examined, steps, seed)
    return Examination(config, initial, look(examined, seed), scaler, changed)


def changes(config: Config) -> dict[str, Config]:
    """The configurations whose gradients tell where a large or missing one comes from."""
    sdtps = config.sdtps
    other: dict[str, dict[str, Any]] = {}
    if sdtps.enabled and sdtps.decision != "topk":
        if sdtps.mask_constant is not None:
            other["mask none"] = {"mask": "none"}
            other["mask log"] = {"mask": "log"}
            other["constant / 10"] = {"mask": f"subtract_{sdtps.mask_constant / 10:g}"}
        if sdtps.decision == "gumbel_ste":
            other["decision topk"] = {"decision": "topk"}
    changed = {
        name: config.model_copy(update={"sdtps": sdtps.model_copy(update=update)})
        for name, update in other.items()
    }
    if isinstance(config, RetrievalConfig) and config.loss.ratio != "none" and sdtps.enabled:
        loss = config.loss.model_copy(update={"ratio": "none"})
        changed["ratio none"] = config.model_copy(update={"loss": loss})
    return changed


def look(examined: Subject, seed: int) -> Look:
    """Gradients of the loss of the audit's batch, in float32 and training mode."""
    examined.model.train()
    examined.model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)  # the same noise for every variant
    with watched(examined.model) as watch:
        loss = examined.loss(examined.batch(0))
        if loss.requires_grad:
            loss.backward()
    parts = {part: watch.gradient(part) for part in watch.parts}
    parts |= {part: gradient_of(params) for part, params in examined.groups.items()}
    return Look(loss.item(), parts, share_without(examined.model), _detached(watch.flat("patches")))


def train(examined: Subject, steps: int, seed: int) -> Scaler | None:
    """Training steps with the variant's optimiser, clipping and precision, at its full rate."""
    config, model = examined.config, examined.model
    groups = parameter_groups(model, examined.trunk, config.optim)
    optimizer = build_optimizer(groups, config.optim)
    amp = config.train.amp
    dtype = torch.float16 if amp == "fp16" else torch.bfloat16
    scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL_SCALE, enabled=amp == "fp16")
    skipped = 0
    torch.manual_seed(seed + 1)
    for step in range(1, steps + 1):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=dtype, enabled=amp != "off"):
            loss = examined.loss(examined.batch(step))
        if not loss.requires_grad:
            break
        scaler.scale(loss).backward()
        if config.train.clip_grad_norm is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), config.train.clip_grad_norm)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    return Scaler(skipped, steps, scaler.get_scale()) if amp == "fp16" else None


def built(config: Config, seed: int, weights: Mapping[str, Tensor] | None) -> Subject:
    """A toy of the configuration, with those of `weights` that it has in the same shape."""
    torch.manual_seed(seed)
    if isinstance(config, ReidConfig):
        examined = reid_subject(config, seed)
    else:
        examined = retrieval_subject(config, seed)
    if weights is not None:
        own = examined.model.state_dict()
        shared = {n: v for n, v in weights.items() if n in own and own[n].shape == v.shape}
        examined.model.load_state_dict(shared, strict=False)
    return examined


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()
