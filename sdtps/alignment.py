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
a pair, the second R C (N + L); the cheaper is taken. G is computed once for an image, whatever the
number of captions. Gradients are written out, because autograd would keep and traverse several copies
of the mixtures' weights (R x N a pair), which is what the time goes into.
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


def mixture_cosines(
    weights: Tensor, patches: Tensor, gram: Callable[[], Tensor], words: Tensor
) -> Tensor:
    """Cosine of every mixture with every word.

    Args:
        weights: (B, T, R, N) what each of the R mixtures of image b for caption t takes of each patch,
            up to a positive factor.
        patches: (B, N, C).
        gram: gives (B, N, N) = patches patches^T where it is needed, to be kept for the next call. A
            constant: its gradient is part of the patches' own.
        words: (T, L, C), normalised.

    Returns:
        (B, T, L, R).
    """
    _, _, mixtures, n = weights.shape
    length, width = words.shape[1:]
    words_first = n * length * (width + mixtures) + mixtures * n * n
    mixture_first = mixtures * width * (n + length)
    if words_first <= mixture_first:
        result: Tensor = _WordsFirst.apply(weights, patches, gram(), words)
    else:
        result = _MixtureFirst.apply(weights, patches, words)
    return result


class _WordsFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, patches: Tensor, gram: Tensor, words: Tensor) -> Tensor:
        b, t, r, n = weights.shape
        length = words.shape[1]
        flat = weights.reshape(b * t, r, n)
        rows = words.reshape(1, t * length, -1).expand(b, -1, -1)
        products = torch.bmm(rows, patches.transpose(1, 2)).view(b * t, length, n)
        through_gram = torch.bmm(flat.view(b, t * r, n), gram).view(b, t, r, n)
        inverse = torch.linalg.vecdot(through_gram, weights).clamp_min(MIN_LENGTH**2).rsqrt()
        cosines = torch.bmm(products, flat.transpose(1, 2)).view(b, t, length, r)
        cosines *= inverse[:, :, None]
        ctx.save_for_backward(weights, patches, words, products, through_gram, inverse, cosines)
        return cosines

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, patches, words, products, through_gram, inverse, cosines = ctx.saved_tensors
        b, t, r, n = weights.shape
        length, width = words.shape[1:]
        needs_weights, needs_patches, _, needs_words = ctx.needs_input_grad
        flat = weights.reshape(b * t, r, n)
        grad_dot = (grad * inverse[:, :, None]).view(b * t, length, r)
        # d cosine / d |v|^2, summed over the words: -(grad . cosine) / |v|^2 / 2.
        shrink = torch.linalg.vecdot(grad, cosines, dim=2) * inverse.square()
        grad_weights = grad_patches = grad_words = None
        if needs_weights:
            toward = through_gram * shrink.neg().unsqueeze(-1)
            grad_weights = torch.baddbmm(
                toward.view(b * t, r, n), grad_dot.transpose(1, 2), products
            ).view_as(weights)
        if needs_patches or needs_words:
            grad_products = torch.bmm(grad_dot, flat).view(b, t * length, n)
            if needs_words:
                columns = grad_products.transpose(0, 1).reshape(t * length, b * n)
                grad_words = torch.mm(columns, patches.reshape(b * n, width)).view_as(words)
            if needs_patches:
                grad_patches = torch.matmul(grad_products.transpose(1, 2), words.flatten(0, 1))
                shrunk = (weights * shrink.unsqueeze(-1)).view(b, t * r, n)
                grad_gram = torch.bmm(shrunk.transpose(1, 2), flat.view(b, t * r, n))
                grad_patches = torch.baddbmm(grad_patches, grad_gram, patches, alpha=-1)
        return grad_weights, grad_patches, None, grad_words


class _MixtureFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, patches: Tensor, words: Tensor) -> Tensor:
        b, t, r, n = weights.shape
        mixtures = torch.bmm(weights.reshape(b, t * r, n), patches).view(b, t, r, -1)
        mixtures = mixtures.transpose(0, 1).reshape(t, b * r, -1)  # by caption, to meet its words
        inverse = torch.linalg.vector_norm(mixtures, dim=-1).clamp_min(MIN_LENGTH).reciprocal()
        cosines = torch.bmm(words, mixtures.transpose(1, 2))
        cosines *= inverse[:, None]
        ctx.save_for_backward(weights, patches, words, mixtures, inverse, cosines)
        return cosines.view(t, -1, b, r).permute(2, 0, 1, 3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, patches, words, mixtures, inverse, cosines = ctx.saved_tensors
        b, t, r, n = weights.shape
        needs_weights, needs_patches, needs_words = ctx.needs_input_grad
        grad = grad.permute(1, 2, 0, 3).reshape(t, -1, b * r)
        grad_dot = grad * inverse[:, None]
        grad_weights = grad_patches = grad_words = None
        if needs_words:
            grad_words = torch.bmm(grad_dot, mixtures)
        if needs_weights or needs_patches:
            shrink = torch.linalg.vecdot(grad, cosines, dim=1) * inverse.square()
            grad_mixtures = torch.bmm(grad_dot.transpose(1, 2), words)
            grad_mixtures.addcmul_(mixtures, shrink.unsqueeze(-1), value=-1)
            grad_mixtures = grad_mixtures.view(t, b, r, -1).transpose(0, 1).reshape(b, t * r, -1)
            if needs_weights:
                grad_weights = torch.bmm(grad_mixtures, patches.transpose(1, 2)).view_as(weights)
            if needs_patches:
                grad_patches = torch.bmm(weights.reshape(b, t * r, n).transpose(1, 2), grad_mixtures)
        return grad_weights, grad_patches, grad_words
