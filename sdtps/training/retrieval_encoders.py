"""The encoders of a retrieval run: in its model, or frozen and in front of it, their outputs cached."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sdtps.config import RetrievalConfig
from sdtps.data.captions import CaptionSplit
from sdtps.data.features import Ragged, cached, feature_key, state_digest
from sdtps.data.retrieval_batches import Source
from sdtps.data.words import Words
from sdtps.models.encoders import (
    ImageEncoder,
    TextEncoder,
    build_image_encoder,
    build_text_encoder,
    image_shape,
    weights_record,
)
from sdtps.models.retrieval import RetrievalModel
from sdtps.run.locations import cache_root

TEXTS_AT_ONCE = 64  # through a frozen text encoder


class Encoders:
    """Builds encoders where they are needed: in the model, or to compute features that are cached."""

    def __init__(self, config: RetrievalConfig, train: CaptionSplit, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.shape = image_shape(config.image_encoder)
        self.image_encoder: ImageEncoder = build_image_encoder(config.image_encoder)
        self.text_encoder: TextEncoder = build_text_encoder(
            config.text_encoder, [*train.captions, *(train.dense or ())]
        )

    def model(self) -> RetrievalModel:
        """The model; a frozen encoder is not part of it."""
        return RetrievalModel(
            self.config,
            self.shape,
            None if self.config.image_encoder.frozen else self.image_encoder,
            None if self.config.text_encoder.frozen else self.text_encoder,
        )

    def source(self, split: CaptionSplit) -> Source:
        """A split with its texts as word ids, and features in place of what frozen encoders take."""
        config, vocabulary = self.config, self.text_encoder.vocabulary
        source = Source(
            split,
            config.image_encoder.size,
            self.shape,
            None,
            vocabulary.words(split.captions),
            None if split.dense is None else vocabulary.words(split.dense),
            vocabulary,
        )
        if config.image_encoder.frozen:
            source.image_features = self._image_features(source)
        if config.text_encoder.frozen:
            source.captions = self._text_features(source, split.captions, config.data.max_words)
            if split.dense is not None:
                source.dense = self._text_features(source, split.dense, config.data.max_dense_words)
        return source

    def _image_features(self, source: Source) -> Tensor:
        settings = self.config.image_encoder
        images = source.split.images
        states = [(path.absolute(), path.stat()) for path in images]

        def compute() -> dict[str, Tensor]:
            parts = []
            size = self.config.data.test_batch_size
            for start in range(0, len(images), size):
                indices = range(start, min(start + size, len(images)))
                parts.append(self._frozen(self.image_encoder)(source.images(indices).to(self.device)))
            return {"values": torch.cat([part.half().cpu() for part in parts])}

        key = feature_key(
            images=[f"{path}:{state.st_size}:{state.st_mtime_ns}" for path, state in states],
            size=settings.size,
            encoder=_encoder_digest(settings.name, settings.weights, self.image_encoder),
        )
        return cached(cache_root(), key, compute)["values"]

    def _text_features(self, source: Source, texts: tuple[str, ...], limit: int) -> Ragged:
        settings = self.config.text_encoder
        words: list[Words] = self.text_encoder.vocabulary.words(texts)

        def compute() -> dict[str, Tensor]:
            rows: list[Tensor] = []
            for start in range(0, len(texts), TEXTS_AT_ONCE):
                indices = range(start, min(start + TEXTS_AT_ONCE, len(texts)))
                batch = source.texts(words, indices, limit).to(self.device)
                hidden = self._frozen(self.text_encoder)(batch.values, batch.lengths).half().cpu()
                rows += [
                    row[:length] for row, length in zip(hidden, batch.lengths.tolist(), strict=True)
                ]
            ragged = Ragged.of(rows)
            return {"values": ragged.values, "lengths": ragged.lengths}

        key = feature_key(
            texts=hashlib.sha256("\n".join(texts).encode()).hexdigest(),
            limit=limit,
            encoder=_encoder_digest(settings.name, settings.weights, self.text_encoder),
        )
        return Ragged(**cached(cache_root(), key, compute))

    def _frozen(self, encoder: nn.Module) -> Callable[..., Tensor]:
        encoder = encoder.eval().to(self.device)

        @torch.no_grad()
        def run(*inputs: Tensor) -> Tensor:
            result: Tensor = encoder(*inputs)
            return result

        return run


def _encoder_digest(name: str, weights: str, encoder: nn.Module) -> str:
    """What decides an encoder's output: its weight file, or its random weights themselves."""
    record = weights_record(name, weights)
    if record is not None:
        return f"{name} {record['sha256']}"
    return f"{name} {state_digest(encoder)}"
