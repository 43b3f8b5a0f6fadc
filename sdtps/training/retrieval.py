"""Image-text retrieval as a task of the training loop: data, frozen features, model, evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sdtps.config import RetrievalConfig
from sdtps.config.retrieval import DenseText
from sdtps.data.captions import CaptionSplit
from sdtps.data.features import Ragged, cached, feature_key, state_digest
from sdtps.data.retrieval_batches import RetrievalBatch, Source, TrainPairs
from sdtps.data.retrieval_splits import load_splits, split_names
from sdtps.data.words import Words
from sdtps.errors import DataError
from sdtps.evaluation import retrieval as evaluation
from sdtps.evaluation.retrieval import recalls, recalls_in_folds, similarities
from sdtps.models.encoders import (
    ImageEncoder,
    TextEncoder,
    build_image_encoder,
    build_text_encoder,
    image_shape,
    weights_record,
)
from sdtps.models.retrieval import RetrievalModel, module_groups, retrieval_loss, trunk
from sdtps.run.locations import cache_root

TEXTS_AT_ONCE = 64  # through a frozen text encoder


class RetrievalTask:
    """`task.Task` of one retrieval run.

    Raises:
        DataError, WeightsError, ConfigError: as the readers and encoders say.
    """

    def __init__(self, config: RetrievalConfig, seed: int, device: torch.device) -> None:
        self.config = config
        self.device = device
        selects_on_dev = config.eval.select_on == "dev"
        self.selected_on = "dev" if selects_on_dev else "test"
        self.select_metric = "dev_rsum" if selects_on_dev else "rsum"
        splits, root, generated = load_splits(config, split_names(config))
        self._check_folds(len(splits[config.eval.test_split].images))
        encoders = Encoders(config, splits["train"], device)
        sources = {name: encoders.source(split) for name, split in splits.items()}
        self.test = sources[config.eval.test_split]
        self.dev = sources.get("dev")
        self.model = encoders.model().to(device)
        self.batches = TrainPairs(
            sources["train"], config.data, config.matching.dense_text, seed, device
        )
        self.steps_per_epoch = self.batches.steps_per_epoch
        self.record: dict[str, Any] = {
            "data": {
                "name": config.data.dataset,
                "root": str(root),
                "fingerprint": _joint_fingerprint(splits),
                "generated": generated,
            },
            "weights": {
                "image_encoder": weights_record(
                    config.image_encoder.name, config.image_encoder.weights
                ),
                "text_encoder": weights_record(config.text_encoder.name, config.text_encoder.weights),
            },
        }

    def _check_folds(self, images: int) -> None:
        settings, fold = self.config.eval, evaluation.FOLD_IMAGES
        if settings.protocol != "full" and images < fold:
            raise DataError(
                f"eval.protocol {settings.protocol} needs folds of {fold} images, but "
                f"{settings.test_split} has {images}; set eval.protocol to full"
            )

    def train_batches(self, epoch: int, first: int) -> Iterator[RetrievalBatch]:
        return self.batches.epoch(epoch, first)

    def batch_size(self, batch: RetrievalBatch) -> int:
        """Samples are image-caption pairs."""
        return len(batch.image_ids)

    def loss(self, batch: RetrievalBatch, epoch: int, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """`retrieval_loss` of the batch."""
        return retrieval_loss(
            self.model,
            self.config,
            batch,
            epoch=epoch,
            step=step,
            steps_per_epoch=self.steps_per_epoch,
        )

    def evaluate(self) -> dict[str, float]:
        """Recalls on the test split under their plain names, those on dev as dev_NAME.

        With `eval.also_dense_text` also NAME@MODE for each mode, with protocol `both` NAME@1k. See
        `sdtps.evaluation.retrieval` for the names.

        Raises:
            FloatingPointError: similarities that are not finite.
        """
        main = self.config.matching.eval_dense_text
        also = self.config.eval.also_dense_text
        scored = self._scored(self.test, (main, *also))
        per_image = self.test.split.per_image
        protocol = self.config.eval.protocol
        measure = recalls_in_folds if protocol == "1k_folds" else recalls
        metrics = measure(scored[main], per_image)
        if protocol == "both":
            folds = recalls_in_folds(scored[main], per_image)
            metrics |= {f"{name}@1k": value for name, value in folds.items()}
        for mode in also:
            extra = measure(scored[mode], per_image)
            metrics |= {f"{name}@{mode}": value for name, value in extra.items()}
        if self.dev is not None:
            found = recalls(self._scored(self.dev, (main,))[main], self.dev.split.per_image)
            metrics |= {f"dev_{name}": value for name, value in found.items()}
        return metrics

    def _scored(self, source: Source, modes: tuple[DenseText, ...]) -> dict[DenseText, Tensor]:
        amp = self.config.train.amp
        dtype = torch.float16 if amp == "fp16" else torch.bfloat16
        with torch.autocast(self.device.type, dtype=dtype, enabled=amp != "off"):
            return similarities(self.model, source, self.config, modes, self.device)

    def trunk(self) -> list[nn.Parameter]:
        """See `retrieval_model.trunk`."""
        return trunk(self.model)

    def module_groups(self) -> dict[str, list[nn.Parameter]]:
        """See `retrieval_model.module_groups`."""
        return module_groups(self.model)


def _joint_fingerprint(splits: dict[str, CaptionSplit]) -> str:
    prints = [f"{name} {split.fingerprint()}" for name, split in sorted(splits.items())]
    return hashlib.sha256("\n".join(prints).encode()).hexdigest()[:16]


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
