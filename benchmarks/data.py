"""Training images a second: the cached pipeline beside the JPEG path, on generated images."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import compare, machine
from sdtps.config.reid import GeneratedReidConfig, ReidDataConfig
from sdtps.data.generated import generate_rgbnt201
from sdtps.data.images import BICUBIC
from sdtps.data.reid_batches import CachedBatches, JpegBatches, cached_pixels
from sdtps.data.reid_folders import read_dataset
from sdtps.training.device import keep_freed_memory

BATCHES = 3  # of each way in one turn


def run(
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
    cases = [measure(device, size, batch, repeats) for size in sizes]
    return {"bench": "data", **machine(device), "batch": batch, "cases": cases}


def measure(device: torch.device, size: tuple[int, int], batch: int, repeats: int) -> dict[str, Any]:
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
