"""The cross-net: similarity of every image with every caption, patches selected for each pair.

The published code loops over captions: for each it gathers, normalises, aggregates and aligns the
patches of all images. Here all pairs are scored together, and exactly, because

* a patch's aggregation logits depend on no caption: they are computed once for an image, and a
  caption only masks them;
* cosines do not change when a token is scaled, so the aggregation's softmax needs no denominator
  (in the dual form, the ratio of two);
* the cosine of a word with a weighted sum of patches follows from word-patch products and the
  patches' Gram matrix (`sdtps.cosines`), so that no pair has tokens of its own.

`sdtps.bench.crossnet_loop` is the same thing as a loop, to be read and to be compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps.aggregation import (
    DualTokenAggregation,
    TokenAggregation,
    WeightNetwork,
    aggregated_count,
    mask_logits,
)
from sdtps.alignment import Alignment, word_mask
from sdtps.config.retrieval import MatchingConfig
from sdtps.config.selection import SdtpsConfig
from sdtps.cosines import mixture_cosines
from sdtps.selection import (
    Selection,
    TokenSelection,
    full_precision,
    kept_count,
    mix_tokens,
    no_autocast,
    order,
    soft_sort,
)

# Logits of one image that differ by more than this could underflow when a caption drops the largest.
SAFE_SPREAD = 60.0
# Pairs scored at once where the configuration does not say: what fits a CPU's cache, or fills a GPU.
PAIRS_ON_CPU = 32
PAIRS_ON_GPU = 16384


class Matches(NamedTuple):
    """Result of the cross-net. B images, T captions, N patches."""

    similarity: Tensor  # (B, T)
    sparse_decision: Tensor | None  # D of each branch (B, T, N), for the ratio loss
    dense_decision: Tensor | None


class Choice(NamedTuple):
    """What one branch decides for every pair; nothing is gathered. All (B, T, N)."""

    score: Tensor
    decision: Tensor
    kept: Tensor  # bool
    bias: Tensor  # added to the aggregation's logits: the mask, -inf at dropped patches
    extra: Tensor | None  # what the extra token takes of each patch
    uniform: Tensor | None  # the draws behind the Gumbel noise


class Text(NamedTuple):
    """Words (T, L, C) as they come from the encoder, and how many of each caption are no padding."""

    words: Tensor
    lengths: Tensor

    def mean(self) -> Tensor:
        """The caption's global feature (T, C): the mean of its words."""
        present = word_mask(self.lengths, self.words.shape[1]).unsqueeze(-1)
        return (self.words * present).sum(1) / self.lengths.unsqueeze(-1)


class CrossNet(nn.Module):
    """SDTPS between images and texts in the forms `laps`, `released` and `paper`.

    Args:
        sdtps: score, decision, mask, aggregation; `enabled: false` aligns all patches.
        matching: form and alignment.
        width: C.
        patches: N, which fixes the number of aggregated tokens.
        class_token: whether a [CLS] token comes in front of the patches; it is aligned, never selected.
    """

    def __init__(
        self,
        sdtps: SdtpsConfig,
        matching: MatchingConfig,
        *,
        width: int,
        patches: int,
        class_token: bool,
    ) -> None:
        super().__init__()
        self.config = sdtps
        self.matching = matching
        self.class_token = class_token
        self.sparse_selection: TokenSelection | None = None
        self.dense_selection: TokenSelection | None = None
        self.aggregation: TokenAggregation | DualTokenAggregation | None = None
        if sdtps.enabled:
            self.sparse_selection = TokenSelection(sdtps, width)
            if matching.form != "laps":
                self.dense_selection = TokenSelection(sdtps, width)
            if sdtps.aggregation != "none":
                outputs = aggregated_count(patches, sdtps.aggregation_ratio, sdtps.keep_ratio)
                dual = sdtps.aggregation == "dual" and matching.form == "paper"
                kind = DualTokenAggregation if dual else TokenAggregation
                self.aggregation = kind(sdtps, width, outputs)
        self.alignment = Alignment(matching.alignment, matching.top_k)

    def forward(
        self,
        images: Tensor,
        words: Tensor,
        lengths: Tensor,
        dense_words: Tensor | None = None,
        dense_lengths: Tensor | None = None,
    ) -> Matches:
        """Score all pairs.

        Args:
            images: (B, N, C), or (B, 1 + N, C) with a class token.
            words: (T, L, C) of the sparse captions; lengths: (T), at least 1.
            dense_words, dense_lengths: the dense texts, one for each caption; None = not used.

        Everything is computed in float32 at least: squared norms of mixtures overflow float16.
        """
        with no_autocast(images):
            images = full_precision(images)
            sparse = Text(full_precision(words), lengths)
            dense = None
            if dense_words is not None and dense_lengths is not None:
                dense = Text(full_precision(dense_words), dense_lengths)
            classes = images[:, :1] if self.class_token else None
            patches = images[:, 1:] if self.class_token else images
            return self._score(classes, patches, sparse, dense)

    def _score(
        self, classes: Tensor | None, patches: Tensor, sparse: Text, dense: Text | None
    ) -> Matches:
        if self.sparse_selection is None:
            return Matches(self._align(_Visual(self, classes, patches, []), sparse), None, None)
        guides = [sparse.mean()] if self.matching.sparse_guide else []
        if dense is None:
            chosen = self._choose(self.sparse_selection, patches, guides)
            visual = _Visual(self, classes, patches, [chosen])
            return Matches(self._align(visual, sparse), chosen.decision, None)
        if self.dense_selection is None:
            raise ValueError(f"form {self.matching.form} takes no dense text")
        if self.matching.form == "released":
            first = self._choose(self.sparse_selection, patches, guides)
            second = self._choose(self.dense_selection, patches, [dense.mean()])
            similarity = self._align(_Visual(self, classes, patches, [first]), sparse)
            similarity = similarity + self._align(_Visual(self, classes, patches, [second]), dense)
            return Matches(similarity, first.decision, second.decision)
        guides = [*guides, dense.mean()]
        first = self._choose(self.sparse_selection, patches, guides)
        second = self._choose(self.dense_selection, patches, guides[::-1])
        branches = [first] if self.config.aggregation == "single" else [first, second]
        similarity = self._align(_Visual(self, classes, patches, branches), sparse)
        return Matches(similarity, first.decision, second.decision)

    def _choose(self, selection: TokenSelection, patches: Tensor, guides: list[Tensor]) -> Choice:
        """Score and decide for all pairs; small tensors, so they are not chunked.

        The noise of `gumbel_ste` is drawn here for all pairs: it must not depend on the chunks.
        """
        tokens = patches.unsqueeze(1)
        with selection_context(self.config):
            own, guided = selection.attentions(
                tokens, patches.mean(1, keepdim=True), [guide.unsqueeze(0) for guide in guides]
            )
            score = selection.score(tokens, own, guided)
            ordered, indices = order(score)
            kept = kept_count(patches.shape[1], self.config.keep_ratio)
            uniform = None
            if self.config.decision == "gumbel_ste":  # not rand_like: it would follow score's strides
                uniform = torch.rand(score.shape, dtype=score.dtype, device=score.device)
            if self.config.decision == "soft" and self.training:
                rows = soft_sort(score, ordered[..., :kept], self.config.temperature)
                decision = rows.sum(-2).clamp(max=1.0)
            else:
                decision = selection.decide(score, indices[..., :kept], uniform)
            extra = selection.extra_weights(decision, ordered[..., kept:], indices[..., kept:])
            is_kept = torch.zeros_like(score, dtype=torch.bool).scatter(-1, indices[..., :kept], True)
            bias = mask_logits(
                score.new_zeros(*score.shape[:-1], 1, score.shape[-1]),
                self.config.mask,
                constant=self.config.mask_constant,
                decision=decision,
                score=score.masked_fill(~is_kept, -torch.inf),
            ).squeeze(-2)
            bias = bias.masked_fill(~is_kept, -torch.inf)
        return Choice(score, decision, is_kept, bias, extra, uniform)

    def _align(self, visual: _Visual, text: Text) -> Tensor:
        """Similarity (B, T) of the visual tokens of each pair with the words, chunk by chunk."""
        words = F.normalize(text.words, dim=-1)
        parts: list[Tensor] = []
        sequence: list[int] = []
        for captions, shortest, longest in self._chunks(len(visual.patches), text):
            index = torch.tensor(captions, device=words.device)
            padding = None
            if shortest < longest:
                padding = ~word_mask(text.lengths[index], longest)
            parts.append(visual.similarity(index, words[index, :longest], padding))
            sequence += captions
        place = torch.empty(len(sequence), dtype=torch.long)
        place[torch.tensor(sequence)] = torch.arange(len(sequence))
        return torch.cat(parts, dim=1)[:, place.to(words.device)]

    def _chunks(self, images: int, text: Text) -> Iterator[tuple[list[int], int, int]]:
        """Captions to score together, their shortest and longest length; like lengths share a chunk."""
        pairs = self.matching.chunk or (PAIRS_ON_GPU if text.words.is_cuda else PAIRS_ON_CPU)
        size = max(1, pairs // images)
        lengths = text.lengths.tolist()
        ranked = sorted(range(len(lengths)), key=lengths.__getitem__)
        for start in range(0, len(ranked), size):
            captions = ranked[start : start + size]
            yield captions, lengths[captions[0]], lengths[captions[-1]]


def selection_context(config: SdtpsConfig) -> AbstractContextManager[None]:
    """no_grad around the selection where the configuration puts it there (released)."""
    return torch.no_grad() if config.no_grad == "selection" else nullcontext()


class _Visual:
    """The visual tokens of every pair: class token, aggregated or kept patches, extra token.

    Holds what depends on the image alone, and makes the rest for a chunk of captions.
    """

    def __init__(
        self, net: CrossNet, classes: Tensor | None, patches: Tensor, branches: list[Choice]
    ) -> None:
        self.net = net
        self.branches = branches
        self.classes = None if classes is None else F.normalize(classes, dim=-1)
        # Inside no_grad the published selection also gathers: patches get no gradient through it.
        inside = bool(branches) and net.config.no_grad == "selection"
        self.patches = patches.detach() if inside else patches
        self.logits: list[Tensor] = []  # of the aggregation, (B, A, N), one for each branch
        self.safe = False
        if net.aggregation is not None and not self._gathers:
            scale = net.aggregation.scale.squeeze()
            self.logits = [
                network(self.patches).transpose(1, 2) * scale
                for network in _networks(net.aggregation)[: len(branches)]
            ]
            spread = torch.stack([x.detach().amax(-1) - x.detach().amin(-1) for x in self.logits])
            self.safe = bool(spread.amax() < SAFE_SPREAD)
        if self.safe:  # exponentials from here on
            self.logits = [(x - x.detach().amax(-1, keepdim=True)).exp() for x in self.logits]

    @property
    def _gathers(self) -> bool:
        """Whether tokens differ from pair to pair in more than their weights on the patches.

        Soft training mixes all tokens before the aggregation's network; `multiply` with noise lets
        the decision's gradient through that network. Both need each pair's tokens.
        """
        config, training = self.net.config, self.net.training
        soft = config.decision == "soft" and training
        noisy = config.decision == "gumbel_ste" and (training or config.noise_in_eval)
        return bool(self.branches) and (soft or (noisy and config.mask == "multiply"))

    @cached_property
    def _gram(self) -> Tensor:
        """(B, N, N); a constant, its gradient is part of the patches' own."""
        patches = self.patches.detach()
        return patches @ patches.transpose(1, 2)

    @cached_property
    def _directions(self) -> Tensor:
        """Normalised patches, for tokens that are patches as they are."""
        return F.normalize(self.patches, dim=-1)

    def similarity(self, captions: Tensor, words: Tensor, padding: Tensor | None) -> Tensor:
        """(B, T) for some captions: words (T, L, C) normalised; padding (T, L) or None = no padding."""
        pool = _Pool(padding)
        if self.classes is not None:
            pool.add(torch.einsum("bvc,tlc->btlv", self.classes, words))
        if self._gathers:
            pool.add(torch.einsum("btvc,tlc->btlv", self._gathered(captions), words))
            return pool.similarity(self.net.alignment)
        if self.net.aggregation is None:
            cosines = torch.einsum("bnc,tlc->btln", self._directions, words)
            for choice in self.branches:
                pool.add(cosines, choice.kept[:, captions])
            if not self.branches:
                pool.add(cosines)
        mixtures = self._mixtures(captions)
        if mixtures is not None:
            pool.add(mixture_cosines(mixtures, self.patches, self._gram, words))
        return pool.similarity(self.net.alignment)

    def _mixtures(self, captions: Tensor) -> Tensor | None:
        """Weights (B, T, R, N) of aggregated tokens and extra token, each up to a positive factor."""
        rows: list[Tensor] = []
        if self.logits:
            biases = [choice.bias[:, captions] for choice in self.branches]
            rows.append(self._unnormalised(biases) if self.safe else self._softmax(biases))
        extras = [choice.extra[:, captions] for choice in self.branches if choice.extra is not None]
        if extras:
            rows.append(sum(extras[1:], extras[0]).unsqueeze(2))
        return torch.cat(rows, dim=2) if rows else None

    def _unnormalised(self, biases: list[Tensor]) -> Tensor:
        """Aggregation weights without the softmax's denominator; two branches keep its ratio."""
        factors = [bias.exp() for bias in biases]
        mixed = self.logits[0].unsqueeze(1) * factors[0].unsqueeze(2)
        if len(factors) == 1:
            return mixed
        first, second = (
            factor @ logits.transpose(1, 2) for factor, logits in zip(factors, self.logits, strict=True)
        )
        other = self.logits[1].unsqueeze(1) * factors[1].unsqueeze(2)
        return mixed + other * (first / second).unsqueeze(-1)

    def _softmax(self, biases: list[Tensor]) -> Tensor:
        """The same with denominators, for logits too far apart to be exponentiated as they are."""
        weights = [
            (logits.unsqueeze(1) + bias.unsqueeze(2)).softmax(-1)
            for logits, bias in zip(self.logits, biases, strict=True)
        ]
        return sum(weights[1:], weights[0])

    def _gathered(self, captions: Tensor) -> Tensor:
        """Normalised tokens (B, T, V, C) of each pair, made as the published modules make them."""
        net = self.net
        chosen: list[Selection] = []
        for selection, choice in zip(
            (net.sparse_selection, net.dense_selection), self.branches, strict=False
        ):
            assert selection is not None
            uniform = None if choice.uniform is None else choice.uniform[:, captions]
            with selection_context(net.config):
                chosen.append(
                    selection.select(self.patches.unsqueeze(1), choice.score[:, captions], uniform)
                )
        return F.normalize(merge(net.aggregation, chosen), dim=-1)


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
            for network, choice in zip(_networks(aggregation), chosen, strict=False)
        ]
        tokens = [sum(parts[1:], parts[0])]
    extras = [choice.extra for choice in chosen if choice.extra is not None]
    if extras:
        tokens.append(sum(extras[1:], extras[0]) / len(extras))
    return torch.cat(tokens, dim=-2)


def _networks(aggregation: TokenAggregation | DualTokenAggregation) -> list[WeightNetwork]:
    if isinstance(aggregation, DualTokenAggregation):
        return [aggregation.weight_sparse, aggregation.weight_dense]
    return [aggregation.weight]


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
