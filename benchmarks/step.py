"""A training step of re-identification beside DeMo's way of doing it, on the same model and batch.

The reference calls the encoder once for each modality, embeds patches by a convolution, runs CLIP's
layers as transformers has them, gives Adam one group for each parameter, as DeMo's make_optimizer does,
and reads loss and accuracy from the device after every step, as its loop does. Attention is torch's
scaled-dot-product kernel on both sides, as DeMo's nn.MultiheadAttention uses it today. Both compute
the same loss.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.machine import compare, machine
from sdtps.config import ReidConfig, parse_config
from sdtps.data.reid_batches import ReidBatch
from sdtps.evaluation import Progress, no_progress
from sdtps.models.backbones import Block, ClipVit, TinyVit
from sdtps.models.losses import batch_hard_triplet, label_smooth_cross_entropy
from sdtps.models.reid import ReidModel, module_groups, reid_loss, trunk
from sdtps.multimodal import MODALITIES
from sdtps.training.step import TrainingStep

Backbone = Literal["tiny_vit", "clip_vit_b16"]
STEPS = 5  # in one turn, at whose end the device is waited for: a run reads its losses every log_every
PIDS = 171  # identities of RGBNT201's training split
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bf16, by the makers' data sheets


def bench_config(backbone: Backbone, batch: int, amp: str, compiled: bool) -> ReidConfig:
    """tiny_vit on 64x32 images, or CLIP ViT-B/16 with random weights on 256x128, as published."""
    tiny = backbone == "tiny_vit"
    parsed = parse_config(
        {
            "task": "reid",
            "data": {
                "height": 64 if tiny else 256,
                "width": 32 if tiny else 128,
                "batch_size": batch,
                "instances": max(2, batch // 8),
            },
            "backbone": {"name": backbone, "weights": "random", "patch": 8},
            "sdtps": {"aggregation": "single"},
            "train": {"amp": amp, "compile": compiled},
        }
    )
    assert isinstance(parsed, ReidConfig)
    return parsed


class SyntheticTask:
    """One random batch again and again: a step without data."""

    select_metric, selected_on, steps_per_epoch = "mAP", "test", 1_000_000
    conditions: tuple[str, ...] = ()

    def __init__(self, config: ReidConfig, device: torch.device, seed: int = 0) -> None:
        self.config, self.device = config, device
        self.record: dict[str, Any] = {}
        torch.manual_seed(seed)
        self.model: Any = ReidModel(config, PIDS, cameras=4).to(device)
        data = config.data
        labels = torch.arange(data.batch_size, device=device) // data.instances
        images = torch.randn(3, data.batch_size, 3, data.height, data.width, device=device)
        self.batch = ReidBatch(images, labels, labels % 4)

    def train_batches(self, epoch: int, first: int) -> Iterator[ReidBatch]:
        while True:
            yield self.batch

    def batch_size(self, batch: ReidBatch) -> int:
        return len(batch.labels)

    def loss(self, batch: ReidBatch, epoch: int, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        return reid_loss(self.model, self.config, batch)

    def evaluate(
        self, conditions: Sequence[str] = ("",), progress: Progress = no_progress
    ) -> dict[str, float]:
        return {}

    def trunk(self) -> list[nn.Parameter]:
        return trunk(self.model)

    def module_groups(self) -> dict[str, list[nn.Parameter]]:
        return module_groups(self.model)


class PlainStep:
    """DeMo's training step on a copy of the same model."""

    def __init__(self, task: SyntheticTask, config: ReidConfig) -> None:
        self.config = config
        self.device = task.device
        self.model: ReidModel = copy.deepcopy(task.model)
        self.optimizer = torch.optim.Adam(
            [
                {"params": [p], "lr": config.optim.lr}
                for p in self.model.parameters()
                if p.requires_grad
            ],
            weight_decay=config.optim.weight_decay,
        )
        self.amp = config.train.amp
        self.scaler = torch.amp.GradScaler(task.device.type, enabled=self.amp == "fp16")

    def loss(self, batch: ReidBatch) -> tuple[Tensor, Tensor]:
        """The loss of `reid_loss`, and the accuracy of the last head."""
        model, settings = self.model, self.config.loss
        assert isinstance(model.backbone, (TinyVit, ClipVit))
        encoded = [plain_encoder(model.backbone, images, batch.camids) for images in batch.images]
        classes = {m: c for m, (c, _) in zip(MODALITIES, encoded, strict=True)}
        patches = {m: p for m, (_, p) in zip(MODALITIES, encoded, strict=True)}
        assert model.sdtps is not None
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
        dtype = torch.float16 if self.amp == "fp16" else torch.bfloat16
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, dtype=dtype, enabled=self.amp != "off"):
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
    first = model.class_token.expand(len(x), 1, -1)
    x = torch.cat([first, x], dim=1) + model.positions
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
    head = width // block.heads
    qkv = block.qkv(block.norm_attention(x)).view(n, tokens, 3, block.heads, head)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(query, key, value)
    x = x + block.out(mixed.transpose(1, 2).reshape(n, tokens, width))
    return x + block.mlp(block.norm_mlp(x))


def flops_of_step(task: SyntheticTask) -> int:
    """Floating-point operations of one forward and backward pass, counted by torch."""
    with FlopCounterMode(display=False) as counter:
        loss, _ = task.loss(task.batch, 1, 1)
        loss.backward()
    task.model.zero_grad(set_to_none=True)
    return counter.get_total_flops()


def run(
    device: torch.device,
    *,
    backbone: Backbone | None = None,
    batch: int | None = None,
    amp: str | None = None,
    compiled: bool | None = None,
    repeats: int = 7,
) -> dict[str, Any]:
    """Seconds of a step, ours and the reference's, and the difference of their losses.

    Defaults: on a CPU tiny_vit, 8 triples, float32; on a GPU CLIP ViT-B/16, 64 triples, bf16 and
    compiled, against the reference in fp16.
    """
    on_gpu = device.type == "cuda"
    backbone = backbone or ("clip_vit_b16" if on_gpu else "tiny_vit")
    batch = batch or (64 if on_gpu else 8)
    amp = amp or ("bf16" if on_gpu else "off")
    config = bench_config(backbone, batch, amp, on_gpu if compiled is None else compiled)
    task = SyntheticTask(config, device)
    plain = PlainStep(task, bench_config(backbone, batch, "fp16" if on_gpu else "off", False))
    flops = flops_of_step(task)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=amp == "bf16"), torch.no_grad():
        ours = task.loss(task.batch, 1, 1)[0].item()
        reference = plain.loss(task.batch)[0].item()
    step = TrainingStep(task, config)

    def ours_in_a_row() -> None:
        for _ in range(STEPS):
            step.forward_backward(task.batch, epoch=1)
            step.update(measure=False)

    def plain_in_a_row() -> None:
        for _ in range(STEPS):
            plain(task.batch)

    begun = time.perf_counter()
    ours_in_a_row()
    first = time.perf_counter() - begun
    timed = compare(ours_in_a_row, plain_in_a_row, device, repeats=repeats, warmup=1)
    for key in ("seconds", "fastest"):
        timed[key] = {name: seconds / STEPS for name, seconds in timed[key].items()}
    rate = {name: batch / seconds for name, seconds in timed["seconds"].items()}
    peak = next((f for name, f in PEAK_FLOPS.items() if name in str(machine(device)["gpu"])), None)
    return {
        "bench": "step",
        **machine(device),
        "backbone": backbone,
        "batch": batch,
        "amp": {"ours": amp, "reference": plain.amp},
        "compiled": config.train.compile,
        "steps_in_a_turn": STEPS,
        "seconds_of_first_turn": round(first, 1),
        **timed,
        "samples_per_s": {name: round(value, 1) for name, value in rate.items()},
        "relative_loss_difference": abs(ours - reference) / abs(reference),
        "gflop_per_step": round(flops / 1e9, 2),
        "tflop_per_s": round(flops / timed["seconds"]["ours"] / 1e12, 4),
        "model_flops_utilisation": peak and round(flops / timed["seconds"]["ours"] / peak, 3),
    }
