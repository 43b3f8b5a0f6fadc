"""The published arrangements as our configurations, and one forward and backward pass of them.

tests/golden proves that these configurations equal the published modules, outputs and gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from sdtps.config import SdtpsConfig
from sdtps.multimodal import MODALITIES, MultiModalSdtps

# What the stages of the re-identification module have in common.
_STAGES: dict[str, Any] = {"score": "eq3", "beta": 0.25, "keep_ratio": 0.5, "aggregation_ratio": 0.4}
_PUBLISHED_MASK = "subtract_1e10"
ARRANGEMENTS: dict[str, dict[str, Any]] = {
    # 5577328: selection only, the decision is computed and never used
    "v0": {**_STAGES, "no_grad": "none", "mask": "none", "aggregation": "none", "keep_ratio": 0.6},
    # 65c69af, 6334359, f6f6c69: the decision enters the aggregation's softmax through 1e10
    "v1": {**_STAGES, "no_grad": "attention", "mask": _PUBLISHED_MASK, "aggregation": "single"},
    "v2": {**_STAGES, "no_grad": "none", "mask": _PUBLISHED_MASK, "aggregation": "single"},
    "v3": {
        **_STAGES,
        "no_grad": "none",
        "mask": _PUBLISHED_MASK,
        "aggregation": "single",
        "noise_clamp": 5.0,
    },
    # 8c5696a: the scores' log-importance instead of the decision
    "v4": {**_STAGES, "no_grad": "none", "mask": "importance", "aggregation": "single"},
    # 5577328, sdtps_fixed.py: the decision weighs the gathered patches
    "fixed": {
        **_STAGES,
        "no_grad": "attention",
        "mask": "multiply",
        "aggregation": "none",
        "extra_token": "uniform",
    },
}
# Sizes of the re-identification module (256 x 128 in patches of 16, CLIP's 512 columns).
BATCH, PATCHES, WIDTH = 4, 128, 512


def arrangement(name: str, **changes: Any) -> SdtpsConfig:
    """The configuration of a published arrangement, with some keys changed."""
    return SdtpsConfig(**{**ARRANGEMENTS[name], **changes})


def norm(tensors: Iterable[Tensor | None]) -> float | None:
    """Norm over all tensors together; None where every one is None."""
    present = [t for t in tensors if t is not None]
    return math.hypot(*(float(t.norm()) for t in present)) if present else None


@dataclass(frozen=True)
class Pass:
    """One forward and backward pass of `MultiModalSdtps`; the loss is the sum of the features."""

    feature: Tensor
    decisions: dict[str, Tensor]  # D [B, N] a modality
    module: MultiModalSdtps
    patches: dict[str, Tensor]
    globals_: dict[str, Tensor]

    def parameters(self) -> float | None:
        """Norm of all parameters' gradients, added one by one."""
        norms = [float(p.grad.norm()) for p in self.module.parameters() if p.grad is not None]
        return sum(norms) if norms else None

    def part(self, name: str) -> float | None:
        """Gradient norm of `parameters`, `score_mlp`, `aggregation`, `patches` or `globals`."""
        if name == "parameters":
            return self.parameters()
        if name in ("patches", "globals"):
            inputs = self.patches if name == "patches" else self.globals_
            return norm(t.grad for t in inputs.values())
        return norm(p.grad for key, p in self.module.named_parameters() if f".{name}." in key)

    def patch_gradient(self) -> Tensor:
        return torch.cat([_present(self.patches[m].grad).flatten() for m in MODALITIES])


def _present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


@lru_cache(maxsize=32)
def run(config: SdtpsConfig, *, noise_seed: int = 1, batch: int = BATCH) -> Pass:
    """A pass in training mode on inputs and weights that are the same for every configuration."""
    torch.manual_seed(0)
    patches = {m: torch.randn(batch, PATCHES, WIDTH).requires_grad_() for m in MODALITIES}
    globals_ = {m: torch.randn(batch, WIDTH).requires_grad_() for m in MODALITIES}
    module = MultiModalSdtps(config, WIDTH, PATCHES)
    seed_weights(module)
    torch.manual_seed(noise_seed)
    output = module(patches, globals_)
    output["feature"].sum().backward()
    decisions = {m: d.detach() for m, d in output["masks"].items()}
    return Pass(output["feature"].detach(), decisions, module, patches, globals_)


def seed_weights(module: nn.Module) -> None:
    """The same weights for parameters of the same name, whatever else a configuration builds."""
    for name, parameter in sorted(module.named_parameters()):
        generator = torch.Generator().manual_seed(sum(name.encode()))
        with torch.no_grad():
            if parameter.dim() == 2:  # weights of Linear: uniform as torch's default
                bound = parameter.shape[1] ** -0.5
                parameter.uniform_(-bound, bound, generator=generator)


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of two gradients, in float64: norms reach 1e9."""
    a, b = a.double(), b.double()
    return float((a @ b) / (a.norm() * b.norm()).clamp_min(1e-300))


def listed(values: Sequence[float | None]) -> str:
    return ", ".join("none" if v is None else f"{v:.3g}" for v in values)
