"""Similarities of all images and captions of a split, in blocks.

All visual tokens stay on the device; captions are encoded a block at a time. What is kept of a block is
its numbers: (I, I x captions of an image) float32 on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sdtps.config import RetrievalConfig
from sdtps.config.retrieval import DenseText
from sdtps.data.retrieval_batches import Source, dense_owner
from sdtps.retrieval_model import RetrievalModel


@torch.no_grad()
def similarities(
    model: RetrievalModel,
    source: Source,
    config: RetrievalConfig,
    modes: Sequence[DenseText],
    device: torch.device,
) -> dict[DenseText, Tensor]:
    """Similarity matrix (I, I x per_image) for each way of pairing captions with dense texts.

    `own`: a query caption comes with the dense text of its own target image, which is the leak of the
    published evaluation. `shuffled`: with another image's. `none`: without. Where the model takes no
    dense text all modes are the same matrix.
    """
    model.eval()
    split, size = source.split, config.data.test_batch_size
    count, per_image = len(split.images), split.per_image
    effective = {mode: mode if takes_dense(config) else "none" for mode in modes}
    wanted: list[DenseText] = list(dict.fromkeys(effective.values()))
    results = {mode: torch.empty(count, count * per_image) for mode in wanted}
    blocks = [range(i, min(i + size, count)) for i in range(0, count, size)]
    tokens = [model.tokens(source.images(block).to(device)) for block in blocks]

    targets = max(1, size // per_image)  # images whose captions make a block
    for start in range(0, count, targets):
        images = range(start, min(start + targets, count))
        captions = range(images.start * per_image, images.stop * per_image)
        batch = source.texts(source.captions, captions, config.data.max_words).to(device)
        words = model.words(batch)
        for mode in wanted:
            dense = _dense(model, source, config, mode, images, device)
            for block, visual in zip(blocks, tokens, strict=True):
                similarity = model.crossnet(visual, words, batch.lengths, *dense).similarity
                results[mode][block.start : block.stop, captions.start : captions.stop] = similarity
    return {mode: results[effective[mode]] for mode in modes}


def takes_dense(config: RetrievalConfig) -> bool:
    """Whether the model looks at dense text at all."""
    return config.matching.form != "laps" and config.sdtps.enabled


def _dense(
    model: RetrievalModel,
    source: Source,
    config: RetrievalConfig,
    mode: DenseText,
    images: range,
    device: torch.device,
) -> tuple[Tensor, ...]:
    """Words and lengths of the dense text of each caption of `images`; nothing for `none`."""
    if mode == "none" or source.dense is None:
        return ()
    owner = dense_owner(len(source.split.images), mode)[images.start : images.stop]
    batch = source.texts(source.dense, owner.tolist(), config.data.max_dense_words).to(device)
    repeat = torch.arange(len(images), device=device).repeat_interleave(source.split.per_image)
    return model.words(batch)[repeat], batch.lengths[repeat]
