"""The cross-net: similarity of every image with every caption, patches selected for each pair.

The published code loops over captions: for each it gathers, normalises, aggregates and aligns the
patches of all images. Here all pairs are scored together, and exactly, because

* a patch's aggregation logits depend on no caption: they are computed once for an image, and a
  caption only masks them;
* cosines do not change when a token is scaled, so the aggregation's softmax needs no denominator
  (in the dual form, the ratio of two);
* the cosine of a word with a weighted sum of patches follows from word-patch products and the
  patches' Gram matrix (`sdtps.alignment`), so that no pair has tokens of its own.

`benchmarks.crossnet.similarity_loop` is the same thing as a loop, to be read and to be compared with.

`Images` holds what no caption changes: aggregation logits, Gram matrices, directions; `Text` what no
image changes: normalised words, means. `VisualTokens` makes each pair's tokens, for a chunk of captions
at a time: class token, aggregated (or kept) patches, extra token. `CrossNet` chooses, chunks, aligns.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cached_property, reduce
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps.aggregation import TokenAggregation, WeightNetwork, build_aggregation, merged
from sdtps.alignment import Alignment, Mixtures, best_matches, normalised, word_mask
from sdtps.config.common import SdtpsConfig
from sdtps.config.retrieval import MatchingConfig
from sdtps.selection import (
    Choice,
    TokenSelection,
    full_precision,
    no_autocast,
    no_gradient,
    token_lengths,
)
from sdtps.system import distributed
from sdtps.system.errors import ConfigError

# How much is scored at once where the configuration does not say. On a CPU few captions with few
# images, which then stay in the cache; on a GPU the pairs that fit these bytes, or, where activations
# are kept for a backward pass anyway, the fewest kernels.
CAPTIONS_ON_CPU = 16
ALIKE = 1.5  # captions of one chunk are at most so much longer than its shortest
SCORES_ON_CPU = 2**17  # of pairs' patches, selected at once at evaluation
BYTES_ON_GPU = 256 * 2**20
PAIRS_IN_TRAINING = 16384
# Selecting takes far less memory a pair than scoring: so many times the pairs are selected for at once.
SELECTED_AT_ONCE = 16
# Logits of one image that differ by more than this could underflow when a caption drops the largest.
SAFE_SPREAD = 60.0

Captions = Tensor | slice  # which captions of a text


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
        """Matches of further images below one another."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*parts, strict=True)
        similarity, *decisions = [None if c[0] is None else torch.cat(c) for c in columns]
        assert similarity is not None
        return Matches(similarity, *decisions)


class Chunk(NamedTuple):
    """Captions that are aligned together."""

    captions: Captions
    words: Tensor  # (T, L, C) normalised
    padding: Tensor | None  # (T, L) bool; None = all captions have L words


class Text:
    """Captions, and what follows from them alone.

    Args:
        words: (T, L, C) as they come from the encoder.
        lengths: (T), how many of each caption's words are no padding. On the CPU they are read, and
            captions of like lengths are aligned together; on a GPU, which would have to be waited for,
            they are aligned in order.
    """

    def __init__(self, words: Tensor, lengths: Tensor) -> None:
        self.words = full_precision(words)
        self._known = lengths.tolist() if lengths.device.type == "cpu" else None
        self.lengths = lengths.to(words.device, non_blocking=True)
        self._chunks: dict[int, list[Chunk]] = {}

    @cached_property
    def mean(self) -> Tensor:
        """The captions' global features (T, C): the means of their words."""
        present = word_mask(self.lengths, self.words.shape[1]).unsqueeze(-1)
        return (self.words * present).sum(1) / self.lengths.unsqueeze(-1)

    def chunks(self, size: int) -> list[Chunk]:
        """At most `size` captions each; a chunk is as wide as its longest caption."""
        if size not in self._chunks:
            self._chunks[size] = list(
                self._in_order(size) if self._known is None else self._alike(size)
            )
        return self._chunks[size]

    def _in_order(self, size: int) -> Iterator[Chunk]:
        for part in (slice(start, start + size) for start in range(0, len(self.words), size)):
            padding = ~word_mask(self.lengths[part], self.words.shape[1])
            yield Chunk(part, normalised(self.words[part]), padding)

    def _alike(self, size: int) -> Iterator[Chunk]:
        words, known = self.words, cast(list[int], self._known)
        parts: list[list[int]] = []
        for caption in sorted(range(len(known)), key=known.__getitem__):
            if not parts or len(parts[-1]) == size or known[caption] > ALIKE * known[parts[-1][0]]:
                parts.append([])
            parts[-1].append(caption)
        for captions in parts:
            shortest, longest = known[captions[0]], known[captions[-1]]
            index = torch.tensor(captions).to(words.device, non_blocking=True)
            padding = ~word_mask(self.lengths[index], longest) if shortest < longest else None
            yield Chunk(index, normalised(words[index, :longest]), padding)


class PairChoice(NamedTuple):
    """What one branch decides for every pair; nothing is gathered."""

    choice: Choice  # leading axes (B, T)
    is_kept: Tensor  # (B, T, N) bool
    bias: Tensor  # (B, T, N) added to the aggregation's logits: the mask, -inf at dropped patches

    def of(self, captions: Captions) -> Choice:
        """The choice for some captions."""
        parts: list[Any] = [None if p is None else p[:, captions] for p in self.choice]
        return Choice(*parts)


class Images:
    """A batch of images, and what follows from them alone.

    Args:
        tokens: (B, N, C), or (B, 1 + N, C) with a class token.
    """

    def __init__(self, config: SdtpsConfig, tokens: Tensor, *, class_token: bool) -> None:
        self.tokens = tokens
        self.patches = tokens[:, 1:] if class_token else tokens
        self.classes = F.normalize(tokens[:, :1], dim=-1) if class_token else None
        # Inside no_grad the published selection also gathers: patches get no gradient through it.
        inside = config.enabled and config.axes.no_grad.selection
        self.selectable = self.patches.detach() if inside else self.patches
        self._weights: dict[int, tuple[Tensor, bool]] = {}
        self._predicted: dict[int, Tensor | None] = {}
        self._lengths: dict[bool, Tensor] = {}
        self._own: dict[tuple[bool, int], Tensor] = {}

    def relevance(self, selection: TokenSelection, guides: Tensor, place: int) -> Tensor:
        """Relevance of every patch to guides (T, C) or (B, T, C) -> (B, T, N)."""
        graded = torch.is_grad_enabled()  # what was made without gradients serves no one who needs them
        if graded not in self._lengths:
            self._lengths[graded] = token_lengths(self.patches)
        return selection.relevance(self.patches, guides, place, self._lengths[graded])

    def own_relevance(self, selection: TokenSelection) -> Tensor:
        """Relevance of every patch to its image's global feature, the mean of its patches (B, 1, N)."""
        # Branches share what they do not learn.
        key = torch.is_grad_enabled(), id(selection) if selection.relevances else 0
        if key not in self._own:
            self._own[key] = self.relevance(selection, self.patches.mean(1, keepdim=True), 0)
        return self._own[key]

    def predicted(self, selection: TokenSelection) -> Tensor | None:
        """s^p (B, 1, N) of a selection's score MLP, or its weights (1 + guides), where it has them."""
        if id(selection) not in self._predicted:
            self._predicted[id(selection)] = selection.predicted(self.patches.unsqueeze(1))
        return self._predicted[id(selection)]

    def aggregation_weights(self, network: WeightNetwork, scale: Tensor) -> tuple[Tensor, bool]:
        """Exponentials of the aggregation's logits (B, A, N), before any mask and normalisation.

        Where logits are too far apart to be exponentiated before a caption drops patches, the logits
        themselves, and False.
        """
        if id(network) not in self._weights:
            logits = network(self.selectable).transpose(1, 2) * scale.squeeze()
            largest = logits.detach().amax(-1, keepdim=True)
            # On a GPU the host would wait for the answer.
            safe = logits.device.type == "cpu" and bool(
                (largest - logits.detach().amin(-1, keepdim=True)).amax() < SAFE_SPREAD
            )
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
        selection: any branch's, where there are branches; only gathers, as all is chosen.
        fused: whether one kernel scores aggregated tokens (`sdtps.fused`).
    """

    def __init__(
        self,
        config: SdtpsConfig,
        images: Images,
        branches: list[PairChoice],
        *,
        selection: TokenSelection | None,
        aggregation: TokenAggregation | None,
        alignment: Alignment,
        training: bool,
        fused: bool = False,
    ) -> None:
        self.config = config
        self.images = images
        self.branches = branches
        self.selection = selection
        self.aggregation = aggregation
        self.alignment = alignment
        self.fused = fused
        self.gathers = bool(branches) and config.axes.gathers(config, training)

    def similarity(self, captions: Captions, words: Tensor, padding: Tensor | None) -> Tensor:
        """(B, T) for some captions: words (T, L, C) normalised; padding (T, L) or None = no padding."""
        images, pool = self.images, _Pool(padding)
        if images.classes is not None:
            pool.add(torch.einsum("bvc,tlc->btlv", images.classes, words))
        if self.gathers:
            pool.add(torch.einsum("btvc,tlc->btlv", self._gathered(captions), words))
            return pool.similarity(self.alignment)
        if self.aggregation is None:
            cosines = torch.einsum("bnc,tlc->btln", images.directions, words)
            for choice in self.branches:
                pool.add(cosines, choice.is_kept[:, captions])
            if not self.branches:
                pool.add(cosines)
        if self.fused and self.aggregation is not None:
            pool.add_best(*self._fused_matches(self.aggregation, captions, words, padding))
        mixtures = self._mixtures(captions)
        if mixtures is not None:
            pool.add_best(
                *best_matches(mixtures, images.selectable, lambda: images.gram, words, padding)
            )
        return pool.similarity(self.alignment)

    def _mixtures(self, captions: Captions) -> Mixtures | None:
        """The extra token, and the aggregated tokens unless one kernel scores these."""
        extras = [x[:, captions] for choice in self.branches if (x := choice.choice.extra) is not None]
        extra = [sum(extras[1:], extras[0])] if extras else []
        if self.aggregation is not None and not self.fused:
            return self._aggregated(self.aggregation, captions, extra)
        return Mixtures(1, lambda row: row.unsqueeze(2), extra) if extra else None

    def _aggregated(
        self, aggregation: TokenAggregation, captions: Captions, extra: list[Tensor]
    ) -> Mixtures:
        """The aggregated tokens and, where there is one, what the `extra` token takes (B, T, N)."""
        pairs = list(zip(aggregation.networks, self.branches, strict=False))
        weights = [self.images.aggregation_weights(n, aggregation.scale) for n, _ in pairs]
        biases = [choice.bias[:, captions] for _, choice in pairs]
        count = aggregation.outputs + len(extra)
        if not all(safe for _, safe in weights):
            logits = [weight.log() if safe else weight for weight, safe in weights]
            return Mixtures(count, _masked_softmax, [*logits, *biases, *extra])
        # The extra token has a row to begin with: joined later, all rows would be copied.
        exponentials = [F.pad(weight, (0, 0, 0, len(extra)), value=1.0) for weight, _ in weights]
        return Mixtures(count, _masked, [*exponentials, *(bias.exp() for bias in biases), *extra])

    def _fused_matches(
        self, aggregation: TokenAggregation, captions: Captions, words: Tensor, padding: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Best word (B, T, A) of each aggregated token, best of these tokens (B, T, L) of each word."""
        from sdtps import fused  # needs Triton

        patches = self.images.selectable
        if len(aggregation.networks) > 1:  # two branches together may keep any patch
            mixtures = self._aggregated(aggregation, captions, [])
            weights = mixtures.weights(*mixtures.parts)
            kept = torch.arange(patches.shape[1], device=patches.device).expand(*weights.shape[:2], -1)
            return fused.best_matches(weights, kept, patches, words, padding)
        logits, safe = self.images.aggregation_weights(aggregation.networks[0], aggregation.scale)
        branch = self.branches[0]
        kept = branch.choice.kept[:, captions]
        bias = branch.bias[:, captions].gather(2, kept).unsqueeze(2)
        each = logits.unsqueeze(1).expand(-1, kept.shape[1], -1, -1)
        weights = each.gather(3, kept.unsqueeze(2).expand(-1, -1, logits.shape[1], -1))
        weights = weights * bias.exp() if safe else (weights + bias).softmax(-1)
        return fused.best_matches(weights, kept, patches, words, padding)

    def _gathered(self, captions: Captions) -> Tensor:
        """Normalised tokens (B, T, V, C) of each pair, made as the published modules make them."""
        assert self.selection is not None
        patches = self.images.selectable.unsqueeze(1)
        with no_gradient(self.config.axes.no_grad.selection):
            chosen = [self.selection.gather(patches, choice.of(captions)) for choice in self.branches]
        return F.normalize(merged(self.aggregation, chosen), dim=-1)


def _masked(*parts: Tensor) -> Tensor:
    """Weights (B, T, R, N) of the aggregated tokens and the extra token, up to a positive factor.

    A cosine does not see the softmax's denominator; of two branches the ratio remains.

    Args:
        parts: of each branch the exponentials of the logits (B, R, N), then those of the biases
            (B, T, N), then what the extra token takes (B, T, N), if there is one.
    """
    branches, extra = divmod(len(parts), 2)
    weights, factors = parts[:branches], parts[branches : 2 * branches]
    mixed = weights[0].unsqueeze(1) * factors[0].unsqueeze(2)
    if branches == 2:
        first, second = (f @ w.transpose(1, 2) for f, w in zip(factors, weights, strict=True))
        other = weights[1].unsqueeze(1) * factors[1].unsqueeze(2)
        mixed = mixed + other * (first / second).unsqueeze(-1)
    if extra:
        mixed[:, :, -1] = parts[-1]
    return mixed


def _masked_softmax(*parts: Tensor) -> Tensor:
    """`_masked` of logits (B, A, N) and biases that must not be exponentiated before they are added."""
    branches, extra = divmod(len(parts), 2)
    rows = [
        (logits.unsqueeze(1) + bias.unsqueeze(2)).softmax(-1)
        for logits, bias in zip(parts[:branches], parts[branches : 2 * branches], strict=True)
    ]
    mixed = sum(rows[1:], rows[0])
    return torch.cat([mixed, parts[-1].unsqueeze(2)], dim=2) if extra else mixed


class _Pool:
    """Best matches over several groups of visual tokens."""

    def __init__(self, padding: Tensor | None) -> None:
        self.padding = padding
        self.best_word: list[Tensor] = []  # of each token, (B, T, V)
        self.best_token: list[Tensor] = []  # of each word, (B, T, L)
        self.present: list[Tensor | None] = []  # (B, T, V): which tokens a pair has; None = all

    def add(self, cosines: Tensor, present: Tensor | None = None) -> None:
        """Cosines (B, T, L, V) of V more tokens."""
        existing = cosines
        if present is not None:
            existing = cosines.masked_fill(~present[:, :, None], -torch.inf)
        if self.padding is not None:
            cosines = cosines.masked_fill(self.padding[:, :, None], -torch.inf)
        self.add_best(cosines.amax(2), existing.amax(3), present)

    def add_best(self, best_word: Tensor, best_token: Tensor, present: Tensor | None = None) -> None:
        """V more tokens: the best word (B, T, V) of each, the best of them (B, T, L) of each word."""
        self.best_word.append(best_word)
        self.best_token.append(best_token)
        self.present.append(present)

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


class CrossNet(nn.Module):
    """SDTPS between images and texts in the forms `laps`, `released` and `paper`.

    Args:
        sdtps: score, decision, mask, aggregation; `enabled: false` aligns all patches.
        matching: form and alignment.
        width: C.
        patches: N, which fixes the number of aggregated tokens.
        class_token: whether a [CLS] token comes in front of the patches; it is aligned, never selected.

    Raises:
        ConfigError: `matching.kernel` is `fused` and Triton is missing; a call also needs a GPU.
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
        if matching.kernel == "fused" and importlib.util.find_spec("triton") is None:
            raise ConfigError(
                "matching.kernel fused needs Triton, which PyTorch for CUDA brings along on Linux. "
                "Install that, or set matching.kernel to plain"
            )
        self.config = sdtps
        self.matching = matching
        self.class_token = class_token
        self.sparse_selection: TokenSelection | None = None
        self.dense_selection: TokenSelection | None = None
        self.aggregation: TokenAggregation | None = None
        if sdtps.enabled:
            guides = 1 + (matching.axis.together and matching.sparse_guide)
            self.sparse_selection = TokenSelection(sdtps, width, guides)
            if matching.axis.dense:
                self.dense_selection = TokenSelection(sdtps, width, guides)
                if sdtps.relevance_share == "all":
                    self.dense_selection.relevances = self.sparse_selection.relevances
            self.aggregation = build_aggregation(sdtps, width, patches)
        self.tokens_made = patches if self.aggregation is None else self.aggregation.outputs + 1
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
        sparse = Text(words, lengths)
        dense = None
        if dense_words is not None and dense_lengths is not None:
            dense = Text(dense_words, dense_lengths)
        with no_autocast(images):
            parts = self._divided(images, sparse)
            return Matches.joined([self._score(part, sparse, dense) for part in parts])

    @property
    def scores_apart(self) -> bool:
        """Whether the similarity of a pair is the sum of the two that `apart` gives.

        Not where each pair draws noise of its own.
        """
        decision = self.config.axes.decision
        draws = decision.draws_noise and decision.acts(self.config, self.training)
        return self.dense_selection is not None and not self.matching.axis.together and not draws

    def apart(
        self,
        images: Tensor,
        words: Tensor,
        lengths: Tensor,
        dense_words: Tensor,
        dense_lengths: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """(B, T) of captions alone and (B, D) of dense texts alone; arguments as those of `forward`.

        Captions that share a dense text need it scored once.
        """
        assert self.sparse_selection is not None and self.dense_selection is not None
        sparse, dense = Text(words, lengths), Text(dense_words, dense_lengths)
        with no_autocast(images):
            guides = [sparse.mean] if self.matching.sparse_guide else []
            branches = [
                (self.sparse_selection, sparse, guides),
                (self.dense_selection, dense, [dense.mean]),
            ]
            scored = [
                [self._score_alone(selection, part, text, by) for selection, text, by in branches]
                for part in self._divided(images, sparse)
            ]
        first, second = (Matches.joined(list(parts)).similarity for parts in zip(*scored, strict=True))
        return first, second

    def _divided(self, images: Tensor, text: Text) -> Iterator[Images]:
        """The images, so many at once as the device takes; all where a backward pass keeps all."""
        images = full_precision(images)
        size = len(images)
        if not torch.is_grad_enabled():
            pairs = SCORES_ON_CPU // images.shape[1]
            if images.device.type != "cpu":
                pairs = SELECTED_AT_ONCE * self._pairs(images, text.words)
            size = max(1, pairs // len(text.words))
        return (Images(self.config, part, class_token=self.class_token) for part in images.split(size))

    def _is_fused(self, device: torch.device) -> bool:
        """Whether one kernel scores the aggregated tokens; not where a GPU lacks shared memory."""
        if self.matching.kernel != "fused" or self.aggregation is None:
            return False
        from sdtps import fused  # needs Triton

        return fused.fits(self.aggregation.outputs, device)

    def _pairs(self, images: Tensor, words: Tensor) -> int:
        """How many pairs to score at once."""
        if self.matching.chunk is not None:
            return self.matching.chunk
        if words.device.type == "cpu":
            return CAPTIONS_ON_CPU * len(images)
        if torch.is_grad_enabled():
            return PAIRS_IN_TRAINING
        patches, width = images.shape[1] - self.class_token, images.shape[2]
        return pairs_in(BYTES_ON_GPU, patches, self.tokens_made, width, words.shape[1])

    def _score(self, images: Images, sparse: Text, dense: Text | None) -> Matches:
        if self.sparse_selection is None:
            return Matches(self._align(images, [], sparse), None, None)
        captions = len(sparse.words)
        guides = [sparse.mean] if self.matching.sparse_guide else []
        if dense is None:
            return self._score_alone(self.sparse_selection, images, sparse, guides)
        if self.dense_selection is None:
            raise ValueError(f"form {self.matching.form} takes no dense text")
        if not self.matching.axis.together:
            first = self._score_alone(self.sparse_selection, images, sparse, guides)
            second = self._score_alone(self.dense_selection, images, dense, [dense.mean])
            similarity = first.similarity + second.similarity
            return Matches(similarity, first.sparse_decision, second.sparse_decision)
        guides = [*guides, dense.mean]
        both = [
            self._choose(self.sparse_selection, images, captions, guides),
            self._choose(self.dense_selection, images, captions, guides[::-1]),
        ]
        # One weight network merges the first branch only; without any, the tokens of both are aligned.
        networks = len(self.config.axes.aggregation.networks)
        similarity = self._align(images, both[: networks or None], sparse)
        return Matches(similarity, both[0].choice.decision, both[1].choice.decision)

    def _score_alone(
        self, selection: TokenSelection, images: Images, text: Text, guides: list[Tensor]
    ) -> Matches:
        """One branch decides, and its tokens meet the words that it aligns."""
        chosen = self._choose(selection, images, len(text.words), guides)
        return Matches(self._align(images, [chosen], text), chosen.choice.decision, None)

    def _choose(
        self, selection: TokenSelection, images: Images, captions: int, guides: list[Tensor]
    ) -> PairChoice:
        """Score and decide for all pairs at once.

        Noise is drawn here: in training it must depend on neither the chunks nor the processes.
        """
        config, axes = self.config, self.config.axes
        with no_gradient(axes.no_grad.selection):
            with no_gradient(axes.no_grad.own):
                own = images.own_relevance(selection)
            with no_gradient(axes.no_grad.guides):
                guided = [images.relevance(selection, g, place) for place, g in enumerate(guides, 1)]
            # Without a guide all captions share the score.
            score = selection.score(own, guided, images.predicted(selection))
            score = score.expand(-1, captions, -1)
            uniform = None
            if axes.decision.draws_noise and axes.decision.acts(config, self.training):
                uniform = torch.rand(score.shape, dtype=score.dtype, device=score.device)
                if self.training:
                    uniform = distributed.from_first_process(uniform)
            choice = selection.choose(score, uniform)
            is_kept = torch.zeros_like(score, dtype=torch.bool).scatter(-1, choice.kept, True)
            bias = torch.zeros_like(score)
            if axes.mask.bias is not None:
                read = choice.decision
                if axes.mask.reads_score:
                    read = score.masked_fill(~is_kept, -torch.inf)
                bias = axes.mask.bias(read)
            return PairChoice(choice, is_kept, bias.masked_fill(~is_kept, -torch.inf))

    def _align(self, images: Images, branches: list[PairChoice], text: Text) -> Tensor:
        """Similarity (B, T) of the visual tokens of each pair with the words, chunk by chunk."""
        visual = VisualTokens(
            self.config,
            images,
            branches,
            selection=self.sparse_selection,
            aggregation=self.aggregation,
            alignment=self.alignment,
            training=self.training,
            fused=self._is_fused(images.tokens.device),
        )
        size = max(1, self._pairs(images.tokens, text.words) // len(images.tokens))
        chunks = text.chunks(size)
        parts = [visual.similarity(*chunk) for chunk in chunks]
        similarity = torch.cat(parts, dim=1)
        if isinstance(chunks[0].captions, slice):  # in order
            return similarity
        place = torch.cat([cast(Tensor, chunk.captions) for chunk in chunks]).argsort()
        return similarity[:, place]
