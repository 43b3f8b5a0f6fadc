"""Re-identification as a task of the training loop: data, model, evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps.config import ReidConfig
from sdtps.config.reid import MODALITY_LETTERS, Condition
from sdtps.data.contents import file_digest
from sdtps.data.images import BICUBIC, BILINEAR, raise_mistakes
from sdtps.data.load import load_reid_data
from sdtps.data.reid_batches import ReidBatch, TestBatches, TrainBatches, cached_pixels, without
from sdtps.data.reid_folders import ReidDataset, Sample, impossible
from sdtps.evaluation import Progress, no_progress
from sdtps.evaluation.reid import Features, evaluate
from sdtps.models.frozen import backbone_tokens
from sdtps.models.reid import ReidModel, module_groups, reid_loss, trunk
from sdtps.models.weights import find_weights
from sdtps.run.locations import cache_root
from sdtps.selection import full_precision
from sdtps.system import distributed
from sdtps.system.errors import ConfigError, DataError


class ReidTask:
    """`Task` of one re-identification run: its data read or generated, its model built.

    Args:
        trained: weights that the model will get, for evaluation alone: it is built for as many
            identities and cameras as they know, and training batches are not made.

    Raises:
        DataError, WeightsError: as the readers say.
    """

    def __init__(
        self,
        config: ReidConfig,
        seed: int,
        device: torch.device,
        *,
        trained: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.conditions = config.eval.also  # under which the finished model is scored too
        self.dataset = load_reid_data(config, trains=trained is None)
        raise_mistakes("eval.also", impossible(config.eval.also, self.dataset.absent))
        pids, cameras = self.dataset.train_pids, self.dataset.cameras
        if trained is not None:
            pids, cameras = _sizes(trained, self.dataset)
        self.model = ReidModel(config, pids, cameras).to(device)
        _check_pieces(self.model, config)
        self.trunk, self.module_groups = partial(trunk, self.model), partial(module_groups, self.model)
        self.queries: dict[str, Tensor] = {}
        # On the test as DeMo does: RGBNT201, RGBNT100 and MSVR310 have no validation split.
        self.selected_on = "dev" if self.dataset.dev else "test"
        self.select_metric = "dev_mAP" if self.dataset.dev else "mAP"
        generate = config.data.generate
        self.record: dict[str, Any] = {
            "data": {
                **self.dataset.record(camera_embedding=config.backbone.camera_embedding),
                "generated": generate and generate.model_dump(),
            },
            "weights": None,
        }
        # Query and gallery of RGBNT201 are the same images: each is encoded once.
        samples = list(dict.fromkeys((*self.dataset.query, *self.dataset.gallery, *self.dataset.dev)))
        parts = [samples[k :: distributed.world_size()] for k in range(distributed.world_size())]
        # The row of a sample when the processes' rows stand one below the other.
        self.place = {sample: i for i, sample in enumerate(s for part in parts for s in part)}
        samples = self.own_samples = parts[distributed.rank()]
        train, data, absent = self.dataset.train, config.data, self.dataset.absent
        self._encoder = self.model.take_backbone() if config.backbone.frozen else None
        if self._encoder is not None:
            self.record["frozen_parameters"] = sum(p.numel() for p in self._encoder.parameters())
        tested = self._stored(samples, BILINEAR)
        self.test_batches = TestBatches(samples, tested, data.test_batch_size, device, absent)
        self.steps_per_epoch = 0
        if trained is None:
            stored = self._stored(train, BICUBIC)
            self.batches = TrainBatches(train, stored, data, seed, device, absent)
            self.steps_per_epoch = self.batches.steps_per_epoch
        if config.backbone.weights != "random":
            file = find_weights(config.backbone.weights)
            self.record["weights"] = {"backbone": {"file": str(file), "digest": file_digest(file)}}

    def _stored(
        self, samples: Sequence[Sample], resampling: Image.Resampling, missing: str = "nothing"
    ) -> np.ndarray:
        """A frozen backbone's outputs, or decoded pixels."""
        if self._encoder is None:
            return cached_pixels(samples, self.config.data, resampling, cache_root())
        place = (self.device, cache_root(), missing, self.dataset.absent)
        return backbone_tokens(samples, self.config, self._encoder, resampling, *place)

    def train_batches(self, epoch: int, first: int) -> Iterator[ReidBatch]:
        return self.batches.epoch(epoch, first)

    def batch_size(self, batch: ReidBatch) -> int:
        """Samples are triples."""
        return len(batch.labels)

    def loss(self, batch: ReidBatch, epoch: int, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """`reid_loss` of the batch."""
        return reid_loss(self.model, self.config, batch)

    def evaluate(
        self, conditions: Sequence[str] = ("",), progress: Progress = no_progress
    ) -> dict[str, float]:
        """CMC and mAP on the test split by the data set's rule, for each condition.

        Metrics of a condition have its name as a suffix (`sdtps.config.reid.Condition`). Those on a
        validation split are dev_NAME, without a condition.

        Raises:
            FloatingPointError: the features are not finite.
            DataError: a condition that shows only modalities that the data lack.
        """
        raise_mistakes("conditions", impossible(conditions, self.dataset.absent))
        parsed = [Condition.parse(name) if name else Condition() for name in conditions]
        shown = list(dict.fromkeys(m for c in parsed for m in (c.query, c.gallery)))
        blocks = -(-len(self.own_samples) // self.config.data.test_batch_size)
        features: dict[str, Tensor] = {}
        for number, modalities in enumerate(shown):
            own = []
            for done, batch in enumerate(self._test_batches(modalities), start=1):
                own.append(self.test_features(batch, modalities))
                progress(number * blocks + done, len(shown) * blocks)
            features[modalities] = torch.cat(distributed.gather_parts(torch.cat(own), self.device))
        metrics: dict[str, float] = {}
        self.queries = {}
        for condition in parsed:
            query = self._features(self.dataset.query, features[condition.query], condition)
            gallery = self._features(self.dataset.gallery, features[condition.gallery], condition)
            rerank = condition.rerank
            by_query = None if condition.name else self.queries
            metrics |= evaluate(query, gallery, rerank=rerank, suffix=condition.name, queries=by_query)
            if self.dataset.dev and not condition.name:
                dev = self._features(self.dataset.dev, features[condition.query], condition)
                metrics |= {f"dev_{name}": value for name, value in evaluate(dev, dev)}
        return metrics

    def _test_batches(self, modalities: str) -> TestBatches:
        """Test batches; with a frozen backbone its outputs where other modalities are black."""
        if self._encoder is None or modalities == MODALITY_LETTERS:
            return self.test_batches
        samples, absent = self.own_samples, self.dataset.absent
        tokens = self._stored(samples, BILINEAR, _missing(modalities))
        size = self.config.data.test_batch_size
        return TestBatches(samples, tokens, size, self.device, absent)

    def _features(
        self, samples: tuple[Sample, ...], features: Tensor, condition: Condition
    ) -> Features:
        pids = torch.tensor([s.pid for s in samples])
        places = [self.place[s] for s in samples]
        # Any camera: every sample is a view of its own.
        views = places if condition.any_camera else [self.dataset.view(s) for s in samples]
        return Features(F.normalize(features[places].float()), pids, torch.tensor(views))

    def test_features(self, batch: ReidBatch, modalities: str = MODALITY_LETTERS) -> Tensor:
        """`ranked_features` of a batch that shows these modalities."""
        images = batch.images
        if self.model.backbone is not None:  # else they were black when the tokens were computed
            images = without(images, _missing(modalities))
        return ranked_features(self.model, self.config, images, batch.camids)


def ranked_features(model: ReidModel, config: ReidConfig, images: Tensor, camids: Tensor) -> Tensor:
    """[B, D] L2-normalised features that are ranked, before any BNNeck; without autocast, as published.

    A model without second branch is ranked by its global feature, one trained without global branch by
    its second, whatever `eval.feature` says.

    Args:
        images: [M, B, 3, H, W]; camids: [B].
    """
    features = model(full_precision(images), camids)  # a frozen backbone's outputs may be bf16
    if not model.second:
        return F.normalize(features["global"].float())
    second = torch.cat([features[name] for name in model.second], dim=-1)
    if config.eval.feature == "sdtps" or not config.loss.global_branch:
        chosen = second
    elif config.eval.feature == "global":
        chosen = features["global"]
    else:
        chosen = torch.cat([features["global"], second], dim=-1)
    return F.normalize(chosen.float())


def _check_pieces(model: ReidModel, config: ReidConfig) -> None:
    """Raises ConfigError where pieces of a batch would be normalised by themselves."""
    whole = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not name.startswith("heads.")
    ]
    if config.train.micro_batch is not None and whole:
        raise ConfigError(
            f"train.micro_batch: {whole[0]} normalises over the whole batch, which pieces "
            "would change; set train.micro_batch to null, or fusion.kind to none"
        )


def _missing(modalities: str) -> str:
    """The letters that `modalities` lacks, or `nothing`."""
    return "".join(m for m in MODALITY_LETTERS if m not in modalities) or "nothing"


def trained_sizes(trained: Mapping[str, Tensor]) -> tuple[int, int]:
    """Training identities and cameras that the weights know (1 where they have no table of them)."""
    names = [n for n in trained if n.startswith("heads.") and n.endswith("classifier.weight")]
    table = trained.get("backbone.camera")
    return len(trained[names[0]]) if names else 1, 1 if table is None else len(table)


def _sizes(trained: Mapping[str, Tensor], dataset: ReidDataset) -> tuple[int, int]:
    """As `trained_sizes`; the data's own number of cameras where the weights have no table.

    Raises:
        DataError: the data have cameras that the weights' camera table has no row for.
    """
    pids, cameras = trained_sizes(trained)
    if "backbone.camera" not in trained:
        return pids, dataset.cameras
    largest = max((s.camid for s in (*dataset.query, *dataset.gallery)), default=0)
    if largest >= cameras:
        raise DataError(
            f"{dataset.root}: has camera {largest + 1}, for which the model has no embedding: it was "
            f"trained with {cameras} cameras and backbone.camera_embedding"
        )
    return pids, cameras
