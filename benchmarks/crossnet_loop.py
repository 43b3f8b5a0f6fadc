"""The cross-net as an executable specification: a loop over captions, nothing clever.

It takes the parameters of a `CrossNet` and must give its result. Tests compare the two on every
axis of the configuration; the benchmark times them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sdtps.aggregation import merged
from sdtps.crossnet import CrossNet
from sdtps.selection import Selection, TokenSelection, no_gradient


def similarity_loop(
    net: CrossNet,
    images: Tensor,
    words: Tensor,
    lengths: Tensor,
    dense_words: Tensor | None = None,
    dense_lengths: Tensor | None = None,
) -> Tensor:
    """Similarity (B, T); arguments as those of `CrossNet.forward`."""
    classes = images[:, :1] if net.class_token else None
    patches = images[:, 1:] if net.class_token else images
    draws = [_draws(net, patches, words) for _ in range(1 if dense_words is None else 2)]
    columns = []
    for t in range(len(words)):
        caption = words[t, : int(lengths[t])]
        dense = None
        if dense_words is not None and dense_lengths is not None:
            dense = dense_words[t, : int(dense_lengths[t])]
        columns.append(_one_caption(net, classes, patches, caption, dense, [d[:, t] for d in draws]))
    return torch.stack(columns, dim=1)


def _draws(net: CrossNet, patches: Tensor, words: Tensor) -> Tensor:
    """Noise of one branch for all pairs, drawn as the batched form draws it."""
    shape = len(patches), len(words), patches.shape[1]
    decision = net.config.axes.decision
    if not (decision.draws_noise and decision.acts(net.config, net.training)):
        return patches.new_zeros(shape)
    return torch.rand(shape, dtype=patches.dtype, device=patches.device)


def _one_caption(
    net: CrossNet,
    classes: Tensor | None,
    patches: Tensor,
    caption: Tensor,
    dense: Tensor | None,
    draws: list[Tensor],
) -> Tensor:
    """Similarity (B) of all images with one caption of exact length."""
    if net.sparse_selection is None:
        return _align(net, _with_class(classes, patches), caption)
    sparse_guide = [caption.mean(0)] if net.matching.sparse_guide else []
    if dense is None:
        chosen = [_select(net, net.sparse_selection, patches, sparse_guide, draws[0])]
        return _align(net, _tokens(net, classes, chosen), caption)
    assert net.dense_selection is not None
    if not net.matching.axis.together:
        first = _select(net, net.sparse_selection, patches, sparse_guide, draws[0])
        second = _select(net, net.dense_selection, patches, [dense.mean(0)], draws[1])
        return _align(net, _tokens(net, classes, [first]), caption) + _align(
            net, _tokens(net, classes, [second]), dense
        )
    guides = [*sparse_guide, dense.mean(0)]
    chosen = [
        _select(net, net.sparse_selection, patches, guides, draws[0]),
        _select(net, net.dense_selection, patches, guides[::-1], draws[1]),
    ]
    return _align(net, _tokens(net, classes, chosen), caption)


def _select(
    net: CrossNet, selection: TokenSelection, patches: Tensor, guides: list[Tensor], draws: Tensor
) -> Selection:
    with no_gradient(net.config.axes.no_grad.selection):
        own, guided = selection.attentions(
            patches, patches.mean(1), [guide.expand(len(patches), -1) for guide in guides]
        )
        return selection(patches, own, guided, draws)


def _tokens(net: CrossNet, classes: Tensor | None, chosen: list[Selection]) -> Tensor:
    return _with_class(classes, merged(net.aggregation, chosen))


def _with_class(classes: Tensor | None, tokens: Tensor) -> Tensor:
    return tokens if classes is None else torch.cat([classes, tokens], dim=1)


def _align(net: CrossNet, tokens: Tensor, caption: Tensor) -> Tensor:
    """Similarity (B) of normalised tokens (B, V, C) with the normalised words of one caption (L, C)."""
    words = F.normalize(caption, dim=-1).expand(len(tokens), -1, -1)
    return net.alignment(F.normalize(tokens, dim=-1), words)
