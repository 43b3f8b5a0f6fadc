"""Re-identification: images a second, ranking, and steps on a frozen backbone, beside plain ways.

`images`: the cached pipeline beside the JPEG path. `ranking`: the test split of RGBNT201
beside a loop over queries. `frozen`: a training step on cached outputs of a frozen
backbone beside one that calls it: the same batches, heads, SDTPS and losses.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.machine import cache_in, compare, machine, seconds_now
from sdtps.config import ReidConfig, parse_config
from sdtps.config.reid import GeneratedReidConfig, ReidDataConfig
from sdtps.data.generated import generate_rgbnt201
from sdtps.data.images import BICUBIC
from sdtps.data.reid_batches import CachedBatches, JpegBatches, ReidBatch, cached_pixels
from sdtps.data.reid_folders import read_dataset
from sdtps.evaluation.reid import MAX_RANK, rank_features
from sdtps.models.losses import euclidean_distances
from sdtps.training.device import keep_freed_memory, seed_everything
from sdtps.training.reid import ReidTask
from sdtps.training.step import TrainingStep

BATCHES = 3  # of each way in one turn


def images(
    device: torch.device,
    *,
    sizes: Sequence[tuple[int, int]] = ((64, 32), (256, 128)),
    batch: int | None = None,
    repeats: int = 11,
) -> dict[str, Any]:
    """Images a second with DeMo's augmentation at the size of the CPU studies and at RGBNT201's.

    Both ways run in this process without workers, and with memory kept as in a run (`training.memory`),
    which the cached pipeline gains more from. Decoding into the cache happens once, before; its seconds
    are not counted.
    """
    keep_freed_memory()
    batch = batch or (64 if device.type == "cuda" else 32)
    cases = [_image_size(device, size, batch, repeats) for size in sizes]
    return {"bench": "data", **machine(device), "batch": batch, "cases": cases}


def _image_size(
    device: torch.device, size: tuple[int, int], batch: int, repeats: int
) -> dict[str, Any]:
    """One image size (height, width)."""
    generated = GeneratedReidConfig(train_pids=16, test_pids=8, images_per_camera=8)
    data = ReidDataConfig(
        generate=generated,
        height=size[0],
        width=size[1],
        batch_size=batch,
        instances=max(1, batch // 8),
        workers=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        root = generate_rgbnt201(generated, *size, Path(folder))
        train = read_dataset("rgbnt201", root).train
        pixels = cached_pixels(train, data, BICUBIC, Path(folder))
        cached = CachedBatches(train, pixels, data, 0, device)
        jpeg = JpegBatches(train, data, 0, device)
        timed = compare(_some(cached), _some(jpeg), device, repeats=repeats, warmup=1)
    images = 3 * batch * BATCHES
    rate = {name: round(images / seconds, 1) for name, seconds in timed["seconds"].items()}
    return {"size": list(size), **timed, "images_per_s": rate}


def _some(batches: CachedBatches | JpegBatches) -> Callable[[], list[Any]]:
    return lambda: list(islice(batches.epoch(1, 0), BATCHES))


def ranking_loop(features: Tensor, pids: Tensor, camids: Tensor) -> tuple[float, float]:
    """mAP and rank-1 by the published protocol, one query after the other, in NumPy."""
    normal = F.normalize(features)
    distances = euclidean_distances(normal, normal).cpu().numpy()
    pid, camera = pids.cpu().numpy(), camids.cpu().numpy()
    precisions, curves = [], []
    for query in range(len(distances)):
        order = np.argsort(distances[query], kind="stable")
        kept = order[~((pid[order] == pid[query]) & (camera[order] == camera[query]))]
        hits = (pid[kept] == pid[query]).astype(np.int64)
        if not hits.any():
            continue
        found = hits.cumsum()
        precision = [count / (place + 1.0) for place, count in enumerate(found)]
        precisions.append((np.asarray(precision) * hits).sum() / hits.sum())
        curves.append(np.minimum(found, 1)[:MAX_RANK])
    return float(np.mean(precisions)), float(np.mean(curves, axis=0)[0])


def ranking(
    device: torch.device, *, queries: int = 836, width: int = 1536, repeats: int = 7
) -> dict[str, Any]:
    """Seconds to rank every image among all others, from features on the device."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(queries, width, generator=generator).to(device)
    pids = (torch.arange(queries) % 30).to(device)
    camids = (torch.arange(queries) // 30 % 2).to(device)

    def ours() -> dict[str, float]:
        return rank_features(features, features, pids, pids, camids, camids).metrics()

    metrics, reference = ours(), ranking_loop(features, pids, camids)
    timed = compare(
        ours, lambda: ranking_loop(features, pids, camids), device, repeats=repeats, warmup=1
    )
    return {
        "bench": "eval",
        **machine(device),
        "queries": queries,
        "width": width,
        **timed,
        "difference": {
            "mAP": abs(metrics["mAP"] - reference[0]),
            "rank1": abs(metrics["rank1"] - reference[1]),
        },
    }


def frozen(
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
        plain_task = _frozen_task(_frozen_config(device, size, batch, frozen=False), device)
        assert plain_task.model.backbone is not None
        plain_task.model.backbone.requires_grad_(False)
        filled = -seconds_now(device)
        task = _frozen_task(_frozen_config(device, size, batch, frozen=True), device)
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


def _frozen_config(
    device: torch.device, size: tuple[int, int], batch: int, *, frozen: bool
) -> ReidConfig:
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


def _frozen_task(config: ReidConfig, device: torch.device) -> ReidTask:
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
