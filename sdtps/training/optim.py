"""Optimiser, parameter groups and learning-rate schedule of both tasks.

Sources: `DeMo` = solver/make_optimizer.py and scheduler_factory.py of the re-identification baseline
(Adam, biases at twice the rate, the CLIP trunk at 5e-6, cosine with warm-up and rate noise);
`released` = lib/vse.py of the retrieval code (AdamW, trunk at a tenth of the rate).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from sdtps.config.common import OptimConfig

NOISE_LIMIT = 0.67  # DeMo redraws the rate noise until its size is below this
NOISE_SEED = 42  # DeMo seeds the noise of epoch e with 42 + e, whatever the run's seed


def parameter_groups(
    model: nn.Module, trunk: Iterable[nn.Parameter], config: OptimConfig
) -> list[dict[str, Any]]:
    """Trainable parameters as named groups with their own peak rate (`peak_lr`).

    Groups: `head` and `bias` (everything new, biases apart), `backbone` and, only where the trunk has
    no rate of its own, `backbone_bias`. DeMo's absolute trunk rate holds for its biases too. With
    `layer_decay` each layer of the trunk is a group (`backbone_below2`: two layers lie above it).
    """
    in_trunk = {id(p) for p in trunk}
    if config.backbone_lr is not None:
        trunk_lr, trunk_bias_lr = config.backbone_lr, config.backbone_lr
    else:
        trunk_lr = config.lr * (config.backbone_lr_factor or 1.0)
        trunk_bias_lr = trunk_lr * config.bias_lr_factor
    peaks = {
        "head": config.lr,
        "bias": config.lr * config.bias_lr_factor,
        "backbone": trunk_lr,
        "backbone_bias": trunk_bias_lr,
    }
    depths = layer_depths([n for n, p in model.named_parameters() if id(p) in in_trunk])
    members: dict[tuple[str, int], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        bias = "bias" in name.rpartition(".")[2]
        below = 0
        if id(parameter) in in_trunk:
            group = "backbone_bias" if bias and trunk_bias_lr != trunk_lr else "backbone"
            below = depths[name] if config.layer_decay != 1.0 else 0
        else:
            group = "bias" if bias and config.bias_lr_factor != 1.0 else "head"
        members.setdefault((group, below), []).append(parameter)
    groups = []
    for group, below in sorted(members, key=lambda key: (list(peaks).index(key[0]), key[1])):
        rate = peaks[group] * config.layer_decay**below
        name = f"{group}_below{below}" if below else group
        groups.append({"params": members[group, below], "name": name, "lr": rate, "peak_lr": rate})
    return groups


_LAYER = re.compile(r"\.(?:blocks|layers?|stages)\.(\d+)")
_BOTTOM = ("embed", "position", "class_token", "cls_token", "patch", "pre_layrnorm")


def layer_depths(names: Iterable[str]) -> dict[str, int]:
    """How many layers lie above each parameter of a trunk: 0 for what follows the last layer.

    Each encoder (the first part of a name) counts for itself. Embeddings lie below the first layer.
    """
    layers: dict[str, set[tuple[int, ...]]] = {}
    places: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name in names:
        encoder, place = name.split(".")[0], tuple(map(int, _LAYER.findall(name)))
        places[name] = encoder, place
        layers.setdefault(encoder, set()).update({place} if place else ())
    depths = {}
    for name, (encoder, place) in places.items():
        order = sorted(layers[encoder])
        if place:
            depths[name] = len(order) - order.index(place)
        else:
            bottom = any(word in name.lower() for word in _BOTTOM)
            depths[name] = len(order) + 1 if bottom else 0
    return depths


def build_optimizer(groups: list[dict[str, Any]], config: OptimConfig) -> torch.optim.Optimizer:
    """Adam (DeMo), AdamW (SEPS) or SGD, in their fused form: one kernel for all tensors."""
    if config.name == "sgd":
        return torch.optim.SGD(groups, momentum=0.9, weight_decay=config.weight_decay, fused=True)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(groups, weight_decay=config.weight_decay, fused=True)


def noise_multiplier(epoch: int) -> float:
    """DeMo's rate noise of `epoch` (from 1): 1 + n, n ~ N(0, 1) redrawn until |n| < 0.67."""
    generator = torch.Generator().manual_seed(NOISE_SEED + epoch)
    while True:
        noise = torch.randn(1, generator=generator).item()
        if abs(noise) < NOISE_LIMIT:
            return 1.0 + noise


class Schedule:
    """The rate of each group in each epoch.

    DeMo's arithmetic: time is the epoch counted from 1, so the first epoch is already one step up the
    warm-up and the last cosine epoch runs at the minimum; the cosine's clock runs during the warm-up.
    With the cosine, warm-up start and minimum are shares of the base rate **for every group** (so a
    trunk at 5e-6 starts above its own peak); the other schedules warm up from a share of a group's own
    rate. The linear schedule starts at the full rate and reaches the minimum in the last epoch. Rates
    change at epoch boundaries, except that a warm-up shorter than one epoch rises with every step.
    """

    def __init__(self, config: OptimConfig, epochs: int, steps_per_epoch: int) -> None:
        self.config = config
        self.epochs = epochs
        self.steps_per_epoch = steps_per_epoch

    def rate(self, peak: float, epoch: int, step_in_epoch: int = 1) -> float:
        """Rate of a group with peak rate `peak`; `epoch` and `step_in_epoch` count from 1."""
        config = self.config
        time = float(epoch)
        if config.warmup_epochs < 1:
            within = (epoch - 1) + step_in_epoch / self.steps_per_epoch
            time = within if within < config.warmup_epochs else time
        rate = self._without_noise(peak, time)
        if config.lr_noise and epoch < self.epochs:
            rate *= noise_multiplier(epoch)
        return rate

    def _without_noise(self, peak: float, time: float) -> float:
        config = self.config
        if time < config.warmup_epochs:
            start = config.warmup_factor * (config.lr if config.schedule == "cosine" else peak)
            return start + (peak - start) * time / config.warmup_epochs
        if config.schedule == "constant":
            return peak
        if config.schedule == "multistep":
            passed = sum(time >= milestone for milestone in config.milestones)
            return peak * config.gamma**passed
        lowest = config.lr_min_factor * config.lr
        if config.schedule == "linear":
            return peak + (lowest - peak) * (time - 1) / max(self.epochs - 1, 1)
        share = min(time / self.epochs, 1.0)
        return lowest + 0.5 * (peak - lowest) * (1.0 + math.cos(math.pi * share))

    def apply(
        self, optimizer: torch.optim.Optimizer, epoch: int, step_in_epoch: int
    ) -> dict[str, float]:
        """Set every group's rate for the coming step; returns them by group name."""
        rates = {}
        for group in optimizer.param_groups:
            group["lr"] = self.rate(group["peak_lr"], epoch, step_in_epoch)
            rates[group["name"]] = group["lr"]
        return rates
