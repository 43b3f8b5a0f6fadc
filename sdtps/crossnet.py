"""The cross-net: similarity of every image with every caption, patches selected for each pair.

The published code loops over captions: for each it gathers, normalises, aggregates and aligns the
patches of all images. Here all pairs are scored together, and exactly, because

* a patch's aggregation logits depend on no caption: they are computed once for an image, and a
  caption only masks them;
* cosines do not change when a token is scaled, so the aggregation's softmax needs no denominator
  (in the dual form, the ratio of two);
* the cosine of a word with a weighted sum of patches follows from word-patch products and the
  patches' Gram matrix (`sdtps.cosines`), so that no pair has tokens of its own.

`benchmarks.crossnet_loop` is the same thing as a loop, to be read and to be compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps.aggregation import (
    DualTokenAggregation,
    TokenAggregation,
    aggregated_count,
    mask_logits,
)
from sdtps.alignment import Alignment, word_mask
from sdtps.config.retrieval import MatchingConfig
from sdtps.config.selection import SdtpsConfig
from sdtps.selection import (
    TokenSelection,
    full_precision,
    kept_count,
    no_autocast,
    order,
    soft_sort,
)
from sdtps.visual_tokens import Choice, Images, VisualTokens, selection_context

# Pairs scored at once where the configuration does not say: what suits a CPU's cache; on a GPU what
# fits these bytes, or, where activations are kept for a backward pass anyway, the fewest kernels.
PAIRS_ON_CPU = 64
BYTES_ON_GPU = 256 * 2**20
PAIRS_IN_TRAINING = 16384
# Selecting takes far less memory a pair than scoring: so many times the pairs are selected for at once.
SELECTED_AT_ONCE = 8


def pairs_in(size: int, patches: int, tokens: int, width: int, words: int) -> int:
    """How many pairs can be scored in `size` bytes: N patches, R tokens made of them, C, L words."""
    # Products or mixtures, the mixtures' weights on their way, cosines; all float32.
    floats = min(words * patches, 2 * tokens * width) + 3 * tokens * patches + 2 * tokens * words
    return max(1, size // (4 * floats))


class Matches(NamedTuple):
    """Result of the cross-net. B images, T captions, N patches."""

    similarity: Tensor  # (B, T)
    sparse_decision: Tensor | None  # D of each branch (B, T, N), for the ratio loss
    dense_decision: Tensor | None

    @staticmethod
    def joined(parts: list[Matches]) -> Matches:
        """Matches of further captions side by side."""
        columns = zip(*parts, strict=True)
        similarity, *decisions = [None if c[0] is None else torch.cat(c, dim=1) for c in columns]
        assert similarity is not None
        return Matches(similarity, *decisions)


class Text(NamedTuple):
    """Words (T, L, C) as they come from the encoder, and how many of each caption are no padding."""

    words: Tensor
    lengths: Tensor

    def rows(self, start: int, end: int) -> Text:
        """Captions `start` to `end`."""
        return Text(self.words[start:end], self.lengths[start:end])

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
        outputs = 0
        if sdtps.enabled:
            self.sparse_selection = TokenSelection(sdtps, width)
            if matching.form != "laps":
                self.dense_selection = TokenSelection(sdtps, width)
            if sdtps.aggregation != "none":
                outputs = aggregated_count(patches, sdtps.aggregation_ratio, sdtps.keep_ratio)
                dual = sdtps.aggregation == "dual" and matching.form == "paper"
                kind = DualTokenAggregation if dual else TokenAggregation
                self.aggregation = kind(sdtps, width, outputs)
        self.tokens_made = patches if self.aggregation is None else outputs + 1
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
            pictures = Images(self.config, images, class_token=self.class_token)
            if torch.is_grad_enabled():  # what a backward pass needs is kept anyway
                return self._score(pictures, sparse, dense)
            size = max(1, SELECTED_AT_ONCE * self._pairs(pictures, words) // len(images))
            parts = [
                self._score(
                    pictures,
                    sparse.rows(start, start + size),
                    None if dense is None else dense.rows(start, start + size),
                )
                for start in range(0, len(words), size)
            ]
            return Matches.joined(parts)

    def _pairs(self, images: Images, words: Tensor) -> int:
        """How many pairs to score at once."""
        if self.matching.chunk is not None:
            return self.matching.chunk
        if not words.is_cuda:
            return PAIRS_ON_CPU
        if torch.is_grad_enabled():
            return PAIRS_IN_TRAINING
        _, n, width = images.patches.shape
        return pairs_in(BYTES_ON_GPU, n, self.tokens_made, width, words.shape[1])

    def _score(self, images: Images, sparse: Text, dense: Text | None) -> Matches:
        if self.sparse_selection is None:
            return Matches(self._align(images, [], sparse), None, None)
        patches, captions = images.patches, len(sparse.words)
        guides = [sparse.mean()] if self.matching.sparse_guide else []
        if dense is None:
            chosen = self._choose(self.sparse_selection, patches, captions, guides)
            similarity = self._align(images, [chosen], sparse)
            return Matches(similarity, chosen.decision, None)
        if self.dense_selection is None:
            raise ValueError(f"form {self.matching.form} takes no dense text")
        if self.matching.form == "released":
            first = self._choose(self.sparse_selection, patches, captions, guides)
            second = self._choose(self.dense_selection, patches, captions, [dense.mean()])
            similarity = self._align(images, [first], sparse)
            similarity = similarity + self._align(images, [second], dense)
            return Matches(similarity, first.decision, second.decision)
        guides = [*guides, dense.mean()]
        first = self._choose(self.sparse_selection, patches, captions, guides)
        second = self._choose(self.dense_selection, patches, captions, guides[::-1])
        branches = [first] if self.config.aggregation == "single" else [first, second]
        similarity = self._align(images, branches, sparse)
        return Matches(similarity, first.decision, second.decision)

    def _choose(
        self, selection: TokenSelection, patches: Tensor, captions: int, guides: list[Tensor]
    ) -> Choice:
        """Score and decide for all pairs at once.

        The noise of `gumbel_ste` is drawn here: in training it must not depend on the chunks.
        """
        tokens = patches.unsqueeze(1)
        with selection_context(self.config):
            own, guided = selection.attentions(
                tokens, patches.mean(1, keepdim=True), [guide.unsqueeze(0) for guide in guides]
            )
            # Without a guide all captions share the score.
            score = selection.score(tokens, own, guided).expand(-1, captions, -1)
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

    def _align(self, images: Images, branches: list[Choice], text: Text) -> Tensor:
        """Similarity (B, T) of the visual tokens of each pair with the words, chunk by chunk."""
        visual = VisualTokens(
            self.config,
            images,
            branches,
            selection=self.sparse_selection,
            aggregation=self.aggregation,
            alignment=self.alignment,
            training=self.training,
        )
        words = F.normalize(text.words, dim=-1)
        parts: list[Tensor] = []
        sequence: list[int] = []
        for captions, shortest, longest in self._chunks(images, text):
            index = torch.tensor(captions, device=words.device)
            padding = None
            if shortest < longest:
                padding = ~word_mask(text.lengths[index], longest)
            parts.append(visual.similarity(index, words[index, :longest], padding))
            sequence += captions
        place = torch.empty(len(sequence), dtype=torch.long)
        place[torch.tensor(sequence)] = torch.arange(len(sequence))
        return torch.cat(parts, dim=1)[:, place.to(words.device)]

    def _chunks(self, images: Images, text: Text) -> Iterator[tuple[list[int], int, int]]:
        """Captions to score together, their shortest and longest length; like lengths share a chunk."""
        size = max(1, self._pairs(images, text.words) // len(images.patches))
        lengths = text.lengths.tolist()
        ranked = sorted(range(len(lengths)), key=lengths.__getitem__)
        for start in range(0, len(ranked), size):
            captions = ranked[start : start + size]
            yield captions, lengths[captions[0]], lengths[captions[-1]]
