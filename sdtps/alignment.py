"""Patch-word alignment: how visual tokens and the words of a caption make one similarity.

With cosines A[i, j] between token i and word j, the row part is the best word of each token, the column
part the best token of each word (equation 5 of the paper; the released code keeps the means only, of
leaky-rectified cosines): `Alignment`.

`mixture_cosines` gives the cosines of tokens that are weighted sums of patches, v = q X, for all pairs
of images and captions at once. A cosine with a word w needs v only up to its length, and can be had in
two orders:

    words first:    q (X w) / sqrt(q G q),   G = X X^T     the mixture itself is never formed
    mixture first:  (q X) w / |q X|

With N patches, R mixtures, L words and C channels the first costs N L (C + R) + R N N multiplications
a pair, the second R C (N + L), and their gradients as much again; the cheaper is taken. G is computed
once for an image, whatever the number of captions. Gradients are written out, because autograd would
keep and traverse several copies of the mixtures' weights (R x N a pair). Only K of the N patches have
weight, but gathering them takes a CPU as long as multiplying by the zeros (2.6 against 2.3 ms for 64
pairs of 196 patches).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from sdtps.config.axes import ALIGNMENTS

MIN_LENGTH = 1e-12  # a shorter vector counts as this long, as in torch's normalize


def word_mask(lengths: Tensor, width: int) -> Tensor:
    """Boolean (T, width): True at the words of a caption, False at its padding."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


class Alignment(nn.Module):
    """Mean and Top-K pooling of the best matches, both directions added (HRPA).

    One MLP serves both directions; fewer than `top_k` matches are padded with zeros (paper-version
    module).

    Args:
        name: a value of the alignment axis.
    """

    def __init__(self, name: str = "mean_topk", top_k: int = 5) -> None:
        super().__init__()
        self.axis = next(value for value in ALIGNMENTS if value.name == name)
        self.top_k = top_k
        self.relevance_mlp: nn.Sequential | None = None
        if self.axis.top_k:
            self.relevance_mlp = nn.Sequential(
                nn.Linear(top_k, 2 * top_k), nn.GELU(), nn.Linear(2 * top_k, 1)
            )

    def forward(self, tokens: Tensor, words: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Similarity (B) of normalised tokens (B, V, C) and words (B, L, C) of `lengths` (B)."""
        cosines = tokens @ words.transpose(1, 2)
        if lengths is None:
            return self.pool(cosines.amax(2), cosines.amax(1))
        present = word_mask(lengths, words.shape[1])
        best_word = cosines.masked_fill(~present[:, None], -torch.inf).amax(2)
        return self.pool(best_word, cosines.amax(1), words=present)

    def pool(
        self,
        best_word: Tensor,
        best_token: Tensor,
        *,
        words: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """Similarity (...) from each token's best word (..., V) and each word's best token (..., L).

        `words` (..., L) and `tokens` (..., V) say which of them exist; None = all. The leak acts here:
        a monotone function may as well be applied after the maximum.
        """
        return self._side(best_word, tokens) + self._side(best_token, words)

    def _side(self, best: Tensor, present: Tensor | None) -> Tensor:
        if present is not None:
            present = present.expand_as(best)
        total = best.new_zeros(best.shape[:-1])
        if self.axis.mean:
            value = F.leaky_relu(best, self.axis.leak)
            if present is None:
                total = value.mean(-1)
            else:
                total = value.masked_fill(~present, 0.0).sum(-1) / present.sum(-1)
        if self.relevance_mlp is not None:
            total = total + self.relevance_mlp(self._top(best, present)).squeeze(-1)
        return total

    def _top(self, best: Tensor, present: Tensor | None) -> Tensor:
        """The `top_k` largest of those present (..., top_k), zero where there are fewer."""
        if present is not None:
            best = best.masked_fill(~present, -torch.inf)
        values = best.topk(min(self.top_k, best.shape[-1]), dim=-1).values
        values = values.masked_fill(torch.isneginf(values), 0.0)
        return F.pad(values, (0, self.top_k - values.shape[-1]))


def normalised(vectors: Tensor) -> Tensor:
    """Vectors (..., C) divided by their lengths; `torch.nn.functional.normalize` in fewer passes."""
    result: Tensor = _Normalised.apply(vectors)
    return result


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        inverse = length.clamp_min(MIN_LENGTH).reciprocal()
        directions = vectors * inverse
        ctx.save_for_backward(directions, inverse)
        return directions

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        directions, inverse = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, directions).unsqueeze(-1)
        return torch.addcmul(grad, directions, along, value=-1).mul_(inverse)


def mixture_cosines(
    weights: Tensor,
    patches: Tensor,
    gram: Callable[[], Tensor],
    words: Tensor,
    padding: Tensor | None = None,
) -> Tensor:
    """Cosine of every mixture with every word.

    Args:
        weights: (B, T, R, N) what each of the R mixtures of image b for caption t takes of each patch,
            up to a positive factor.
        patches: (B, N, C).
        gram: gives (B, N, N) = patches patches^T where it is needed, to be kept for the next call. A
            constant: its gradient is part of the patches' own.
        words: (T, L, C), normalised.
        padding: (T, L), which of them are padding; their cosines are of no use. None = none.

    Returns:
        (B, T, L, R).
    """
    _, t, mixtures, n = weights.shape
    width = words.shape[2]
    present = None
    if padding is not None and words.device.type == "cpu":  # a GPU's host would wait for the number
        present = (~padding).flatten().nonzero().squeeze(1)
    length = words.shape[1]
    real = length if present is None else len(present) / t
    words_first = n * real * width + n * length * mixtures
    mixture_first = mixtures * width * (n + length)
    if torch.is_grad_enabled() and (weights.requires_grad or words.requires_grad):
        words_first += n * real * width * words.requires_grad + 2 * n * length * mixtures
        mixture_first += mixtures * width * (length * (1 + words.requires_grad) + n)
    if patches.requires_grad and torch.is_grad_enabled():
        words_first += n * real * width + mixtures * n * n
        mixture_first += mixtures * width * n * weights.requires_grad
    words_first += mixtures * n * n
    if words_first <= mixture_first:
        result: Tensor = _WordsFirst.apply(weights, patches, gram(), words, present)
    else:
        result = _MixtureFirst.apply(weights, patches, words)
    return result


def _blocks(weights: Tensor) -> list[slice]:
    """Images to multiply at once: on a CPU one, whose mixtures stay in the cache; on a GPU all."""
    images = len(weights)
    step = 1 if weights.device.type == "cpu" else images
    return [slice(start, start + step) for start in range(0, images, step)]


class _WordsFirst(torch.autograd.Function):
    """`present`: the words (T x L) that are no padding; only they are multiplied. None = all."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, patches: Tensor, gram: Tensor, words: Tensor, present: Tensor | None
    ) -> Tensor:
        b, t, r, n = weights.shape
        length = words.shape[1]
        rows = words.reshape(t * length, -1)
        if present is not None:
            rows = rows[present]
        shape = b, t * length, n
        products = weights.new_empty(shape) if present is None else weights.new_zeros(shape)
        through_gram = weights.new_empty(b, t * r, n)
        cosines = weights.new_empty(b, t, length, r)
        for block in _blocks(weights):
            flat = weights[block].reshape(-1, t * r, n)
            size = len(flat)
            made = torch.bmm(rows.expand(size, -1, -1), patches[block].transpose(1, 2))
            if present is None:
                products[block] = made
            else:
                products[block].index_copy_(1, present, made)
            torch.bmm(flat, gram[block], out=through_gram[block])
            torch.bmm(
                products[block].view(size * t, length, n),
                flat.view(size * t, r, n).transpose(1, 2),
                out=cosines[block].view(size * t, length, r),
            )
        through_gram = through_gram.view(b, t, r, n)
        inverse = torch.linalg.vecdot(through_gram, weights).clamp_min(MIN_LENGTH**2).rsqrt()
        cosines *= inverse[:, :, None]
        ctx.save_for_backward(weights, patches, rows, present, products, through_gram, inverse, cosines)
        ctx.words_shape = words.shape
        return cosines

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, patches, rows, present, products, through_gram, inverse, cosines = ctx.saved_tensors
        b, t, r, n = weights.shape
        length = cosines.shape[2]
        needs_weights, needs_patches, _, needs_words, _ = ctx.needs_input_grad
        # d cosine / d |v|^2, summed over the words: -(grad . cosine) / |v|^2 / 2.
        shrink = (torch.linalg.vecdot(grad, cosines, dim=2) * inverse.square()).unsqueeze(-1)
        grad_dot = grad * inverse[:, :, None]
        grad_weights = grad_patches = grad_words = None
        if needs_weights:
            grad_weights = through_gram * shrink.neg()
            grad_weights.view(b * t, r, n).baddbmm_(
                grad_dot.view(b * t, length, r).transpose(1, 2), products.view(b * t, length, n)
            )
        if needs_words:
            grad_words = torch.zeros_like(rows)
        if needs_patches:
            grad_patches = torch.empty_like(patches)
        for block in _blocks(weights) if needs_patches or needs_words else ():
            flat, own = weights[block].reshape(-1, r, n), patches[block]
            size = len(own)
            grad_products = torch.bmm(grad_dot[block].flatten(0, 1), flat)
            grad_products = grad_products.view(size, t * length, n)
            if present is not None:
                grad_products = grad_products.index_select(1, present)
            if grad_words is not None:
                columns = grad_products.transpose(0, 1).reshape(-1, size * n)
                grad_words.addmm_(columns, own.reshape(size * n, -1))
            if grad_patches is not None:
                toward = torch.matmul(grad_products.transpose(1, 2), rows)
                shrunk = (weights[block] * shrink[block]).view(size, t * r, n)
                grad_gram = torch.bmm(shrunk.transpose(1, 2), flat.view(size, t * r, n))
                grad_patches[block] = toward.baddbmm_(grad_gram, own, alpha=-1)
        if grad_words is not None:
            if present is not None:
                grad_words = rows.new_zeros(t * length, rows.shape[1]).index_copy_(
                    0, present, grad_words
                )
            grad_words = grad_words.view(ctx.words_shape)
        return grad_weights, grad_patches, None, grad_words, None


class _MixtureFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, patches: Tensor, words: Tensor) -> Tensor:
        b, t, r, n = weights.shape
        cosines = weights.new_empty(b, t, words.shape[1], r)
        mixtures, inverses = [], []
        for block in _blocks(weights):
            made = torch.bmm(weights[block].reshape(-1, t * r, n), patches[block])
            # By caption (t, images x r, C), to meet its words; of one image this is how they lie.
            made = made.view(-1, t, r, made.shape[-1]).transpose(0, 1).reshape(t, -1, made.shape[-1])
            inverse = torch.linalg.vector_norm(made, dim=-1).clamp_min(MIN_LENGTH).reciprocal()
            dots = torch.bmm(words, made.transpose(1, 2)).mul_(inverse[:, None])
            cosines[block] = dots.view(t, -1, dots.shape[-1] // r, r).permute(2, 0, 1, 3)
            mixtures.append(made)
            inverses.append(inverse)
        ctx.save_for_backward(weights, patches, words, cosines, *mixtures, *inverses)
        return cosines

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, patches, words, cosines, *made = ctx.saved_tensors
        _, t, r, n = weights.shape
        blocks = _blocks(weights)
        needs_weights, needs_patches, needs_words = ctx.needs_input_grad
        grad_weights = torch.empty_like(weights) if needs_weights else None
        grad_patches = torch.empty_like(patches) if needs_patches else None
        grad_words = torch.zeros_like(words) if needs_words else None
        shrinks = torch.linalg.vecdot(grad, cosines, dim=2)
        for block, mixtures, inverse in zip(
            blocks, made[: len(blocks)], made[len(blocks) :], strict=True
        ):
            own = patches[block]
            size = len(own)
            grad_dot = grad[block].permute(1, 2, 0, 3).reshape(t, -1, size * r) * inverse[:, None]
            if grad_words is not None:
                grad_words.baddbmm_(grad_dot, mixtures)
            if grad_weights is None and grad_patches is None:
                continue
            shrink = shrinks[block].transpose(0, 1).reshape(t, size * r) * inverse.square()
            toward = torch.bmm(grad_dot.transpose(1, 2), words)
            toward.addcmul_(mixtures, shrink.unsqueeze(-1), value=-1)
            toward = toward.view(t, size, r, -1).transpose(0, 1).reshape(size, t * r, -1)
            if grad_weights is not None:
                grad_weights[block] = torch.bmm(toward, own.transpose(1, 2)).view(size, t, r, n)
            if grad_patches is not None:
                grad_patches[block] = torch.bmm(
                    weights[block].reshape(size, t * r, n).transpose(1, 2), toward
                )
        return grad_weights, grad_patches, grad_words
