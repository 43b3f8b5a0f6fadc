"""A training step on cached outputs of a frozen backbone beside one that calls the frozen backbone.

Both are the same run: the same batches in the same order, the same heads and SDTPS, the same losses.
The reference takes pixels from the cache and evaluates the backbone without gradients at every step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import cache_in, compare, machine, seconds_now
from sdtps.config import ReidConfig, parse_config
from sdtps.data.reid_batches import ReidBatch
from sdtps.training.device import keep_freed_memory, seed_everything
from sdtps.training.reid import ReidTask
from sdtps.training.step import TrainingStep


def run(
    device: torch.device,
    *,
    size: tuple[int, int] | None = None,
    batch: int | None = None,
    repeats: int = 15,
) -> dict[str, Any]:
    """Seconds of a step with its batch, and the difference of the first losses.

    Defaults: on a CPU tiny_vit on 64x32, 32 triples, float32, as in the quick study; on a GPU CLIP
    ViT-B/16 with random weights on 256x128, 64 triples, bf16. Filling the cache is timed apart.
    """
    keep_freed_memory()
    on_gpu = device.type == "cuda"
    size = size or ((256, 128) if on_gpu else (64, 32))
    batch = batch or (64 if on_gpu else 32)
    with tempfile.TemporaryDirectory() as name, cache_in(Path(name)):
        plain_task = _task(_config(device, size, batch, frozen=False), device)
        assert plain_task.model.backbone is not None
        plain_task.model.backbone.requires_grad_(False)
        filled = -seconds_now(device)
        task = _task(_config(device, size, batch, frozen=True), device)
        filled += seconds_now(device)
        ours, first = _stepper(task)
        plain, plain_first = _stepper(plain_task)
        timed = compare(ours, plain, device, repeats=repeats, warmup=3)
    rate = {name: round(batch / seconds, 1) for name, seconds in timed["seconds"].items()}
    return {
        "bench": "frozen",
        **machine(device),
        "backbone": task.config.backbone.name,
        "size": list(size),
        "batch": batch,
        "amp": task.config.train.amp,
        **timed,
        "samples_per_s": rate,
        "relative_loss_difference": abs(first - plain_first) / abs(plain_first),
        "cache_seconds": round(filled, 3),
        "cached_triples": len(task.dataset.train) + len(task.place),
    }


def _config(device: torch.device, size: tuple[int, int], batch: int, *, frozen: bool) -> ReidConfig:
    on_gpu = device.type == "cuda"
    parsed = parse_config(
        {
            "task": "reid",
            "data": {
                "generate": {"train_pids": 16, "test_pids": 2, "images_per_camera": 8},
                "height": size[0],
                "width": size[1],
                "batch_size": batch,
                "instances": max(2, batch // 8),
                "pipeline": "cached",
                "workers": 0,
                **dict.fromkeys(("flip", "pad", "erase"), 0),
            },
            "backbone": {
                "name": "clip_vit_b16" if on_gpu else "tiny_vit",
                "weights": "random",
                "patch": 8,
                "frozen": frozen,
            },
            "sdtps": {"aggregation": "single"},
            "train": {"amp": "bf16" if on_gpu else "off", "device": device.type},
        }
    )
    assert isinstance(parsed, ReidConfig)
    return parsed


def _task(config: ReidConfig, device: torch.device) -> ReidTask:
    seed_everything(0)
    return ReidTask(config, 0, device)


def _stepper(task: Any) -> tuple[Callable[[], object], float]:
    """A function that does one step after the other, and the loss of the first."""
    training = TrainingStep(task, task.config)
    task.model.train()
    batches = _batches(task)

    def step() -> torch.Tensor:
        loss, _ = training.forward_backward(next(batches), epoch=1)
        training.update(measure=False)
        return loss

    first = step().item()
    return step, first


def _batches(task: Any) -> Iterator[ReidBatch]:
    for epoch in count(1):
        yield from task.train_batches(epoch, 0)
