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

from sdtps.config.selection import SdtpsConfig

MINMAX_EPSILON = 1e-8  # paper-version module and v0 to v5
GUMBEL_EPSILON = 1e-9  # inside both logarithms; limits float32 noise to [-3.03, 16.62]
NORM_EPSILON = 1e-12  # torch.nn.functional.normalize, used by every published cosine


class Selection(NamedTuple):
    """What a selection hands on. In soft training, kept tokens are mixtures of all tokens."""

    tokens: Tensor  # [..., K, C] by falling score
    extra: Tensor | None  # [..., 1, C] the dropped tokens fused; None if extra_token is none
    decision: Tensor  # [..., N] D: 1 = kept; carries a gradient with gumbel_ste and soft
    kept_decision: Tensor  # [..., K] D at the kept tokens: all ones in a hard forward
    kept_score: Tensor  # [..., K]
    score: Tensor  # [..., N]


def kept_count(patches: int, keep_ratio: float) -> int:
    """K = max(1, ceil(N rho)) in floating point, as published: ceil(100 x 0.55) is 56."""
    return max(1, math.ceil(patches * keep_ratio))


def full_precision(tensor: Tensor) -> Tensor:
    """float16 and bfloat16 become float32; wider types stay as they are."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def no_autocast(tensor: Tensor) -> AbstractContextManager[None]:
    """Arithmetic in the tensors' own types, whatever the caller's autocast says."""
    return torch.autocast(device_type=tensor.device.type, enabled=False)


def cosine_attention(tokens: Tensor, guide: Tensor) -> Tensor:
    """Cosine of each token with a guide (equation 2; a dot product in the paper, cosine in all code).

    Args:
        tokens: [..., N, C].
        guide: [..., C]; leading axes broadcast against those of tokens.

    Returns:
        [..., N] in [-1, 1].
    """
    with no_autocast(tokens):
        tokens, guide = full_precision(tokens), full_precision(guide)
        direction = F.normalize(guide, dim=-1, eps=NORM_EPSILON)
        projection = torch.einsum("...nc,...c->...n", tokens, direction)
        return projection / tokens.norm(dim=-1).clamp_min(NORM_EPSILON)


def minmax(score: Tensor) -> Tensor:
    """Norm of equation 2: each row to [0, 1]; a constant row becomes 0."""
    low = score.amin(dim=-1, keepdim=True)
    high = score.amax(dim=-1, keepdim=True)
    return (score - low) / (high - low + MINMAX_EPSILON)


def gumbel_noise(uniform: Tensor, clamp: float | None = None) -> Tensor:
    """Gumbel(0, 1) noise from draws in [0, 1), clamped to [-clamp, clamp] (v3: 5)."""
    uniform = full_precision(uniform)
    noise = -torch.log(-torch.log(uniform + GUMBEL_EPSILON) + GUMBEL_EPSILON)
    return noise if clamp is None else noise.clamp(-clamp, clamp)


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The hard decision forward, the gradient of the soft one backward.

    The bracket comes first: soft - soft is exactly 0, so the sum is exactly `hard`. In the other
    order (hard + soft) - soft is off by up to 6e-8, which the 1e10 mask turns into logits of -596.
    """
    return hard + (soft - soft.detach())


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


def soft_sort(score: Tensor, ordered: Tensor, temperature: float) -> Tensor:
    """One weight row over all tokens for each kept rank (SoftSort, Prillo and Eisenschlos 2020).

    Args:
        score: [..., N]; ordered: [..., K], its K largest values by falling value.

    Returns:
        [..., K, N], rows sum to 1; tends to the K rows that gather the Top-K as temperature falls.
    """
    distance = (ordered.unsqueeze(-1) - score.unsqueeze(-2)).abs()
    return (-distance / temperature).softmax(dim=-1)


def score_mlp(width: int) -> nn.Sequential:
    """s^p of equation 1: C -> C/4 -> 1 with a sigmoid; 65,793 parameters at C = 512."""
    return nn.Sequential(
        nn.Linear(width, width // 4), nn.GELU(), nn.Linear(width // 4, 1), nn.Sigmoid()
    )


class TokenSelection(nn.Module):
    """Scores, decides, gathers: everything of `SdtpsConfig` that comes before the aggregation.

    Args:
        config: the SDTPS axes.
        width: C.
    """

    def __init__(self, config: SdtpsConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.score_mlp = score_mlp(width) if config.score == "eq3" else None

    def attentions(
        self, tokens: Tensor, self_guide: Tensor, guides: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Cosines with the image's own global feature and with each guide, under `no_grad`'s rule.

        Args:
            tokens: [..., N, C]; self_guide and each of guides: [..., C].
        """
        placement = self.config.no_grad
        with torch.no_grad() if placement in ("attention", "selection") else nullcontext():
            own = cosine_attention(tokens, self_guide)
        with torch.no_grad() if placement != "none" else nullcontext():
            return own, [cosine_attention(tokens, guide) for guide in guides]

    def score(
        self, tokens: Tensor, self_attention: Tensor, guide_attentions: Sequence[Tensor]
    ) -> Tensor:
        """Scores [..., N]: equation 3, or the released sum of self and guide attentions.

        Equation 3 is (1 - 2 beta) s^p + beta (sum of guides + 2 self): in [0, 1 + 2 beta] with
        min-max normalisation and two guides. The released sum is normalised too if the
        configuration says so (released: `normalise: none`).
        """
        normalise = minmax if self.config.normalise == "minmax" else full_precision
        own = normalise(full_precision(self_attention))
        guides = [normalise(full_precision(attention)) for attention in guide_attentions]
        if self.score_mlp is None:
            return sum(guides, own)
        beta = self.config.beta
        predicted = full_precision(self.score_mlp(tokens).squeeze(-1))
        return (1 - 2 * beta) * predicted + beta * sum(guides, 2 * own)

    def forward(
        self,
        tokens: Tensor,
        self_attention: Tensor,
        guide_attentions: Sequence[Tensor],
        uniform: Tensor | None = None,
    ) -> Selection:
        """Select from tokens [..., N, C] by attentions [..., N].

        Args:
            uniform: draws in [0, 1) for the Gumbel noise, [..., N]; drawn from torch's global
                generator when not given.
        """
        frozen = self.config.no_grad == "selection"
        with torch.no_grad() if frozen else nullcontext():
            score = self.score(tokens, self_attention, guide_attentions)
            return self.select(tokens, score, uniform)

    def select(self, tokens: Tensor, score: Tensor, uniform: Tensor | None = None) -> Selection:
        """Decide on scores [..., N] and gather from tokens [..., N, C]."""
        config = self.config
        kept = kept_count(tokens.shape[-2], config.keep_ratio)
        ordered, indices = order(score)
        if config.decision == "soft" and self.training:
            return self._select_softly(tokens, score, ordered[..., :kept])
        index = indices[..., :kept]
        decision = self.decide(score, index, uniform)
        kept_decision = decision.gather(-1, index)
        selected = gather_tokens(tokens, index)
        if config.mask == "multiply":
            selected = selected * kept_decision.unsqueeze(-1).to(selected.dtype)
        weights = self.extra_weights(decision, ordered[..., kept:], indices[..., kept:])
        extra = None if weights is None else mix_tokens(weights.unsqueeze(-2), tokens)
        return Selection(selected, extra, decision, kept_decision, ordered[..., :kept], score)

    def decide(self, score: Tensor, index: Tensor, uniform: Tensor | None = None) -> Tensor:
        """D [..., N] for scores [..., N] of which those at index [..., K] are kept: 0 and 1.

        With gumbel_ste it carries the gradient of softmax((score + noise) / temperature); the noise
        never changes what is kept.
        """
        config = self.config
        decision = torch.zeros_like(score).scatter(-1, index, 1.0)
        if config.decision == "gumbel_ste" and (self.training or config.noise_in_eval):
            draws = torch.rand_like(score) if uniform is None else uniform
            noisy = score + gumbel_noise(draws, config.noise_clamp)
            decision = straight_through(decision, (noisy / config.temperature).softmax(dim=-1))
        return decision

    def extra_weights(self, decision: Tensor, dropped_score: Tensor, dropped: Tensor) -> Tensor | None:
        """What the extra token takes of each token, [..., N]; zeros when nothing is dropped.

        `uniform` under mask `multiply` weighs by 1 - D, which lets D's gradient through (the
        "fixed" version); with the other masks it is the plain mean of the dropped tokens.

        Args:
            decision: D [..., N]; dropped_score, dropped: [..., N - K] scores and indices.
        """
        if self.config.extra_token == "none":
            return None
        if self.config.extra_token == "softmax":
            weights = torch.zeros_like(decision)
            return weights.scatter(-1, dropped, dropped_score.softmax(dim=-1))
        absent = 1 - (decision if self.config.mask == "multiply" else decision.detach())
        return absent / absent.sum(dim=-1, keepdim=True).clamp_min(MINMAX_EPSILON)

    def _select_softly(self, tokens: Tensor, score: Tensor, kept_score: Tensor) -> Selection:
        """Each kept token is a weighted sum of all tokens; D is each token's weight, at most 1."""
        rows = soft_sort(score, kept_score, self.config.temperature)
        decision = rows.sum(dim=-2).clamp(max=1.0)
        extra = None
        if self.config.extra_token != "none":
            weights = 1 - decision
            if self.config.extra_token == "softmax":
                weights = weights * (score - score.amax(dim=-1, keepdim=True).detach()).exp()
            weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(MINMAX_EPSILON)
            extra = mix_tokens(weights.unsqueeze(-2), tokens)
        # Element-wise, not einsum: autocast would take a matrix product to half precision.
        kept_decision = (rows * decision.unsqueeze(-2)).sum(dim=-1)
        return Selection(mix_tokens(rows, tokens), extra, decision, kept_decision, kept_score, score)
