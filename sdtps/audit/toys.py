"""What the audit looks at: tasks at the size of a toy, with batches that need no data on disk.

A toy is a task as far as one training step needs it (`sdtps.training.step.StepTask`), so that the audit
takes the same step as a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sdtps.config import Config, ReidConfig, RetrievalConfig
from sdtps.config.reid import GeneratedReidConfig
from sdtps.config.retrieval import GeneratedRetrievalConfig
from sdtps.data.caption_batches import RetrievalBatch, TextBatch
from sdtps.data.reid_batches import ReidBatch
from sdtps.models import reid, retrieval
from sdtps.models.backbones import patch_size
from sdtps.models.checkpoints import read_image
from sdtps.models.encoders import (
    ImageEncoder,
    ImageShape,
    build_image_encoder,
    build_text_encoder,
    image_shape,
    text_width,
)
from sdtps.multimodal import MODALITIES
from sdtps.training.step import StepTask

CAMERAS = 2
WORDS = 60  # of the toy vocabulary
SPECIAL = 5  # ids below this are padding and the like


class Toy(StepTask, Protocol):
    """One variant, ready for a training step on the CPU.

    `epoch` is one in which the loss has its final form; `batch(step)` is the same for every variant.
    """

    config: Config
    epoch: int

    def batch(self, step: int) -> Any: ...


def build_toy(config: Config, seed: int, weights: Mapping[str, Tensor] | None) -> Toy:
    """A toy of `config`; tensors of `weights` that it has in the same shape are taken over."""
    torch.manual_seed(seed)
    small = tiny(config)
    toy: Toy
    if isinstance(small, ReidConfig):
        toy = ReidToy(small, seed)
    else:
        assert isinstance(config, RetrievalConfig)
        toy = RetrievalToy(small, image_shape(config.image_encoder).class_token, seed)
    if weights is not None:
        own = toy.model.state_dict()
        shared = {n: v for n, v in weights.items() if n in own and own[n].shape == v.shape}
        toy.model.load_state_dict(shared, strict=False)
    return toy


class ReidToy:
    """Re-identification on noise around a fixed pattern for each identity."""

    epoch = 1

    def __init__(self, config: ReidConfig, seed: int) -> None:
        self.config: Config = config
        self.settings = config
        self.seed = seed
        self.device = torch.device("cpu")
        self.pids = 2 * config.data.batch_size // config.data.instances
        self.model: Any = reid.ReidModel(config, self.pids, CAMERAS)
        self.trunk = partial(reid.trunk, self.model)
        shape: tuple[int, ...] = (3, config.data.height, config.data.width)
        if config.backbone.frozen:
            backbone = self.model.take_backbone()
            shape = (1 + backbone.patches, backbone.embed)
        generator = torch.Generator().manual_seed(seed)
        self.patterns = torch.randn(self.pids, len(MODALITIES), *shape, generator=generator)

    def batch(self, step: int) -> ReidBatch:
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        chosen = torch.randperm(self.pids, generator=generator)[: self.pids // 2]
        labels = chosen.repeat_interleave(self.settings.data.instances)
        shape = (len(MODALITIES), len(labels), *self.patterns.shape[2:])
        noise = torch.randn(shape, generator=generator)
        camids = torch.arange(len(labels)) % CAMERAS
        return ReidBatch(self.patterns[labels].transpose(0, 1) + noise, labels, camids)

    def loss(self, batch: ReidBatch, epoch: int, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        return reid.reid_loss(self.model, self.settings, batch)

    def module_groups(self) -> dict[str, list[nn.Parameter]]:
        groups: dict[str, list[nn.Parameter]] = {}
        for name, parameters in reid.module_groups(self.model).items():
            part = "heads" if name.startswith("head_") else name
            groups.setdefault(part, []).extend(parameters)
        if "backbone" in groups:
            groups["encoder"] = groups.pop("backbone")
        return groups


class _WithoutClassToken(ImageEncoder):
    """A tiny ViT that returns its patches only, as Swin and convolutional networks do."""

    def forward(self, pixels: Tensor) -> Tensor:
        return super().forward(pixels)[:, 1:]


class RetrievalToy:
    """Retrieval on pairs whose captions begin with words that belong to their image.

    Args:
        class_token: whether the full-size encoder has one; a tiny ViT always does.
    """

    def __init__(self, config: RetrievalConfig, class_token: bool, seed: int) -> None:
        self.config: Config = config
        self.settings = config
        self.seed = seed
        self.device = torch.device("cpu")
        # After the warm-up: the hardest negatives, and no ramp that would start at zero.
        self.epoch = max(2, config.loss.warmup_epochs + 1)
        small = image_shape(config.image_encoder)
        shape = ImageShape(small.patches, small.width, class_token)
        encoder: ImageEncoder = build_image_encoder(config.image_encoder)
        if not class_token:
            encoder = _WithoutClassToken(encoder.network)
        texts = build_text_encoder(config.text_encoder, [" ".join(f"w{i}" for i in range(WORDS))])
        self.model: Any = retrieval.RetrievalModel(
            config,
            shape,
            None if config.image_encoder.frozen else encoder,
            None if config.text_encoder.frozen else texts,
        )
        self.trunk = partial(retrieval.trunk, self.model)
        self.module_groups = partial(retrieval.module_groups, self.model)
        side = config.image_encoder.size
        count = 2 * config.data.batch_size
        size: tuple[int, ...] = (count, 3, side, side)
        if config.image_encoder.frozen:
            size = (count, shape.patches + shape.class_token, shape.width)
        generator = torch.Generator().manual_seed(seed)
        self.patterns = torch.randn(size, generator=generator)
        self.meanings = torch.randint(SPECIAL, WORDS, (count, 3), generator=generator)
        self.table = torch.randn(WORDS, text_width(config.text_encoder), generator=generator)

    def batch(self, step: int) -> RetrievalBatch:
        data, matching = self.settings.data, self.settings.matching
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        ids = torch.randperm(len(self.patterns), generator=generator)[: data.batch_size]
        noise = torch.randn(ids.shape + self.patterns.shape[1:], generator=generator)
        dense = None
        if matching.axis.dense and matching.dense_text != "none":
            shown = ids.roll(1) if matching.dense_text == "shuffled" else ids
            dense = self._texts(shown, data.max_dense_words, generator)
        sparse = self._texts(ids, data.max_words, generator)
        return RetrievalBatch(self.patterns[ids] + noise, sparse, dense, ids)

    def _texts(self, ids: Tensor, longest: int, generator: torch.Generator) -> TextBatch:
        words = torch.randint(SPECIAL, WORDS, (len(ids), longest), generator=generator)
        words[:, :3] = self.meanings[ids]
        lengths = torch.randint(5, longest + 1, (len(ids),), generator=generator)
        values = self.table[words] if self.settings.text_encoder.frozen else words
        return TextBatch(values, lengths)

    def loss(self, batch: RetrievalBatch, epoch: int, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        return retrieval.retrieval_loss(
            self.model, self.settings, batch, epoch=epoch, step=step, steps_per_epoch=1
        )


# -- the configuration of a toy ----------------------------------------------------------------------

PATCH = 4
EMBED = 64  # a multiple of 64, one attention head of DeMo's fusion
SMALL = {"weights": "random", "width": 32, "depth": 1, "heads": 2}


def tiny(config: Config) -> Config:
    """`config` with a tiny encoder, a batch of 4 and generated data.

    The grid of patches stays, and with it every token count; patches are 4 pixels wide. Everything
    under `sdtps`, `fusion`, `loss`, `optim` and the precision stay too. A tiny retrieval encoder always
    has a class token.
    """
    changes = _tiny_reid(config) if isinstance(config, ReidConfig) else _tiny_retrieval(config)
    amp = "bf16" if config.train.amp == "auto" else config.train.amp  # as on a GPU, also here
    changes["train"] = {"device": "cpu", "compile": False, "amp": amp}
    updated = {
        section: getattr(config, section).model_copy(update=values)
        for section, values in changes.items()
    }
    return config.model_copy(update=updated)


def _tiny_reid(config: ReidConfig) -> dict[str, dict[str, Any]]:
    patch = patch_size(config.backbone)
    return {
        "data": {
            "dataset": "rgbnt201",
            "root": None,
            "file": None,
            "generate": GeneratedReidConfig(train_pids=4, test_pids=3, images_per_camera=2),
            "height": config.data.height // patch * PATCH,
            "width": config.data.width // patch * PATCH,
            "batch_size": 4,
            "instances": 2,
            "pad": min(config.data.pad, 2),
            "workers": 0,
        },
        "backbone": {"name": "tiny_vit", "patch": PATCH, "embed": EMBED, **SMALL},
    }


def _tiny_retrieval(config: RetrievalConfig) -> dict[str, dict[str, Any]]:
    encoder = config.image_encoder
    cell = {"vit_b16": 16, "tiny_vit": encoder.patch}.get(encoder.name, 32)
    if encoder.name == "checkpoint":
        cell = read_image(encoder.weights).patch
    return {
        "data": {
            "dataset": "f30k",
            "root": None,
            "file": None,
            "image_root": None,
            "generate": GeneratedRetrievalConfig(train_images=16, dev_images=8, test_images=8),
            "batch_size": 8,
            "test_batch_size": 8,
            "max_words": 12,
            "max_dense_words": 24,
            "workers": 0,
        },
        "image_encoder": {
            "name": "tiny_vit",
            "size": encoder.size // cell * PATCH,
            "patch": PATCH,
            **SMALL,
        },
        "text_encoder": {"name": "tiny_bert", **SMALL},
        "matching": {"embed": EMBED, "kernel": "plain"},  # the toy is on a CPU
        "eval": {"protocol": "full"},  # folds have a thousand images
    }
