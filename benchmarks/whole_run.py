"""Seconds of a whole run: 50 epochs on generated images of RGBNT201's shape, evaluated every 5."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import cache_in, machine
from sdtps.config import ReidConfig, identity, parse_config
from sdtps.data.generated import generate_rgbnt201, rgbnt201_name
from sdtps.run.folder import RunFolder
from sdtps.training.job import execute

# 171 x 4 x 6 = 4,104 training triples (RGBNT201: 3,951) and 35 x 4 x 6 = 840 for the test (836).
SHAPE = {"train_pids": 171, "test_pids": 35, "cameras": 4, "images_per_camera": 6}


def whole_run(
    device: torch.device, *, epochs: int = 50, shape: dict[str, int] = SHAPE
) -> dict[str, Any]:
    """Seconds of a whole run with evaluations, compilation and decoding; writing the images apart."""
    config = run_config(device, epochs, shape)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generated = config.data.generate
        assert generated is not None
        size = (config.data.height, config.data.width)
        begun = time.perf_counter()
        root = folder / rgbnt201_name(generated, *size)
        generate_rgbnt201(generated, *size, root, processes=os.cpu_count() or 1)
        written = time.perf_counter()
        run_folder = RunFolder(folder / "run")
        config = config.model_copy(update={"data": config.data.model_copy(update={"root": name})})
        about = {"study": "bench", "variant": "run", "seed": 0, "identity": identity(config, 0)}
        run_folder.create(config, about)
        with cache_in(folder):
            outcome = execute(run_folder.path)
        ended = time.perf_counter()
        result = run_folder.result() or {}
    return {
        "bench": "run",
        **machine(device),
        "outcome": outcome,
        "epochs": epochs,
        "generate_seconds": round(written - begun, 1),
        "run_seconds": round(ended - written, 1),
        **{k: result.get(k) for k in ("steps", "train_seconds", "images_per_s", "peak_memory_mib")},
    }


def run_config(device: torch.device, epochs: int, shape: dict[str, int]) -> ReidConfig:
    """RGBNT201's recipe on generated images; CLIP ViT-B/16 on a GPU, tiny_vit on a CPU."""
    on_gpu = device.type == "cuda"
    parsed = parse_config(
        {
            "task": "reid",
            "data": {
                "generate": shape,
                "pipeline": "cached",
                "height": 256 if on_gpu else 64,
                "width": 128 if on_gpu else 32,
                "batch_size": 64 if on_gpu else 8,
                "instances": 8 if on_gpu else 2,
                "workers": os.cpu_count() or 1,
            },
            "backbone": {
                "name": "clip_vit_b16" if on_gpu else "tiny_vit",
                "weights": "random",
                "patch": 8,
            },
            "sdtps": {"aggregation": "single"},
            "train": {
                "epochs": epochs,
                "eval_every": 5,
                "amp": "bf16" if on_gpu else "off",
                "compile": on_gpu,
                "device": device.type,
            },
        }
    )
    assert isinstance(parsed, ReidConfig)
    return parsed
