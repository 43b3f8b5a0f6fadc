"""Image-text retrieval as a task of the training loop: data, frozen features, model, evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn

from sdtps.config import RetrievalConfig
from sdtps.config.retrieval import DenseText
from sdtps.data.caption_batches import RetrievalBatch, Source, TrainPairs, tokenised
from sdtps.data.captions import CaptionSplit, images_of, record_of
from sdtps.data.images import PixelFormat, check_images
from sdtps.data.load import load_splits, split_names
from sdtps.evaluation import Progress, no_progress
from sdtps.evaluation import retrieval as evaluation
from sdtps.evaluation.retrieval import evaluate, similarities
from sdtps.models.encoders import (
    ImageEncoder,
    TextEncoder,
    build_image_encoder,
    build_text_encoder,
    check_text_limits,
    image_shape,
    weights_record,
)
from sdtps.models.frozen import image_features, state_digest, text_features
from sdtps.models.retrieval import RetrievalModel, module_groups, retrieval_loss, trunk
from sdtps.run.locations import cache_root
from sdtps.system.errors import ConfigError, DataError, did_you_mean


class RetrievalTask:
    """`task.Task` of one retrieval run.

    Raises:
        DataError, WeightsError, ConfigError: as the readers and encoders say.
    """

    def __init__(
        self, config: RetrievalConfig, seed: int, device: torch.device, *, trains: bool = True
    ) -> None:
        self.config = config
        self.device = device
        selects_on_dev = config.eval.select_on == "dev"
        self.selected_on = "dev" if selects_on_dev else "test"
        self.select_metric = "dev_rsum" if selects_on_dev else "rsum"
        splits, root = load_splits(config, split_names(config))
        images, fold = len(splits[config.eval.test_split].images), evaluation.FOLD_IMAGES
        if config.eval.protocol != "full" and images < fold:
            raise DataError(
                f"eval.protocol {config.eval.protocol} needs folds of {fold} images, but "
                f"{config.eval.test_split} has {images}; set eval.protocol to full"
            )
        if not config.image_encoder.frozen:  # else all are decoded for the features
            check_images(images_of(splits))
        encoders = Encoders(config, splits["train"], device)
        sources = {name: encoders.source(split) for name, split in splits.items()}
        self.test = sources[config.eval.test_split]
        self.dev = sources.get("dev")
        self.model = encoders.model().to(device)
        self.encoders = None if trains else encoders  # frozen ones, for pictures and texts never seen
        self.steps_per_epoch = 0
        if trains:
            self.batches = TrainPairs(
                sources["train"], config.data, config.matching.dense_text, seed, device
            )
            self.steps_per_epoch = self.batches.steps_per_epoch
        self.trunk, self.module_groups = partial(trunk, self.model), partial(module_groups, self.model)
        self.queries: dict[str, Tensor] = {}
        data = record_of(splits, config.data.dataset, root)
        data["warnings"] += encoders.warnings()
        generate = config.data.generate
        self.record: dict[str, Any] = {
            "data": {**data, "generated": generate and generate.model_dump()},
            "weights": {
                "image_encoder": encoders.image_record(),
                "text_encoder": weights_record("text_encoder", config.text_encoder),
            },
        }

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

    conditions: tuple[str, ...] = ()  # `eval.also_dense_text` is scored at every evaluation

    def evaluate(
        self, conditions: Sequence[str] = ("",), progress: Progress = no_progress
    ) -> dict[str, float]:
        """Recalls on the test split under their plain names, those on dev as dev_NAME.

        With `eval.also_dense_text` also NAME@MODE for each mode, with protocol `both` NAME@1k.

        Args:
            conditions: "" = all that the configuration asks for; the name of a dense text = the test
                split with it, as NAME@MODE.

        Raises:
            FloatingPointError: similarities that are not finite.
            ConfigError: a condition that is no dense text.
        """
        for name in conditions:
            if name and name not in get_args(DenseText):
                raise ConfigError(
                    f"unknown condition '{name}' of retrieval. "
                    f"{did_you_mean(name, get_args(DenseText))}"
                )
        protocol, main = self.config.eval.protocol, self.config.matching.eval_dense_text
        own = "" in conditions
        modes: list[Any] = list(filter(None, conditions))
        modes += self.config.eval.also_dense_text if own else ()
        scored = self._scored(
            self.test, tuple(dict.fromkeys([main, *modes] if own else modes)), progress
        )
        per_image = self.test.split.per_image
        metrics: dict[str, float] = {}
        self.queries = {}
        if own:
            metrics |= evaluate(scored[main], per_image, protocol, queries=self.queries)
        measure = "full" if protocol == "both" else protocol
        for mode in dict.fromkeys(modes):
            metrics |= evaluate(scored[mode], per_image, measure, suffix=f"@{mode}")
        if own and self.dev is not None:
            dev = self._scored(self.dev, (main,), progress)[main]
            found = evaluate(dev, self.dev.split.per_image, "full")
            metrics |= {f"dev_{name}": value for name, value in found}
        return metrics

    def _scored(
        self, source: Source, modes: tuple[DenseText, ...], progress: Progress
    ) -> dict[DenseText, Tensor]:
        amp = self.config.train.amp
        dtype = torch.float16 if amp == "fp16" else torch.bfloat16
        with torch.autocast(self.device.type, dtype=dtype, enabled=amp != "off"):
            return similarities(self.model, source, self.config, modes, self.device, progress)


class Encoders:
    """Builds encoders where they are needed: in the model, or to compute features that are cached."""

    def __init__(self, config: RetrievalConfig, train: CaptionSplit, device: torch.device) -> None:
        self.config = config
        self.device = device
        check_text_limits(config)
        self.shape = image_shape(config.image_encoder)
        self.image_encoder: ImageEncoder = build_image_encoder(config.image_encoder)
        self.text_encoder: TextEncoder = build_text_encoder(
            config.text_encoder, [*train.captions, *(train.dense or ())]
        )

    def warnings(self) -> list[str]:
        """What a reader of the results should know of the encoders."""
        without_mask = self.text_encoder.vocabulary.mask is None
        if self.config.data.word_noise and without_mask:
            return [
                f"the tokenizer of {self.config.text_encoder.weights} has no mask token: words that "
                "data.word_noise would mask are left out"
            ]
        return []

    def image_record(self) -> dict[str, Any] | None:
        """File and digest of the image encoder's weights, and what of them was interpolated."""
        record = weights_record("image_encoder", self.config.image_encoder)
        adapted = self.image_encoder.adapted
        return {**record, "interpolated": adapted} if record and adapted else record

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
        captions = tokenised(split.captions, vocabulary)
        dense = None if split.dense is None else tokenised(split.dense, vocabulary)
        pixels = PixelFormat(config.image_encoder.size, self.shape.mean, self.shape.std)
        source = Source(split, pixels, None, captions, dense, vocabulary)
        folder, device, data = cache_root(), self.device, config.data
        if config.image_encoder.frozen:
            encoder = self.image_encoder
            digest = self._digest("image_encoder", encoder)
            source.image_features = image_features(
                source, encoder, digest, data.test_batch_size, device, folder
            )
        if config.text_encoder.frozen:
            digest = self._digest("text_encoder", self.text_encoder)
            rest = (self.text_encoder, digest, device, folder)
            source.captions = text_features(source, captions, data.max_words, *rest)
            if dense is not None:
                source.dense = text_features(source, dense, data.max_dense_words, *rest)
        return source

    def _digest(self, part: str, encoder: nn.Module) -> str:
        """What decides an encoder's output: its weight file, or its random weights themselves."""
        settings = getattr(self.config, part)
        record = weights_record(part, settings)
        return f"{settings.name} {record['digest'] if record else state_digest(encoder)}"
