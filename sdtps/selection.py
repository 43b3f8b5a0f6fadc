"""Token selection: score every patch, keep K = ceil(rho N), fuse the dropped ones into one token.

Every function works on [..., N, C] tokens and [..., N] scores. Leading axes broadcast, so that scores
may be per (caption, image), [T, B, N], while tokens are per image, [B, N, C]; tokens are expanded
only where they are gathered.

Scores and decisions are computed in float32 at least, outside autocast: the published mask
multiplies a rounding error of the decision by 1e10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps.config.common import SdtpsConfig

NORM_EPSILON = 1e-12  # torch.nn.functional.normalize, used by every published cosine


class Selection(NamedTuple):
    """What a selection hands on. In soft training, kept tokens are mixtures of all tokens."""

    tokens: Tensor  # [..., K, C] by falling score
    extra: Tensor | None  # [..., 1, C] the dropped tokens fused; None if extra_token is none
    decision: Tensor  # [..., N] D: 1 = kept; carries a gradient with gumbel_ste and soft
    kept_decision: Tensor  # [..., K] D at the kept tokens: all ones in a hard forward
    kept_score: Tensor  # [..., K]
    score: Tensor  # [..., N]


class Choice(NamedTuple):
    """What is kept, before anything is gathered."""

    score: Tensor  # [..., N]
    decision: Tensor  # [..., N] D
    kept: Tensor  # [..., K] which tokens are kept, by falling score
    kept_score: Tensor  # [..., K]
    kept_decision: Tensor  # [..., K]
    rows: Tensor | None  # [..., K, N] of a decision that mixes tokens; None = tokens are gathered
    extra: Tensor | None  # [..., N] what the extra token takes of each token


def kept_count(patches: int, keep_ratio: float) -> int:
    """K = max(1, ceil(N rho)) in floating point, as published: ceil(100 x 0.55) is 56."""
    return max(1, math.ceil(patches * keep_ratio))


def full_precision(tensor: Tensor) -> Tensor:
    """float16 and bfloat16 become float32; wider types stay as they are."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def no_autocast(tensor: Tensor) -> AbstractContextManager[None]:
    """Arithmetic in the tensors' own types, whatever the caller's autocast says."""
    return torch.autocast(device_type=tensor.device.type, enabled=False)


def no_gradient(placed: bool) -> AbstractContextManager[None]:
    """torch.no_grad where the `no_grad` axis places it."""
    return torch.no_grad() if placed else nullcontext()


def token_lengths(tokens: Tensor) -> Tensor:
    """Euclidean lengths [..., N] of tokens [..., N, C], in float32 at least."""
    return torch.linalg.vector_norm(full_precision(tokens), dim=-1).clamp_min(NORM_EPSILON)


def cosines(tokens: Tensor, guides: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Cosine of each token with each guide (equation 2; a dot product in the paper, a cosine in code).

    Args:
        tokens: [..., N, C]; guides: [..., T, C]; leading axes broadcast.
        lengths: `token_lengths` of the tokens, where they are known.

    Returns:
        [..., T, N] in [-1, 1], in float32 at least.
    """
    with no_autocast(tokens):
        tokens, guides = full_precision(tokens), full_precision(guides)
        direction = F.normalize(guides, dim=-1, eps=NORM_EPSILON)
        lengths = token_lengths(tokens) if lengths is None else lengths
        return direction @ tokens.transpose(-1, -2) / lengths.unsqueeze(-2)


def cosine_attention(tokens: Tensor, guide: Tensor) -> Tensor:
    """`cosines` of tokens [..., N, C] with one guide [..., C] -> [..., N]."""
    return cosines(tokens, guide.unsqueeze(-2)).squeeze(-2)


def order(score: Tensor) -> tuple[Tensor, Tensor]:
    """Scores by falling value and their indices, both [..., N]; equal scores keep patch order."""
    return torch.sort(score, dim=-1, descending=True, stable=True)


def gather_tokens(tokens: Tensor, index: Tensor) -> Tensor:
    """Tokens [..., N, C] at index [..., K] -> [..., K, C]; leading axes broadcast."""
    width = tokens.shape[-1]
    tokens = tokens.expand(*index.shape[:-1], *tokens.shape[-2:])
    return tokens.gather(-2, index.unsqueeze(-1).expand(*index.shape, width))


def mix_tokens(weights: Tensor, tokens: Tensor) -> Tensor:
    """Weighted sums: weights [..., K, N] x tokens [..., N, C] -> [..., K, C] in the tokens' type."""
    return torch.einsum("...kn,...nc->...kc", weights.to(tokens.dtype), tokens)


class ScoreMlp(nn.Sequential):
    """s^p of equation 1: C -> C/4 -> 1 with a sigmoid; 65,793 parameters at C = 512.

    In float32 at least and outside autocast: in bfloat16 half of 128 scores are equal to another.
    """

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Linear(width, width // 4), nn.GELU(), nn.Linear(width // 4, 1), nn.Sigmoid()
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [..., N, C] -> [..., N] in (0, 1)."""
        with no_autocast(tokens):
            x = full_precision(tokens)
            for layer in self:
                if isinstance(layer, nn.Linear):
                    x = F.linear(x, full_precision(layer.weight), full_precision(layer.bias))
                else:
                    x = layer(x)
            return x.squeeze(-1)


class TokenSelection(nn.Module):
    """Scores, decides, gathers: everything of `SdtpsConfig` that comes before the aggregation.

    Args:
        config: the SDTPS axes.
        width: C.
    """

    def __init__(self, config: SdtpsConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.axes = config.axes
        self.score_mlp = ScoreMlp(width) if self.axes.score.learns else None

    def attentions(
        self, tokens: Tensor, self_guide: Tensor, guides: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Cosines [..., N] with the image's own global feature and each guide, under `no_grad`'s rule.

        Args:
            tokens: [..., N, C]; self_guide and each of guides: [..., C].
        """
        no_grad = self.axes.no_grad
        with no_gradient(no_grad.own):
            own = cosine_attention(tokens, self_guide)
        with no_gradient(no_grad.guides):
            return own, [cosine_attention(tokens, guide) for guide in guides]

    def predicted(self, tokens: Tensor) -> Tensor | None:
        """s^p [..., N] of tokens [..., N, C] where the score has a part that learns."""
        return None if self.score_mlp is None else self.score_mlp(tokens)

    def score(
        self,
        self_attention: Tensor,
        guide_attentions: Sequence[Tensor],
        predicted: Tensor | None = None,
    ) -> Tensor:
        """Scores [..., N] from cosines and s^p [..., N], as the score axis says."""
        normalise = self.axes.normalise.apply
        with no_autocast(self_attention):
            own = normalise(full_precision(self_attention))
            guides = [normalise(full_precision(attention)) for attention in guide_attentions]
            return self.axes.score.combine(own, guides, predicted, self.config)

    def forward(
        self,
        tokens: Tensor,
        self_attention: Tensor,
        guide_attentions: Sequence[Tensor],
        uniform: Tensor | None = None,
    ) -> Selection:
        """Select from tokens [..., N, C] by attentions [..., N].

        Args:
            uniform: draws in [0, 1) for a decision with noise, [..., N]; drawn from torch's global
                generator when not given.
        """
        with no_gradient(self.axes.no_grad.selection):
            score = self.score(self_attention, guide_attentions, self.predicted(tokens))
            return self.select(tokens, score, uniform)

    def choose(self, score: Tensor, uniform: Tensor | None = None) -> Choice:
        """Decide on scores [..., N]; needs no tokens."""
        config, decision = self.config, self.axes.decision
        acts = decision.acts(config, self.training)
        with no_autocast(score):
            kept = kept_count(score.shape[-1], config.keep_ratio)
            ordered, indices = order(score)
            kept_score, index = ordered[..., :kept], indices[..., :kept]
            made = hard = torch.zeros_like(score).scatter(-1, index, 1.0)
            rows = None
            if acts and decision.mix is not None:
                rows = decision.mix(score, kept_score, config)
                made = rows.sum(dim=-2).clamp(max=1.0)
                kept_decision = (rows * made.unsqueeze(-2)).sum(dim=-1)
            else:
                if acts and decision.decide is not None:
                    if decision.draws_noise and uniform is None:
                        uniform = torch.rand_like(score)
                    made = decision.decide(hard, score, uniform, config)
                kept_decision = made.gather(-1, index)
            extra = self.extra_weights(score, made, rows, ordered[..., kept:], indices[..., kept:])
        return Choice(score, made, index, kept_score, kept_decision, rows, extra)

    def extra_weights(
        self,
        score: Tensor,
        decision: Tensor,
        rows: Tensor | None,
        dropped_score: Tensor,
        dropped: Tensor,
    ) -> Tensor | None:
        """What the extra token takes of each token, [..., N]."""
        axis = self.axes.extra_token
        if rows is not None:
            return None if axis.of_mixed is None else axis.of_mixed(decision, score)
        if axis.of_dropped is None:
            return None
        # D's gradient passes through the extra token only where the mask puts D into the tokens.
        seen = decision if self.axes.mask.scales_tokens else decision.detach()
        return axis.of_dropped(seen, dropped_score, dropped)

    def select(self, tokens: Tensor, score: Tensor, uniform: Tensor | None = None) -> Selection:
        """Decide on scores [..., N] and gather from tokens [..., N, C]."""
        return self.gather(tokens, self.choose(score, uniform))

    def gather(self, tokens: Tensor, choice: Choice) -> Selection:
        """The tokens of a choice, from tokens [..., N, C]."""
        if choice.rows is None:
            kept = gather_tokens(tokens, choice.kept)
        else:
            kept = mix_tokens(choice.rows, tokens)
        if self.axes.mask.scales_tokens:
            kept = kept * choice.kept_decision.unsqueeze(-1).to(kept.dtype)
        extra = None if choice.extra is None else mix_tokens(choice.extra.unsqueeze(-2), tokens)
        return Selection(
            kept, extra, choice.decision, choice.kept_decision, choice.kept_score, choice.score
        )
