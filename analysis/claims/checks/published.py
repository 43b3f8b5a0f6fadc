"""The published arrangements as our configurations, in both tasks, and passes through them.

tests/golden proves that these configurations equal the published modules in outputs and gradients, an
absent gradient included. That is why they can stand for code that is not part of this project.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sdtps.config import SdtpsConfig
from sdtps.config.retrieval import MatchingConfig
from sdtps.crossnet import CrossNet, Matches
from sdtps.models.losses import contrastive_loss
from sdtps.multimodal import MODALITIES, MultiModal

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
        "extra_token": "uniform_in_training",
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
    """One forward and backward pass of `MultiModal`; the loss is the sum of the features."""

    feature: Tensor
    decisions: dict[str, Tensor]  # D [B, N] a modality
    module: MultiModal
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
def run(config: SdtpsConfig, *, noise_seed: int = 1) -> Pass:
    """A pass in training mode on inputs and weights that are the same for every configuration."""
    torch.manual_seed(0)
    patches = {m: torch.randn(BATCH, PATCHES, WIDTH).requires_grad_() for m in MODALITIES}
    globals_ = {m: torch.randn(BATCH, WIDTH).requires_grad_() for m in MODALITIES}
    module = MultiModal(config, WIDTH, PATCHES)
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


def shown(value: float | None) -> str:
    """A gradient norm as evidence prints it."""
    return "none" if value is None else f"{value:.3g}"


def listed(values: Sequence[float | None]) -> str:
    return ", ".join(map(shown, values))


Form = Literal["released", "paper"]
_RELEASED: dict[str, Any] = {
    "score": "attention_sum",
    "normalise": "none",
    "no_grad": "selection",
    "aggregation": "single",
}
_PAPER: dict[str, Any] = {"score": "eq3", "beta": 0.25, "no_grad": "attention", "aggregation": "dual"}
# ViT-B/16 at 224 has 14 x 14 patches and a class token, Swin-B 7 x 7 and none.
VIT, SWIN = (196, True), (49, False)
IMAGES, CROSS_WIDTH, WORDS, DENSE_WORDS = 4, 64, 12, 30


def crossnet(
    form: Form, *, width: int = CROSS_WIDTH, grid: tuple[int, bool] = VIT, **changes: Any
) -> CrossNet:
    """A published cross-net with seeded weights."""
    sdtps = SdtpsConfig(**{**(_RELEASED if form == "released" else _PAPER), **changes})
    matching = MatchingConfig(form=form, alignment="mean" if form == "released" else "mean_topk")
    torch.manual_seed(0)
    net = CrossNet(sdtps, matching, width=width, patches=grid[0], class_token=grid[1])
    seed_weights(net)
    return net


@dataclass(frozen=True)
class Inputs:
    """Images with their tokens first, one caption and one dense text for each."""

    classes: Tensor | None
    patches: Tensor
    words: Tensor
    dense: Tensor

    def images(self) -> Tensor:
        parts = [self.patches] if self.classes is None else [self.classes, self.patches]
        return torch.cat(parts, dim=1)


def inputs(grid: tuple[int, bool]) -> Inputs:
    torch.manual_seed(1)
    return Inputs(
        torch.randn(IMAGES, 1, CROSS_WIDTH, requires_grad=True) if grid[1] else None,
        torch.randn(IMAGES, grid[0], CROSS_WIDTH, requires_grad=True),
        torch.randn(IMAGES, WORDS, CROSS_WIDTH, requires_grad=True),
        torch.randn(IMAGES, DENSE_WORDS, CROSS_WIDTH, requires_grad=True),
    )


def match(net: CrossNet, given: Inputs, *, noise_seed: int = 2) -> Matches:
    torch.manual_seed(noise_seed)
    count = len(given.words)
    lengths, dense_lengths = (torch.full((count,), t.shape[1]) for t in (given.words, given.dense))
    return net(given.images(), given.words, lengths, given.dense, dense_lengths)


def sparse_decision(matches: Matches) -> Tensor:
    """The decision of the branch of captions."""
    return _present(matches.sparse_decision)


def backward(net: CrossNet, grid: tuple[int, bool]) -> tuple[Inputs, Matches]:
    """A pass with the loss of the first epoch; gradients lie in the inputs and the net."""
    given = inputs(grid)
    matches = match(net, given)
    contrastive_loss(matches.similarity).backward()
    return given, matches


def attentions(net: CrossNet) -> tuple[bool, bool]:
    """Whether the self-attention and the guides' attentions carry gradients."""
    given = inputs(VIT)
    assert net.sparse_selection is not None
    own, guides = net.sparse_selection.attentions(
        given.patches, given.patches.mean(dim=1), [given.words.mean(dim=1)]
    )
    return own.requires_grad, guides[0].requires_grad
