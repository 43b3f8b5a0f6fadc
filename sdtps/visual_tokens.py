"""The visual tokens of each image-caption pair, as the cross-net aligns them.

`Images` holds what no caption changes, computed once: aggregation logits, Gram matrices, directions.
`VisualTokens` makes the tokens of each pair from it, for a chunk of captions at a time: class token,
aggregated (or kept) patches, extra token.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sdtps.aggregation import DualTokenAggregation, TokenAggregation, WeightNetwork
from sdtps.alignment import Alignment
from sdtps.config.selection import SdtpsConfig
from sdtps.cosines import mixture_cosines
from sdtps.selection import Selection, TokenSelection, mix_tokens

# Logits of one image that differ by more than this could underflow when a caption drops the largest.
SAFE_SPREAD = 60.0
IMAGES_AT_ONCE = 16  # through the aggregation's network at evaluation


class Choice(NamedTuple):
    """What one branch decides for every pair; nothing is gathered. All (B, T, N)."""

    score: Tensor
    decision: Tensor
    kept: Tensor  # bool
    bias: Tensor  # added to the aggregation's logits: the mask, -inf at dropped patches
    extra: Tensor | None  # what the extra token takes of each patch
    uniform: Tensor | None  # the draws behind the Gumbel noise


def selection_context(config: SdtpsConfig) -> AbstractContextManager[None]:
    """no_grad around the selection where the configuration puts it there (released)."""
    return torch.no_grad() if config.no_grad == "selection" else nullcontext()


class Images:
    """A batch of images, and what follows from them alone.

    Args:
        tokens: (B, N, C), or (B, 1 + N, C) with a class token.
    """

    def __init__(self, config: SdtpsConfig, tokens: Tensor, *, class_token: bool) -> None:
        self.patches = tokens[:, 1:].contiguous() if class_token else tokens
        self.classes = F.normalize(tokens[:, :1], dim=-1) if class_token else None
        # Inside no_grad the published selection also gathers: patches get no gradient through it.
        inside = config.enabled and config.no_grad == "selection"
        self.selectable = self.patches.detach() if inside else self.patches
        self._weights: dict[int, tuple[Tensor, bool]] = {}

    def aggregation_weights(self, network: WeightNetwork, scale: Tensor) -> tuple[Tensor, bool]:
        """Exponentials of the aggregation's logits (B, A, N), before any mask and normalisation.

        Where logits are too far apart to be exponentiated before a caption drops patches, the logits
        themselves, and False.
        """
        if id(network) not in self._weights:
            # In blocks, so that the normalised patches do not all lie in memory at once.
            blocks = self.selectable.split(
                len(self.selectable) if torch.is_grad_enabled() else IMAGES_AT_ONCE
            )
            logits = torch.cat([network(b).transpose(1, 2) for b in blocks]) * scale.squeeze()
            largest = logits.detach().amax(-1, keepdim=True)
            safe = bool((largest - logits.detach().amin(-1, keepdim=True)).amax() < SAFE_SPREAD)
            self._weights[id(network)] = ((logits - largest).exp() if safe else logits), safe
        return self._weights[id(network)]

    @cached_property
    def gram(self) -> Tensor:
        """(B, N, N); a constant, its gradient is part of the patches' own."""
        patches = self.selectable.detach()
        return patches @ patches.transpose(1, 2)

    @cached_property
    def directions(self) -> Tensor:
        """Normalised patches (B, N, C), for tokens that are patches as they are."""
        return F.normalize(self.selectable, dim=-1)


class VisualTokens:
    """The visual tokens of all pairs for one text.

    Args:
        branches: the decisions that make the tokens: none (all patches), one, or two merged.
        selection: any branch's, where there are branches; only decides, as scores are given.
    """

    def __init__(
        self,
        config: SdtpsConfig,
        images: Images,
        branches: list[Choice],
        *,
        selection: TokenSelection | None,
        aggregation: TokenAggregation | DualTokenAggregation | None,
        alignment: Alignment,
        training: bool,
    ) -> None:
        self.config = config
        self.images = images
        self.branches = branches
        self.selection = selection
        self.aggregation = aggregation
        self.alignment = alignment
        self.training = training

    @property
    def _gathers(self) -> bool:
        """Whether tokens differ from pair to pair in more than their weights on the patches.

        Soft training mixes all tokens before the aggregation's network; `multiply` with noise lets
        the decision's gradient through that network. Both need each pair's tokens.
        """
        config, training = self.config, self.training
        soft = config.decision == "soft" and training
        noisy = config.decision == "gumbel_ste" and (training or config.noise_in_eval)
        return bool(self.branches) and (soft or (noisy and config.mask == "multiply"))

    def similarity(self, captions: Tensor, words: Tensor, padding: Tensor | None) -> Tensor:
        """(B, T) for some captions: words (T, L, C) normalised; padding (T, L) or None = no padding."""
        images, pool = self.images, _Pool(padding)
        if images.classes is not None:
            pool.add(torch.einsum("bvc,tlc->btlv", images.classes, words))
        if self._gathers:
            pool.add(torch.einsum("btvc,tlc->btlv", self._gathered(captions), words))
            return pool.similarity(self.alignment)
        if self.aggregation is None:
            cosines = torch.einsum("bnc,tlc->btln", images.directions, words)
            for choice in self.branches:
                pool.add(cosines, choice.kept[:, captions])
            if not self.branches:
                pool.add(cosines)
        mixtures = self._mixtures(captions)
        if mixtures is not None:
            pool.add(mixture_cosines(mixtures, images.selectable, lambda: images.gram, words))
        return pool.similarity(self.alignment)

    def _mixtures(self, captions: Tensor) -> Tensor | None:
        """Weights (B, T, R, N) of aggregated tokens and extra token, each up to a positive factor."""
        rows: list[Tensor] = []
        if self.aggregation is not None:
            rows.append(self._aggregated(self.aggregation, captions))
        extras = [choice.extra[:, captions] for choice in self.branches if choice.extra is not None]
        if extras:
            rows.append(sum(extras[1:], extras[0]).unsqueeze(2))
        return torch.cat(rows, dim=2) if rows else None

    def _aggregated(
        self, aggregation: TokenAggregation | DualTokenAggregation, captions: Tensor
    ) -> Tensor:
        """Weights (B, T, A, N) of the aggregated tokens, up to a positive factor.

        A cosine does not see the softmax's denominator; of two branches the ratio remains.
        """
        pairs = list(zip(networks(aggregation), self.branches, strict=False))
        weights = [self.images.aggregation_weights(n, aggregation.scale) for n, _ in pairs]
        biases = [choice.bias[:, captions] for _, choice in pairs]
        if not all(safe for _, safe in weights):
            rows = [
                (_logits(weight, safe).unsqueeze(1) + bias.unsqueeze(2)).softmax(-1)
                for (weight, safe), bias in zip(weights, biases, strict=True)
            ]
            return sum(rows[1:], rows[0])
        factors = [bias.exp() for bias in biases]
        mixed = weights[0][0].unsqueeze(1) * factors[0].unsqueeze(2)
        if len(factors) == 1:
            return mixed
        first, second = (
            factor @ weight.transpose(1, 2)
            for factor, (weight, _) in zip(factors, weights, strict=True)
        )
        other = weights[1][0].unsqueeze(1) * factors[1].unsqueeze(2)
        return mixed + other * (first / second).unsqueeze(-1)

    def _gathered(self, captions: Tensor) -> Tensor:
        """Normalised tokens (B, T, V, C) of each pair, made as the published modules make them."""
        patches = self.images.selectable.unsqueeze(1)
        assert self.selection is not None
        chosen: list[Selection] = []
        for choice in self.branches:
            uniform = None if choice.uniform is None else choice.uniform[:, captions]
            with selection_context(self.config):
                chosen.append(self.selection.select(patches, choice.score[:, captions], uniform))
        return F.normalize(merge(self.aggregation, chosen), dim=-1)


def merge(
    aggregation: TokenAggregation | DualTokenAggregation | None, chosen: list[Selection]
) -> Tensor:
    """Aggregated (or kept) tokens of one or two selections and the mean of their extra tokens."""
    if aggregation is None:
        tokens = [choice.tokens for choice in chosen]
    else:
        parts = [
            mix_tokens(
                aggregation.weights(network, choice.tokens, choice.kept_decision, choice.kept_score),
                choice.tokens,
            )
            for network, choice in zip(networks(aggregation), chosen, strict=False)
        ]
        tokens = [sum(parts[1:], parts[0])]
    extras = [choice.extra for choice in chosen if choice.extra is not None]
    if extras:
        tokens.append(sum(extras[1:], extras[0]) / len(extras))
    return torch.cat(tokens, dim=-2)


def networks(aggregation: TokenAggregation | DualTokenAggregation) -> list[WeightNetwork]:
    """The weight network of each branch."""
    if isinstance(aggregation, DualTokenAggregation):
        return [aggregation.weight_sparse, aggregation.weight_dense]
    return [aggregation.weight]


def _logits(weight: Tensor, exponentiated: bool) -> Tensor:
    return weight.log() if exponentiated else weight


class _Pool:
    """Best matches over several groups of visual tokens."""

    def __init__(self, padding: Tensor | None) -> None:
        self.padding = padding
        self.best_word: list[Tensor] = []  # of each token, (B, T, V)
        self.best_token: list[Tensor] = []  # of each word, (B, T, L)
        self.present: list[Tensor | None] = []  # (B, T, V): which tokens a pair has; None = all

    def add(self, cosines: Tensor, present: Tensor | None = None) -> None:
        """Cosines (B, T, L, V) of V more tokens."""
        self.present.append(present)
        if present is None:
            self.best_token.append(cosines.amax(3))
        else:
            self.best_token.append(cosines.masked_fill(~present[:, :, None], -torch.inf).amax(3))
        if self.padding is not None:
            cosines = cosines.masked_fill(self.padding[:, :, None], -torch.inf)
        self.best_word.append(cosines.amax(2))

    def similarity(self, alignment: Alignment) -> Tensor:
        """(B, T)"""
        best_token = reduce(torch.maximum, self.best_token)
        words = None if self.padding is None else ~self.padding
        best_word = torch.cat(self.best_word, -1)
        return alignment.pool(best_word, best_token, words=words, tokens=self._present())

    def _present(self) -> Tensor | None:
        if all(present is None for present in self.present):
            return None
        return torch.cat(
            [
                torch.ones_like(best, dtype=torch.bool) if present is None else present
                for best, present in zip(self.best_word, self.present, strict=True)
            ],
            dim=-1,
        )
