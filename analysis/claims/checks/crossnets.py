"""The image-text cross-net in its released and paper-version arrangements, ready to be examined.

tests/golden proves that these configurations equal the published cross-nets, outputs and gradients, an
absent gradient included. That is why they can stand for code that is not part of this project.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from analysis.claims.checks.arrangements import seed_weights
from sdtps.config import SdtpsConfig
from sdtps.config.retrieval import MatchingConfig
from sdtps.crossnet import CrossNet, Matches
from sdtps.models.contrastive import contrastive_loss

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
IMAGES, WIDTH, WORDS, DENSE_WORDS = 4, 64, 12, 30


def crossnet(
    form: Form, *, width: int = WIDTH, grid: tuple[int, bool] = VIT, **changes: Any
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
        torch.randn(IMAGES, 1, WIDTH, requires_grad=True) if grid[1] else None,
        torch.randn(IMAGES, grid[0], WIDTH, requires_grad=True),
        torch.randn(IMAGES, WORDS, WIDTH, requires_grad=True),
        torch.randn(IMAGES, DENSE_WORDS, WIDTH, requires_grad=True),
    )


def match(net: CrossNet, given: Inputs, *, noise_seed: int = 2) -> Matches:
    torch.manual_seed(noise_seed)
    count = len(given.words)
    lengths, dense_lengths = (torch.full((count,), t.shape[1]) for t in (given.words, given.dense))
    return net(given.images(), given.words, lengths, given.dense, dense_lengths)


def backward(net: CrossNet, grid: tuple[int, bool]) -> tuple[Inputs, Matches]:
    """A pass with the loss of the first epoch; gradients lie in the inputs and the net."""
    given = inputs(grid)
    matches = match(net, given)
    contrastive_loss(matches.similarity).backward()
    return given, matches


def shown(value: float | None) -> str:
    """A gradient norm as evidence prints it."""
    return "none" if value is None else f"{value:.3g}"


def attentions(net: CrossNet) -> tuple[bool, bool]:
    """Whether the self-attention and the guides' attentions carry gradients."""
    given = inputs(VIT)
    assert net.sparse_selection is not None
    own, guides = net.sparse_selection.attentions(
        given.patches, given.patches.mean(dim=1), [given.words.mean(dim=1)]
    )
    return own.requires_grad, guides[0].requires_grad
