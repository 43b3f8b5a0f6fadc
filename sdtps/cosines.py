"""Cosines between mixtures of patches and words, for all pairs of images and captions at once.

A mixture is a weighted sum of an image's patches, v = q X. Its cosine with a word w needs v only up
to its length, and can be had in two orders:

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
from torch import Tensor
from torch.autograd.function import once_differentiable

# |v|^2 below this counts as this: torch's normalize divides by at least 1e-12.
MIN_SQUARE = 1e-24


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
        inverse = torch.linalg.vecdot(through_gram, weights).clamp_min(MIN_SQUARE).rsqrt()
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
        inverse = torch.linalg.vecdot(mixtures, mixtures).clamp_min(MIN_SQUARE).rsqrt()
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
