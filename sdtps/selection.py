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
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps.config.axes import Relevance
from sdtps.config.common import SdtpsConfig
from sdtps.system.errors import ConfigError

NORM_EPSILON = 1e-12  # torch.nn.functional.normalize, used by every published cosine


class Selection(NamedTuple):
    """What a selection hands on. In soft training, kept tokens are mixtures of all tokens."""

    tokens: Tensor  # [..., K, C] by falling score; in place [..., N, C]
    extra: Tensor | None  # [..., 1, C] the dropped tokens fused; None if extra_token is none
    decision: Tensor  # [..., N] D: 1 = kept; most decisions but topk make it carry a gradient
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


def dots(tokens: Tensor, guides: Tensor) -> Tensor:
    """Dot products / C of tokens [..., N, C] and guides [..., T, C] -> [..., T, N] (equation 2)."""
    with no_autocast(tokens):
        tokens, guides = full_precision(tokens), full_precision(guides)
        return guides @ tokens.transpose(-1, -2) / tokens.shape[-1]


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


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """A layer in float32 at least, whatever its weights' type."""
    return F.linear(x, full_precision(layer.weight), full_precision(layer.bias))


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
                x = linear(layer, x) if isinstance(layer, nn.Linear) else layer(x)
            return x.squeeze(-1)


class PatchAttention(nn.Module):
    """A learned relevance of patches to one guide: an entry's formula and its parameters.

    Two projections (Xavier, zero bias) make the logits [..., H, N]; 525,312 parameters at C = 512, and
    the few of the entry.

    Args:
        axis: a relevance that learns.
        width: C, a multiple of the heads.
    """

    def __init__(self, axis: Relevance, config: SdtpsConfig, width: int) -> None:
        super().__init__()
        if width % config.relevance_heads:
            raise ConfigError(
                f"sdtps.relevance_heads {config.relevance_heads} does not divide {width} channels"
            )
        self.axis, self.config, self.heads = axis, config, config.relevance_heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        for layer in (self.query, self.key):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        for name, start in axis.learned.items():
            setattr(self, name, nn.Parameter(torch.tensor(start)))
        if axis.per_head is not None:
            self.head_weights = nn.Parameter(torch.full((self.heads,), axis.per_head / self.heads))
        if axis.gate is not None:
            self.gate = _gate(axis.gate, self.heads)
        if axis.gate_norm:
            self.gate_norm = nn.LayerNorm(self.heads)

    def forward(self, tokens: Tensor, guides: Tensor, cosine: Tensor) -> Tensor:
        """Tokens [..., N, C], guides [..., T, C] and their cosines [..., T, N] -> [..., T, N]."""
        with no_autocast(tokens):
            layers = (self.key, self.query) if self.axis.patch_queries else (self.query, self.key)
            of_guides, of_tokens = (
                linear(layer, full_precision(x)).unflatten(-1, (self.heads, -1))
                for layer, x in zip(layers, (guides, tokens), strict=True)
            )
            if self.axis.projected:
                unit = (F.normalize(x, dim=-1, eps=NORM_EPSILON) for x in (of_guides, of_tokens))
                cosine = torch.einsum("...thd,...nhd->...thn", *unit)
            logits = torch.einsum("...thd,...nhd->...thn", of_guides, of_tokens)
            logits = logits / math.sqrt(of_tokens.shape[-1])
            assert self.axis.combine is not None
            return self.axis.combine(logits, cosine, cast(Any, self), self.config)

    def gate_logits(self, cosine: Tensor) -> Tensor:
        """Cosines [..., N], or [..., H, N] of each head -> [..., H or 1, N]."""
        if isinstance(self.gate, nn.Linear):
            cosine = cosine if self.axis.projected else cosine.unsqueeze(-2)
            logits = cosine * self.gate.weight + self.gate.bias.unsqueeze(-1)
        else:
            logits = self.gate(cosine.unsqueeze(-1)).transpose(-1, -2)
        if self.axis.gate_norm:
            logits = self.gate_norm(logits.transpose(-1, -2)).transpose(-1, -2)
        return logits


def _gate(start: tuple[float, float] | tuple[int, int | None, float], heads: int) -> nn.Module:
    """From a cosine to gate logits: a line for each head, or an MLP for all."""
    if len(start) == 2:
        line = nn.Linear(1, heads)
        nn.init.constant_(line.weight, start[0])
        nn.init.constant_(line.bias, start[1])
        return line
    hidden, last, gain = start
    layers = (nn.Linear(1, hidden), nn.Linear(hidden, last or heads))
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight, gain=gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.GELU(), layers[1])


def router(width: int, guides: int, *, deep: bool) -> nn.Sequential:
    """Logits [B, 1 + guides] from all global features [B, (1 + guides) C]; they start at 0."""
    sources = 1 + guides
    layers: list[nn.Module] = [nn.Linear(sources * width, 64), nn.ReLU(), nn.Linear(64, sources)]
    if deep:
        layers = [nn.Linear(sources * width, 256), nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.1)]
        layers += [nn.Linear(256, 64), nn.GELU(), nn.Linear(64, sources)]
    nn.init.zeros_(cast(nn.Linear, layers[-1]).weight)
    nn.init.zeros_(cast(nn.Linear, layers[-1]).bias)
    return nn.Sequential(*layers)


_PARTS = {
    "score_mlp": "score_mlp",
    "relevances": "relevance",
    "router": "guide_weights",
    "guide_weights": "guide_weights",
    "aggregation": "aggregation",
    "alignment": "alignment",
}


def part_of(parameter: str) -> str:
    """The part of SDTPS that the parameter of this name belongs to; gradients are shown by part."""
    return next(_PARTS[word] for word in parameter.split(".") if word in _PARTS)


class TokenSelection(nn.Module):
    """Scores, decides, gathers: everything of `SdtpsConfig` that comes before the aggregation.

    Args:
        config: the SDTPS axes.
        width: C.
        guides: how many there are beside the image's own global feature.
        attends: whether it computes relevances; a second branch may get the first one's.
    """

    def __init__(
        self, config: SdtpsConfig, width: int, guides: int = 2, *, attends: bool = True
    ) -> None:
        super().__init__()
        self.config = config
        self.axes = config.axes
        network = self.axes.score.network
        self.score_mlp = ScoreMlp(width) if network == "mlp" else None
        self.router: nn.Module | None = None
        self.guide_weights: nn.Parameter | None = None
        if network == "weights":
            self.guide_weights = nn.Parameter(torch.full((1 + guides,), 1 / (1 + guides)))
        elif network is not None and network != "mlp":
            self.router = router(width, guides, deep=network == "deep_router")
        # In the order own, guides; one network under all names where they share it.
        self.relevances = nn.ModuleList()
        axis, shared = self.axes.relevance, config.relevance_share != "none"
        if attends and axis.combine is not None:
            for place in range(1 + guides):
                share = shared and place > 0
                made = self.relevances[0] if share else PatchAttention(axis, config, width)
                self.relevances.append(made)

    def relevance(
        self, tokens: Tensor, guides: Tensor, place: int, lengths: Tensor | None = None
    ) -> Tensor:
        """Relevance [..., T, N] of tokens [..., N, C] to guides [..., T, C].

        Args:
            place: 0 = the guides are images' own global features; 1 = first guide, and so on.
            lengths: `token_lengths` of the tokens, where they are known.
        """
        if not self.axes.relevance.unit:
            return dots(tokens, guides)
        cosine = cosines(tokens, guides, lengths)
        return self.relevances[place](tokens, guides, cosine) if self.relevances else cosine

    def attentions(
        self, tokens: Tensor, self_guide: Tensor, guides: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Relevances [..., N] to the own global feature and each guide, under `no_grad`'s rule.

        Args:
            tokens: [..., N, C]; self_guide and each of guides: [..., C].
        """
        no_grad = self.axes.no_grad
        lengths = token_lengths(tokens) if self.axes.relevance.unit else None  # once for all guides
        with no_gradient(no_grad.own):
            own = self.relevance(tokens, self_guide.unsqueeze(-2), 0, lengths).squeeze(-2)
        with no_gradient(no_grad.guides):
            return own, [
                self.relevance(tokens, guide.unsqueeze(-2), place, lengths).squeeze(-2)
                for place, guide in enumerate(guides, start=1)
            ]

    def predicted(self, tokens: Tensor, globals_: Tensor | None = None) -> Tensor | None:
        """What the score's network says, where it has one: s^p [..., N], or logits [..., 1 + guides].

        Args:
            tokens: [..., N, C]; globals_: [B, (1 + guides) C], read by routers alone.
        """
        if self.score_mlp is not None:
            return self.score_mlp(tokens)
        if self.router is not None:
            assert globals_ is not None
            with no_autocast(globals_):
                return self.router(full_precision(globals_))
        return self.guide_weights

    def score(
        self,
        self_attention: Tensor,
        guide_attentions: Sequence[Tensor],
        predicted: Tensor | None = None,
    ) -> Tensor:
        """Scores [..., N] from relevances and what `predicted` says, as the score axis says."""
        normalise = self.axes.normalise.apply
        with no_autocast(self_attention):
            found = [full_precision(attention) for attention in (self_attention, *guide_attentions)]
            if all(attention.shape == found[0].shape for attention in found):
                own, *guides = normalise(torch.stack(found)).unbind()  # together: fewer kernels
            else:
                own, *guides = map(normalise, found)
            return self.axes.score.combine(own, guides, predicted, self.config)

    def forward(
        self,
        tokens: Tensor,
        self_attention: Tensor,
        guide_attentions: Sequence[Tensor],
        uniform: Tensor | None = None,
        globals_: Tensor | None = None,
    ) -> Selection:
        """Select from tokens [..., N, C] by attentions [..., N].

        Args:
            uniform: draws in [0, 1) for a decision with noise, [..., N]; drawn from torch's global
                generator when not given.
            globals_: as of `predicted`.
        """
        with no_gradient(self.axes.no_grad.selection):
            score = self.score(self_attention, guide_attentions, self.predicted(tokens, globals_))
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
            if acts and decision.draws_noise and uniform is None:
                uniform = torch.rand_like(score)
            if acts and decision.mix is not None:
                rows = decision.mix(score, kept_score, uniform, config)
                made = rows.sum(dim=-2).clamp(max=1.0)
                kept_decision = (rows * made.unsqueeze(-2)).sum(dim=-1)
                kept_score = kept_score[..., : rows.shape[-2]]
            else:
                if acts and decision.decide is not None:
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
        if axis.while_idle is not None and not self.axes.decision.acts(self.config, self.training):
            axis = axis.while_idle
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
        extra = None
        if self.axes.aggregation.in_place:
            kept = tokens * choice.decision.unsqueeze(-1).to(tokens.dtype)
        else:
            if choice.rows is None:
                kept = gather_tokens(tokens, choice.kept)
            else:
                kept = mix_tokens(choice.rows, tokens)
            if self.axes.mask.scales_tokens:
                kept = kept * choice.kept_decision.unsqueeze(-1).to(kept.dtype)
            if choice.extra is not None:
                extra = mix_tokens(choice.extra.unsqueeze(-2), tokens)
        return Selection(
            kept, extra, choice.decision, choice.kept_decision, choice.kept_score, choice.score
        )
