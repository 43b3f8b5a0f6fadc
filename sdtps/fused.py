"""Best matches of aggregated tokens and words in one Triton kernel: no mixture is written to memory.

Of a pair (image b, caption t) with kept patches x_k, weights q and normalised words w:

    v_a = sum over k of q_ak x_k           cos_al = v_a w_l / |v_a|
    best_word_a = max over l of cos_al     best_token_l = max over a of cos_al

`sdtps.alignment.best_matches` gives the same (`matching.kernel: plain`); it multiplies
all N patches and writes the cosines, or the mixtures and the cosines, of all pairs.

One program scores one pair. It makes a block of channels of all its mixtures, multiplies it with the
words' and adds up squared lengths and products, A x L of them in registers; only the maxima and their
places are written. The backward pass makes the blocks of mixtures again, once for each gradient that
is needed. Each program owns what it writes and adds up in a fixed order: there are no atomic additions,
and a repeated call gives the same bits.

Sums are in float32. Products are too, or in TF32 where torch.backends.cuda.matmul.allow_tf32 is set.

This module needs Triton, and a GPU or Triton's interpreter (TRITON_INTERPRET=1 before the import).
No GPU has run it yet; block sizes were chosen so that its products in TF32 fit the registers
(docs/decisions/2026-11-28-fused-cross-net.md).
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from sdtps.alignment import MIN_LENGTH
from sdtps.system.errors import ConfigError

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # when the kernels below were defined
SMALLEST_BLOCK = 16  # of a product on a GPU
CHANNELS, KEPT = 32, 32  # of a block of mixtures: channels made, patches summed at once
PRODUCTS = 4096  # products of tokens and words, or gradients of weights or patches, in registers
WARPS = 8
# Shared memory that the backward pass takes: bytes for each token's block, and at least. As compiled
# for sm_80, 86, 90 and 120; a test compares.
SHARED_BYTES, LEAST_SHARED_BYTES = 640, 52 * 1024


def best_matches(
    weights: Tensor,
    kept: Tensor,
    patches: Tensor,
    words: Tensor,
    padding: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Largest cosine of each aggregated token with a word, and of each word with an aggregated token.

    Args:
        weights: (B, T, A, K) what each of A tokens of image b for caption t takes of each kept patch,
            up to a positive factor.
        kept: (B, T, K) int64, the kept patches; no patch twice in a pair.
        patches: (B, N, C).
        words: (T, L, C), normalised.
        padding: (T, L) bool, which of them are padding: no token's best word. None = none.

    Returns:
        best_word (B, T, A) and best_token (B, T, L), of no use at padding. Of equal maxima the first
        receives the gradient; torch's amax divides it among them. NaN counts as the largest.

    Raises:
        ConfigError: the tensors are not on a GPU, or not float32.
    """
    if weights.device.type != "cuda" and not INTERPRETED:
        raise ConfigError(
            f"matching.kernel fused needs a GPU, but the tensors are on {weights.device}. "
            "Set matching.kernel to plain"
        )
    found = {weights.dtype, patches.dtype, words.dtype}
    if found != {torch.float32}:
        names = ", ".join(sorted(str(dtype) for dtype in found))
        raise ConfigError(
            f"matching.kernel fused takes float32 tensors, not {names}. Set matching.kernel to plain"
        )
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    best: tuple[Tensor, Tensor] = _BestMatches.apply(weights, kept, patches, words, padding, precision)
    return best


def shared_bytes(tokens: int) -> int:
    """Shared memory that the kernels need at most for so many aggregated tokens."""
    return max(LEAST_SHARED_BYTES, SHARED_BYTES * _block(tokens, 1 << 30))


def fits(tokens: int, device: torch.device) -> bool:
    """Whether a GPU has the shared memory for so many aggregated tokens."""
    if device.type != "cuda":
        return True
    gpu: Any = torch.cuda.get_device_properties(device)
    return bool(shared_bytes(tokens) <= gpu.shared_memory_per_block_optin)


def _blocks(a: int, k: int, length: int, width: int) -> dict[str, int]:
    """The blocks of the kernels for A tokens of K patches, L words and C channels."""
    tokens = _block(a, 1 << 30)
    return {
        "TOKENS": tokens,
        "KEPT": _block(k, KEPT),
        "WORDS": _block(length, max(SMALLEST_BLOCK, PRODUCTS // tokens)),
        "CHANNELS": _block(width, CHANNELS),
    }


def _block(size: int, most: int) -> int:
    """The power of two that holds `size`, between `SMALLEST_BLOCK` and `most`."""
    return min(most, max(SMALLEST_BLOCK, triton.next_power_of_2(size)))


class _BestMatches(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weights: Tensor,
        kept: Tensor,
        patches: Tensor,
        words: Tensor,
        padding: Tensor | None,
        precision: str,
    ) -> tuple[Tensor, Tensor]:
        weights, kept, patches, words = (x.contiguous() for x in (weights, kept, patches, words))
        b, t, a, k = weights.shape
        length, width = words.shape[1:]
        best_word, inverse = weights.new_empty(b, t, a), weights.new_empty(b, t, a)
        best_token = weights.new_empty(b, t, length)
        its_word = torch.empty_like(best_word, dtype=torch.int32)
        its_token = torch.empty_like(best_token, dtype=torch.int32)
        sizes = t, a, k, patches.shape[1], length, width
        blocks = {**_blocks(a, k, length, width), "PRECISION": precision, "num_warps": WARPS}
        is_padding = kept if padding is None else padding.to(torch.int8).contiguous()
        given = weights, kept, patches, words
        found = best_word, its_word, best_token, its_token, inverse
        least = {"SHORTEST": MIN_LENGTH**2, "PADDED": padding is not None}
        with torch.cuda.device_of(weights):  # where Triton starts its programs
            _score[(b * t,)](*given, is_padding, *found, *sizes, **least, **blocks)
        ctx.save_for_backward(*given, *found)
        ctx.sizes, ctx.blocks = sizes, blocks
        return best_word, best_token

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_word: Tensor, grad_token: Tensor) -> tuple[Tensor | None, ...]:
        weights, kept, patches, words, *matches = ctx.saved_tensors
        b, n, width = patches.shape
        t, _, k, _, length, _ = ctx.sizes
        given = weights, kept, patches, words, *matches, grad_word.contiguous(), grad_token.contiguous()
        tokens, channels = ctx.blocks["TOKENS"], ctx.blocks["CHANNELS"]
        grad_weights = grad_patches = grad_words = None
        if ctx.needs_input_grad[0]:
            grad_weights = torch.empty_like(weights)
            columns = _block(k, max(SMALLEST_BLOCK, PRODUCTS // tokens))
            _grad_weights[b * t, triton.cdiv(k, columns)](
                *given, grad_weights, *ctx.sizes, COLUMNS=columns, **ctx.blocks
            )
        if ctx.needs_input_grad[2]:
            grad_patches = torch.empty_like(patches)
            # Where a pair has each patch among its kept ones; -1 = it does not.
            order = torch.arange(k, dtype=torch.int32, device=kept.device).expand_as(kept)
            place = order.new_full((b, t, n), -1).scatter_(2, kept, order)
            rows = _block(n, max(SMALLEST_BLOCK, PRODUCTS // channels))
            _grad_patches[b, triton.cdiv(width, channels), triton.cdiv(n, rows)](
                *given, place, grad_patches, *ctx.sizes, ROWS=rows, **ctx.blocks
            )
        if ctx.needs_input_grad[3]:
            grad_words = torch.empty_like(words)
            grid = t, triton.cdiv(width, channels), triton.cdiv(length, ctx.blocks["WORDS"])
            _grad_words[grid](*given, grad_words, b, *ctx.sizes, **ctx.blocks)
        return grad_weights, None, grad_patches, grad_words, None, None


# The kernels. Pointers to one pair's part are moved there first; indices beyond a size read as 0.


@triton.jit
def _mixtures(
    weights, kept, patches, token, channel, a, k, width, KEPT: tl.constexpr, PRECISION: tl.constexpr
):
    """Channels of all mixtures of one pair (TOKENS, CHANNELS)."""
    made = tl.zeros((token.shape[0], channel.shape[0]), tl.float32)
    for start in range(0, k, KEPT):
        place = start + tl.arange(0, KEPT)
        is_kept = place < k
        share = tl.load(
            weights + token[:, None] * k + place[None, :],
            mask=(token < a)[:, None] & is_kept[None, :],
            other=0.0,
        )
        patch = tl.load(kept + place, mask=is_kept, other=0)
        own = tl.load(
            patches + patch[:, None] * width + channel[None, :],
            mask=is_kept[:, None] & (channel < width)[None, :],
            other=0.0,
        )
        made = tl.dot(share, own, acc=made, input_precision=PRECISION)
    return made


@triton.jit
def _score(
    weights, kept, patches, words, padding, best_word, its_word, best_token, its_token, inverse,
    t, a, k, n, length, width,
    SHORTEST: tl.constexpr, PADDED: tl.constexpr, TOKENS: tl.constexpr, KEPT: tl.constexpr,
    WORDS: tl.constexpr, CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program for each pair."""
    pair = tl.program_id(0).to(tl.int64)
    image, caption = pair // t, pair % t
    weights += pair * a * k
    kept += pair * k
    patches += image * n * width
    words += caption * length * width
    token = tl.arange(0, TOKENS)
    best = tl.full((TOKENS,), float("-inf"), tl.float32)
    at = tl.zeros((TOKENS,), tl.int32)
    scale = tl.zeros((TOKENS,), tl.float32)
    for first in range(0, length, WORDS):
        word = first + tl.arange(0, WORDS)
        products = tl.zeros((TOKENS, WORDS), tl.float32)
        square = tl.zeros((TOKENS,), tl.float32)
        for start in range(0, width, CHANNELS):
            channel = start + tl.arange(0, CHANNELS)
            made = _mixtures(weights, kept, patches, token, channel, a, k, width, KEPT, PRECISION)
            direction = tl.load(
                words + word[None, :] * width + channel[:, None],
                mask=(word < length)[None, :] & (channel < width)[:, None],
                other=0.0,
            )
            products = tl.dot(made, direction, acc=products, input_precision=PRECISION)
            square += tl.sum(made * made, 1)
        scale = 1.0 / tl.sqrt(tl.maximum(square, SHORTEST))
        cosine = products * scale[:, None]
        cosine = tl.where(cosine == cosine, cosine, float("inf"))  # a maximum would pass over NaN
        of_tokens = tl.where((token < a)[:, None], cosine, float("-inf"))
        value, index = tl.max(of_tokens, 0, return_indices=True)
        value = tl.where(value == float("inf"), float("nan"), value)
        tl.store(best_token + pair * length + word, value, mask=word < length)
        tl.store(its_token + pair * length + word, index, mask=word < length)
        counts = word < length
        if PADDED:
            counts = counts & (tl.load(padding + caption * length + word, mask=counts, other=1) == 0)
        of_words = tl.where(counts[None, :], cosine, float("-inf"))
        value, index = tl.max(of_words, 1, return_indices=True)
        at = tl.where(value > best, first + index, at)
        best = tl.maximum(best, value)
    best = tl.where(best == float("inf"), float("nan"), best)
    tl.store(best_word + pair * a + token, best, mask=token < a)
    tl.store(its_word + pair * a + token, at, mask=token < a)
    tl.store(inverse + pair * a + token, scale, mask=token < a)


@triton.jit
def _cosine_gradient(
    pair, token, word, best_word, its_word, best_token, its_token, grad_word, grad_token, a, length
):
    """Gradient of the cosines (TOKENS, WORDS), which only maxima have, and its product with them."""
    of_token, of_word = pair * a + token, pair * length + word
    is_token, is_word = token < a, word < length
    chosen = tl.load(its_word + of_token, mask=is_token, other=-1)[:, None] == word[None, :]
    grad = tl.load(grad_word + of_token, mask=is_token, other=0.0)
    along = grad * tl.load(best_word + of_token, mask=is_token, other=0.0)
    total = tl.where(chosen, grad[:, None], 0.0)
    shrink = tl.where(chosen, along[:, None], 0.0)
    chosen = tl.load(its_token + of_word, mask=is_word, other=-1)[None, :] == token[:, None]
    grad = tl.load(grad_token + of_word, mask=is_word, other=0.0)
    along = grad * tl.load(best_token + of_word, mask=is_word, other=0.0)
    total += tl.where(chosen, grad[None, :], 0.0)
    shrink += tl.where(chosen, along[None, :], 0.0)
    return total, shrink


@triton.jit
def _mixture_gradient(
    pair, made, token, channel, words,
    best_word, its_word, best_token, its_token, inverse, grad_word, grad_token, a, length, width,
    WORDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of channels of the mixtures (TOKENS, CHANNELS)."""
    toward = tl.zeros((token.shape[0], channel.shape[0]), tl.float32)
    shrink = tl.zeros((token.shape[0],), tl.float32)
    for first in range(0, length, WORDS):
        word = first + tl.arange(0, WORDS)
        grad, along = _cosine_gradient(
            pair, token, word, best_word, its_word, best_token, its_token, grad_word, grad_token,
            a, length,
        )  # fmt: skip
        direction = tl.load(
            words + word[:, None] * width + channel[None, :],
            mask=(word < length)[:, None] & (channel < width)[None, :],
            other=0.0,
        )
        toward = tl.dot(grad, direction, acc=toward, input_precision=PRECISION)
        shrink += tl.sum(along, 1)
    scale = tl.load(inverse + pair * a + token, mask=token < a, other=0.0)
    # Of cosine = v w / |v|: (w - cosine v / |v|) / |v|.
    return toward * scale[:, None] - made * (shrink * scale * scale)[:, None]


@triton.jit
def _grad_weights(
    weights, kept, patches, words, best_word, its_word, best_token, its_token, inverse,
    grad_word, grad_token, grad_weights, t, a, k, n, length, width,
    COLUMNS: tl.constexpr, TOKENS: tl.constexpr, KEPT: tl.constexpr, WORDS: tl.constexpr,
    CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program for COLUMNS kept patches of each pair."""
    pair = tl.program_id(0).to(tl.int64)
    image, caption = pair // t, pair % t
    weights += pair * a * k
    kept += pair * k
    patches += image * n * width
    words += caption * length * width
    token = tl.arange(0, TOKENS)
    place = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_kept = place < k
    patch = tl.load(kept + place, mask=is_kept, other=0)
    total = tl.zeros((TOKENS, COLUMNS), tl.float32)
    for start in range(0, width, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)
        made = _mixtures(weights, kept, patches, token, channel, a, k, width, KEPT, PRECISION)
        grad = _mixture_gradient(
            pair, made, token, channel, words, best_word, its_word, best_token, its_token, inverse,
            grad_word, grad_token, a, length, width, WORDS, PRECISION,
        )  # fmt: skip
        own = tl.load(
            patches + patch[None, :] * width + channel[:, None],
            mask=is_kept[None, :] & (channel < width)[:, None],
            other=0.0,
        )
        total = tl.dot(grad, own, acc=total, input_precision=PRECISION)
    to = grad_weights + pair * a * k + token[:, None] * k + place[None, :]
    tl.store(to, total, mask=(token < a)[:, None] & is_kept[None, :])


@triton.jit
def _grad_patches(
    weights, kept, patches, words, best_word, its_word, best_token, its_token, inverse,
    grad_word, grad_token, places, grad_patches, t, a, k, n, length, width,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, KEPT: tl.constexpr, WORDS: tl.constexpr,
    CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program for ROWS patches and CHANNELS channels of each image: all captions, in order."""
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    patches += image * n * width
    token = tl.arange(0, TOKENS)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    for caption in range(0, t):
        pair = image * t + caption
        own = weights + pair * a * k
        made = _mixtures(own, kept + pair * k, patches, token, channel, a, k, width, KEPT, PRECISION)
        grad = _mixture_gradient(
            pair, made, token, channel, words + caption * length * width,
            best_word, its_word, best_token, its_token, inverse, grad_word, grad_token,
            a, length, width, WORDS, PRECISION,
        )  # fmt: skip
        place = tl.load(places + pair * n + row, mask=row < n, other=-1)
        share = tl.load(
            own + token[None, :] * k + place[:, None],
            mask=(token < a)[None, :] & (place >= 0)[:, None],
            other=0.0,
        )
        total = tl.dot(share, grad, acc=total, input_precision=PRECISION)
    to = grad_patches + image * n * width + row[:, None] * width + channel[None, :]
    tl.store(to, total, mask=(row < n)[:, None] & (channel < width)[None, :])


@triton.jit
def _grad_words(
    weights, kept, patches, words, best_word, its_word, best_token, its_token, inverse,
    grad_word, grad_token, grad_words, b, t, a, k, n, length, width,
    TOKENS: tl.constexpr, KEPT: tl.constexpr, WORDS: tl.constexpr, CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program for WORDS words and CHANNELS channels of each caption: all images, in order."""
    caption = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    word = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    token = tl.arange(0, TOKENS)
    total = tl.zeros((WORDS, CHANNELS), tl.float32)
    for image in range(0, b):
        pair = image * t + caption
        made = _mixtures(
            weights + pair * a * k, kept + pair * k, patches + image * n * width,
            token, channel, a, k, width, KEPT, PRECISION,
        )  # fmt: skip
        grad, _ = _cosine_gradient(
            pair, token, word, best_word, its_word, best_token, its_token, grad_word, grad_token,
            a, length,
        )  # fmt: skip
        scale = tl.load(inverse + pair * a + token, mask=token < a, other=0.0)
        total = tl.dot(tl.trans(grad * scale[:, None]), made, acc=total, input_precision=PRECISION)
    to = grad_words + caption * length * width + word[:, None] * width + channel[None, :]
    tl.store(to, total, mask=(word < length)[:, None] & (channel < width)[None, :])
