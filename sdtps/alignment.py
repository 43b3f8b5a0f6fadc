"""Patch-word alignment: how visual tokens and the words of a caption make one similarity.

With cosines A[i, j] between token i and word j, the row part is the best word of each token, the column
part the best token of each word (equation 5 of the paper; the released code keeps the means only, of
leaky-rectified cosines): `Alignment`.

`best_matches` gives the largest cosines of tokens that are weighted sums of patches, v = q X, for all
pairs of images and captions at once. A cosine with a word w needs v only up to its length, and can be
had in two orders:

    words first:    q (X w) / sqrt(q G q),   G = X X^T     the mixture itself is never formed
    mixture first:  (q X) w / |q X|

With N patches, R mixtures, L words and C channels the first costs N L (C + R) + R N N multiplications
a pair, the second R C (N + L), and their gradients as much again; the cheaper is taken. G is computed
once for an image, whatever the number of captions.

Gradients are written out, so that a CPU can take a few images at a time: their weights (R x N a pair),
made when they are needed and made again in the backward pass, and their cosines stay in the cache. Only
K of the N patches have weight, but a CPU multiplies all captions' weights by an image's patches in one
product, which takes no longer than gathering the kept patches and a product for each pair
(docs/decisions/2026-11-29-less-arithmetic.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from sdtps.config.axes import find

MIN_LENGTH = 1e-12  # a shorter vector counts as this long, as in torch's normalize
FLOATS_ON_CPU = 2**20  # aligned at once
BELOW_ANY_COSINE = -2.0  # of padding; finite, because it is multiplied by gradients of zero


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
        self.axis = find("alignment", name)
        self.top_k = top_k
        self.relevance_mlp: nn.Sequential | None = None
        if self.axis.top_k:
            self.relevance_mlp = nn.Sequential(
                nn.Linear(top_k, 2 * top_k), nn.GELU(), nn.Linear(2 * top_k, 1)
            )

    def forward(self, tokens: Tensor, words: Tensor) -> Tensor:
        """Similarity (B) of normalised tokens (B, V, C) and words (B, L, C)."""
        cosines = tokens @ words.transpose(1, 2)
        return self.pool(cosines.amax(2), cosines.amax(1))

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


class Mixtures(NamedTuple):
    """Tokens that are weighted sums of patches, R for each of B images and T captions."""

    number: int  # R
    weights: Callable[..., Tensor]  # of the same images of each of `parts` -> (images, T, R, N)
    parts: Sequence[Tensor]  # (B, ...)


def best_matches(
    mixtures: Mixtures,
    patches: Tensor,
    gram: Callable[[], Tensor],
    words: Tensor,
    padding: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Largest cosines between the mixtures and the words of every pair.

    Args:
        mixtures: weights up to a positive factor.
        patches: (B, N, C).
        gram: gives (B, N, N) = patches patches^T where it is needed, to be kept for the next call. A
            constant: its gradient is part of the patches' own.
        words: (T, L, C), normalised.
        padding: (T, L), which of them are padding; None = none.

    Returns:
        of each mixture with the words that are no padding (B, T, R), of each word with the mixtures
        (B, T, L), of no use at padding. Equal cosines share the gradient, as in torch's amax.
    """
    graded = torch.is_grad_enabled()
    (b, n, width), (t, length, _) = patches.shape, words.shape
    if _words_first(n, mixtures.number, length, width):
        products: _WordsFirst | _MixtureFirst = _WordsFirst(words.detach(), gram())
        floats = mixtures.number * (2 * n + length) + length * n
    else:
        products = _MixtureFirst(words.detach())
        floats = mixtures.number * (n + width + length)
    together = max(1, FLOATS_ON_CPU // (t * floats)) if patches.device.type == "cpu" else b
    best: tuple[Tensor, Tensor] = _BestMatches.apply(
        mixtures.weights, products, padding, together, graded, patches, words, *mixtures.parts
    )
    return best


def _words_first(n: int, r: int, length: int, width: int) -> bool:
    """Whether the product with the words comes first."""
    small = 2 * r * length  # matrices of one pair are multiplied at half the speed
    return n * width * length + small * n + r * n * n <= r * n * width + small * width


class _BestMatches(torch.autograd.Function):
    """`best_matches` of so many images `together`. Cosines are (b, T, R, L)."""

    @staticmethod
    def forward(
        ctx: Any,
        weights: Callable[..., Tensor],
        products: _WordsFirst | _MixtureFirst,
        padding: Tensor | None,
        together: int,
        graded: bool,
        patches: Tensor,
        words: Tensor,
        *parts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        blocks = [slice(start, start + together) for start in range(0, len(patches), together)]
        best_word, best_token = [], []
        kept: list[Tensor] = []
        for block in blocks:
            mixed = weights(*(part[block] for part in parts)).contiguous()
            made = products.cosines(mixed, patches[block], block)
            cosines = made[0]
            if padding is not None:
                cosines.masked_fill_(padding[:, None], BELOW_ANY_COSINE)
            best_word.append(cosines.amax(3))
            best_token.append(cosines.amax(2))
            if graded:
                kept += made
            del mixed, cosines, made  # the next image's take their place in the cache
        result = torch.cat(best_word), torch.cat(best_token)
        if graded:
            ctx.save_for_backward(patches, *result, *parts, *kept)
            ctx.rest = weights, products, blocks, len(parts)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_word: Tensor, of_token: Tensor) -> tuple[Tensor | None, ...]:
        patches, best_word, best_token, *saved = ctx.saved_tensors
        weights, products, blocks, count = ctx.rest
        parts, kept = saved[:count], saved[count:]
        needs_patches, needs_words, *needs_parts = ctx.needs_input_grad[5:]
        grads = [
            torch.empty_like(part) if need else None
            for part, need in zip((patches, *parts), (needs_patches, *needs_parts), strict=True)
        ]
        grad_words = torch.zeros_like(products.words) if needs_words else None
        size = len(kept) // len(blocks)
        for place, block in enumerate(blocks):
            made = kept[place * size : (place + 1) * size]
            leaves = [
                part[block].detach().requires_grad_(need)
                for part, need in zip(parts, needs_parts, strict=True)
            ]
            with torch.enable_grad():
                mixed = weights(*leaves)
            grad = _shared(of_word[block], best_word[block], made[0], 3)
            grad += _shared(of_token[block], best_token[block], made[0], 2)
            flat = mixed.detach().contiguous()
            grad_patches = None if grads[0] is None else grads[0][block]
            grad_mixed = products.gradients(grad, made, flat, patches[block], grad_patches, grad_words)
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            found = iter(torch.autograd.grad(mixed, wanted, grad_mixed) if wanted else ())
            for whole in grads[1:]:
                if whole is not None:
                    whole[block] = next(found)
        return None, None, None, None, None, grads[0], grad_words, *grads[1:]


def _shared(grad: Tensor, best: Tensor, values: Tensor, dim: int) -> Tensor:
    """Gradient of a maximum over `dim`, shared by all that are equal to it."""
    chosen = values.eq(best.unsqueeze(dim)).to(values.dtype)
    return chosen.mul_((grad / chosen.sum(dim)).unsqueeze(dim))


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """left (b, T, I, J) x right (b, T, J, K) into `out`, as it lies in memory.

    A CPU multiplies matrices in any layout, image by image; a GPU all at once, of copies if need be.
    """
    if left.device.type != "cpu":
        if right.stride(1) == 0:  # the same for all T: not to be copied for each
            return out.copy_((left.flatten(1, 2) @ right[:, 0]).view(out.shape))
        return out.copy_(left @ right)
    for image in range(len(left)):
        if right.stride(1) == 0:  # one product for all T is a fifth faster than one for each
            product = left[image].flatten(0, 1) @ right[image, 0]
            out[image].copy_(product.view(out.shape[1:]))
        else:
            torch.bmm(left[image], right[image], out=out[image])
    return out


class _WordsFirst:
    """Products of words and patches, then of these and the mixtures' weights.

    Args:
        words: (T, L, C); gram: (B, N, N).
    """

    def __init__(self, words: Tensor, gram: Tensor) -> None:
        self.words = words
        self.gram = gram

    def cosines(self, weights: Tensor, patches: Tensor, block: slice) -> tuple[Tensor, ...]:
        """Cosines (b, T, R, L), and what their gradients need."""
        b, t, r, n = weights.shape
        flat = self.words.flatten(0, 1)
        if patches.device.type == "cpu":
            products = (patches.reshape(b * n, -1) @ flat.t()).view(b, n, t, -1).transpose(1, 2)
        else:
            products = (flat @ patches.transpose(1, 2)).view(b, t, -1, n).transpose(2, 3)
        through_gram = torch.bmm(weights.view(b, t * r, n), self.gram[block]).view(b, t, r, n)
        inverse = torch.linalg.vecdot(through_gram, weights).clamp_min(MIN_LENGTH**2).rsqrt()
        cosines = _multiply(weights, products, weights.new_empty(b, t, r, products.shape[3]))
        return cosines.mul_(inverse.unsqueeze(3)), products, through_gram, inverse

    def gradients(
        self,
        grad: Tensor,
        made: Sequence[Tensor],
        weights: Tensor,
        patches: Tensor,
        grad_patches: Tensor | None,
        grad_words: Tensor | None,
    ) -> Tensor:
        """Gradient of the weights; that of the patches is written, that of the words is added to.

        Args:
            made: what `cosines` gave.
        """
        cosines, products, through_gram, inverse = made
        b, t, r, n = weights.shape
        # d cosine / d |v|^2, summed over the words: -(grad . cosine) / |v|^2 / 2.
        shrink = (torch.linalg.vecdot(grad, cosines) * inverse.square()).unsqueeze(3)
        grad_dot = grad.mul_(inverse.unsqueeze(3))
        grad_weights = _multiply(grad_dot, products.transpose(2, 3), torch.empty_like(weights))
        grad_weights.addcmul_(through_gram, shrink, value=-1)
        if grad_patches is None and grad_words is None:
            return grad_weights
        length = grad.shape[3]
        grad_products = weights.new_empty(b, n, t, length)
        _multiply(weights.transpose(2, 3), grad_dot, grad_products.transpose(1, 2))
        rows = grad_products.view(b * n, t * length)
        if grad_words is not None:
            grad_words.view(t * length, -1).addmm_(rows.t(), patches.reshape(b * n, -1))
        if grad_patches is not None:
            flat = weights.view(b, t * r, n)
            grad_gram = torch.bmm((weights * shrink).view(b, t * r, n).transpose(1, 2), flat)
            toward = (rows @ self.words.flatten(0, 1)).view(b, n, -1)
            torch.baddbmm(toward, grad_gram, patches, alpha=-1, out=grad_patches)
        return grad_weights


class _MixtureFirst:
    """The mixtures, then their products with the words (T, L, C)."""

    def __init__(self, words: Tensor) -> None:
        self.words = words
        self.columns = words.transpose(1, 2).contiguous()  # a CPU multiplies by these faster

    def cosines(self, weights: Tensor, patches: Tensor, block: slice) -> tuple[Tensor, ...]:
        """Cosines (b, T, R, L), and what their gradients need; by caption in memory."""
        b, t, r, _ = weights.shape
        mixtures = weights.new_empty(t, b, r, patches.shape[2])
        _multiply(weights, self._of_all(patches, t), mixtures.transpose(0, 1))
        inverse = torch.linalg.vector_norm(mixtures, dim=3).clamp_min(MIN_LENGTH).reciprocal()
        cosines = torch.bmm(mixtures.view(t, b * r, -1), self.columns).view(t, b, r, -1)
        return cosines.mul_(inverse.unsqueeze(3)).transpose(0, 1), mixtures, inverse

    def gradients(
        self,
        grad: Tensor,
        made: Sequence[Tensor],
        weights: Tensor,
        patches: Tensor,
        grad_patches: Tensor | None,
        grad_words: Tensor | None,
    ) -> Tensor:
        """As `_WordsFirst.gradients`."""
        cosines, mixtures, inverse = made
        b, t, r, n = weights.shape
        grad, cosines = grad.transpose(0, 1).contiguous(), cosines.transpose(0, 1)
        shrink = torch.linalg.vecdot(grad, cosines) * inverse.square()
        grad_dot = grad.mul_(inverse.unsqueeze(3)).view(t, b * r, -1)
        if grad_words is not None:
            grad_words.baddbmm_(grad_dot.transpose(1, 2), mixtures.view(t, b * r, -1))
        toward = torch.bmm(grad_dot, self.words).view(t, b, r, -1)
        toward = toward.addcmul_(mixtures, shrink.unsqueeze(3), value=-1).transpose(0, 1)
        if grad_patches is not None:
            flat = weights.view(b, t * r, n).transpose(1, 2)
            torch.bmm(flat, toward.reshape(b, t * r, -1), out=grad_patches)
        columns = self._of_all(patches, t).transpose(2, 3)
        return _multiply(toward, columns, torch.empty_like(weights))

    @staticmethod
    def _of_all(patches: Tensor, captions: int) -> Tensor:
        """Patches (b, T, N, C), the same for all captions."""
        return patches.unsqueeze(1).expand(-1, captions, -1, -1)
