"""A training step of re-identification beside DeMo's on the same model and batch.

DeMo's calls the encoder once for each modality, embeds
patches by a convolution, runs CLIP's layers as transformers has them, gives Adam one group for each
parameter, as DeMo's make_optimizer does, and reads loss and accuracy from the device after every step,
as its loop does. Attention is torch's scaled-dot-product kernel on both sides, as DeMo's
nn.MultiheadAttention uses it today. Both compute the same loss.
"""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import Row, compare
from sdtps.config import ReidConfig, parse_config
from sdtps.data.reid_batches import ReidBatch
from sdtps.models.backbones import Block, ClipVit, TinyVit
from sdtps.models.losses import batch_hard_triplet, label_smooth_cross_entropy
from sdtps.models.reid import ReidModel
from sdtps.multimodal import MODALITIES
from sdtps.training.device import keep_freed_memory, seed_everything
from sdtps.training.reid import ReidTask
from sdtps.training.step import TrainingStep

Size = tuple[int, int]  # height, width
STEPS = 5  # in one turn, at whose end a GPU is waited for


def reid_config(device: torch.device, size: Size, batch: int) -> ReidConfig:
    """tiny_vit in float32 on a CPU; on a GPU CLIP ViT-B/16 with random weights, bf16 and compiled."""
    on_gpu = device.type == "cuda"
    images: dict[str, Any] = {"height": size[0], "width": size[1], "workers": 0}
    images["generate"] = {"train_pids": 16, "test_pids": 2, "images_per_camera": 8}
    batches = {"batch_size": batch, "instances": max(2, batch // 8)}
    name = "clip_vit_b16" if on_gpu else "tiny_vit"
    amp = "bf16" if on_gpu else "off"
    parsed = parse_config(
        {
            "task": "reid",
            "data": {**images, **batches},
            "backbone": {"name": name, "weights": "random", "patch": 8},
            "sdtps": {"aggregation": "single"},
            "train": {"amp": amp, "compile": on_gpu, "device": device.type},
        }
    )
    assert isinstance(parsed, ReidConfig)
    return parsed


def reid_task(config: ReidConfig, device: torch.device) -> Any:
    """`ReidTask` of the configuration, with the memory that a run keeps."""
    keep_freed_memory()
    seed_everything(0)
    return ReidTask(config, 0, device)


@contextlib.contextmanager
def own_cache() -> Iterator[Path]:
    """A folder of this measurement, for its generated images and all that is cached."""
    with tempfile.TemporaryDirectory() as name, patch.dict(os.environ, SDTPS_CACHE=name):
        yield Path(name)


def step(device: torch.device, *, repeats: int = 7) -> Iterator[Row]:
    """A training step beside DeMo's."""
    with own_cache():
        size, number = ((256, 128), 64) if device.type == "cuda" else ((64, 32), 8)
        config = reid_config(device, size, number)
        task = reid_task(config, device)
        batch = next(task.train_batches(1, 0))
        plain, training = PlainStep(task), TrainingStep(task, config)

        def ours() -> None:
            for _ in range(STEPS):
                training.forward_backward(batch, epoch=1)
                training.update(measure=False)

        def reference() -> None:
            for _ in range(STEPS):
                plain(batch)

        case = f"{config.backbone.name}, {size[0]}x{size[1]}, batch {number}"
        yield compare("step", case, ours, reference, device, repeats=repeats, warmup=2, each=STEPS)


class PlainStep:
    """DeMo's training step on a copy of the same model, in fp16 on a GPU."""

    def __init__(self, task: Any) -> None:
        self.loss_settings = task.config.loss
        self.device = task.device
        self.model: ReidModel = copy.deepcopy(task.model)
        optim = task.config.optim
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        groups = [{"params": [p], "lr": optim.lr} for p in parameters]
        self.optimizer = torch.optim.Adam(groups, weight_decay=optim.weight_decay)
        self.fp16 = task.device.type == "cuda"
        self.scaler = torch.amp.GradScaler(task.device.type, enabled=self.fp16)

    def loss(self, batch: ReidBatch) -> tuple[Tensor, Tensor]:
        """The loss of `reid_loss`, and the accuracy of the last head."""
        model, settings = self.model, self.loss_settings
        assert isinstance(model.backbone, (TinyVit, ClipVit)) and model.sdtps is not None
        encoded = [plain_encoder(model.backbone, images, batch.camids) for images in batch.images]
        classes = {m: c for m, (c, _) in zip(MODALITIES, encoded, strict=True)}
        patches = {m: p for m, (_, p) in zip(MODALITIES, encoded, strict=True)}
        features = {
            "sdtps": model.sdtps(patches, classes)["feature"],
            "global": torch.cat([classes[m] for m in MODALITIES], dim=-1),
        }
        total = torch.zeros((), device=self.device)
        for name, head in model.heads.items():
            scores = head(features[name])
            total = total + settings.id_weight * label_smooth_cross_entropy(
                scores, batch.labels, settings.label_smoothing
            )
            total = total + settings.triplet_weight * batch_hard_triplet(features[name], batch.labels)
        return total, (scores.argmax(1) == batch.labels).float().mean()

    def __call__(self, batch: ReidBatch) -> tuple[float, float]:
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, dtype=torch.float16, enabled=self.fp16):
            loss, accuracy = self.loss(batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item(), accuracy.item()


def plain_encoder(
    model: TinyVit | ClipVit, images: Tensor, camids: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Class tokens and patches, computed as a plain implementation does."""
    if isinstance(model, ClipVit):
        return plain_clip(model, images, camids)
    kernel = model.patch_embedding.weight.view(-1, 3, model.patch, model.patch)
    x = F.conv2d(images, kernel, model.patch_embedding.bias, stride=model.patch)
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([model.class_token.expand(len(x), 1, -1), x], dim=1) + model.positions
    if model.camera is not None and camids is not None:
        x[:, 0] = x[:, 0] + model.coefficient * model.camera[camids]
    for block in model.blocks:
        assert isinstance(block, Block)
        x = plain_block(block, x)
    x = model.projection(model.norm(x))
    return x[:, 0], x[:, 1:]


def plain_clip(model: ClipVit, images: Tensor, camids: Tensor | None) -> tuple[Tensor, Tensor]:
    """CLIP's tower as transformers computes it."""
    vision = model.tower.vision_model
    embeddings = vision.embeddings
    x = embeddings.patch_embedding(images).flatten(2).transpose(1, 2)
    first = embeddings.class_embedding.expand(len(x), 1, -1).to(x.dtype)
    x = torch.cat([first, x], dim=1) + embeddings.position_embedding.weight.to(x.dtype)
    if model.camera is not None and camids is not None:
        x[:, 0] = x[:, 0] + model.coefficient * model.camera[camids]
    x = vision.encoder(inputs_embeds=vision.pre_layrnorm(x)).last_hidden_state
    x = model.tower.visual_projection(vision.post_layernorm(x))
    return x[:, 0], x[:, 1:]


def plain_block(block: Block, x: Tensor) -> Tensor:
    """`Block`, step by step."""
    n, tokens, width = x.shape
    qkv = block.qkv(block.norm_attention(x)).view(n, tokens, 3, block.heads, width // block.heads)
    mixed = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
    x = x + block.out(mixed.transpose(1, 2).reshape(n, tokens, width))
    return x + block.mlp(block.norm_mlp(x))
