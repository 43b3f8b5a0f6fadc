"""What the gradient audit examines in retrieval: encoders, cross-net and loss, without data on disk."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sdtps.audit.subject import Subject
from sdtps.config import RetrievalConfig
from sdtps.data.retrieval_batches import RetrievalBatch, TextBatch
from sdtps.models.encoders import (
    ImageEncoder,
    ImageShape,
    build_image_encoder,
    build_text_encoder,
    image_shape,
    text_width,
)
from sdtps.models.retrieval import RetrievalModel, module_groups, retrieval_loss, trunk
from sdtps.models.tiny import tiny

WORDS = 60  # of the toy vocabulary
SPECIAL = 5  # ids below this are padding and the like


class WithoutClassToken(ImageEncoder):
    """A tiny ViT that hands on its patches only, as Swin and convolutional networks do."""

    def forward(self, pixels: Tensor) -> Tensor:
        return super().forward(pixels)[:, 1:]


def retrieval_subject(full: RetrievalConfig, seed: int) -> Subject:
    """A configuration's model at the size of a toy; the class token as in the full encoder."""
    config = tiny(full)
    assert isinstance(config, RetrievalConfig)
    small = image_shape(config.image_encoder)
    shape = ImageShape(small.patches, small.width, image_shape(full.image_encoder).class_token)
    encoder: ImageEncoder = build_image_encoder(config.image_encoder)
    if not shape.class_token:
        encoder = WithoutClassToken(encoder.network, shape)
    texts = build_text_encoder(config.text_encoder, [" ".join(f"w{i}" for i in range(WORDS))])
    model = RetrievalModel(
        config,
        shape,
        None if config.image_encoder.frozen else encoder,
        None if config.text_encoder.frozen else texts,
    )
    groups: dict[str, list[nn.Parameter]] = module_groups(model)

    def loss(batch: RetrievalBatch) -> Tensor:
        # After the warm-up: the hardest negatives, and no ramp that would start at zero.
        epoch = max(2, config.loss.warmup_epochs + 1)
        return retrieval_loss(model, config, batch, epoch=epoch, step=1, steps_per_epoch=1)[0]

    return Subject(
        config,
        model,
        loss,
        _Batches(config, shape, seed),
        groups,
        trunk(model),
    )


class _Batches:
    """Pairs whose captions begin with words that belong to their image."""

    def __init__(self, config: RetrievalConfig, shape: ImageShape, seed: int) -> None:
        self.config = config
        self.shape = shape
        self.seed = seed
        side = config.image_encoder.size
        count = 2 * config.data.batch_size
        size: tuple[int, ...] = (count, 3, side, side)
        if config.image_encoder.frozen:
            size = (count, shape.patches + shape.class_token, shape.width)
        generator = torch.Generator().manual_seed(seed)
        self.patterns = torch.randn(size, generator=generator)
        self.meanings = torch.randint(SPECIAL, WORDS, (count, 3), generator=generator)
        self.table = torch.randn(WORDS, text_width(config.text_encoder), generator=generator)

    def __call__(self, step: int) -> RetrievalBatch:
        data, matching = self.config.data, self.config.matching
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        ids = torch.randperm(len(self.patterns), generator=generator)[: data.batch_size]
        noise = torch.randn(ids.shape + self.patterns.shape[1:], generator=generator)
        dense = None
        if matching.form != "laps" and matching.dense_text != "none":
            shown = ids.roll(1) if matching.dense_text == "shuffled" else ids
            dense = self._texts(shown, data.max_dense_words, generator)
        sparse = self._texts(ids, data.max_words, generator)
        return RetrievalBatch(self.patterns[ids] + noise, sparse, dense, ids)

    def _texts(self, ids: Tensor, longest: int, generator: torch.Generator) -> TextBatch:
        words = torch.randint(SPECIAL, WORDS, (len(ids), longest), generator=generator)
        words[:, :3] = self.meanings[ids]
        lengths = torch.randint(5, longest + 1, (len(ids),), generator=generator)
        values = self.table[words] if self.config.text_encoder.frozen else words
        return TextBatch(values, lengths)
