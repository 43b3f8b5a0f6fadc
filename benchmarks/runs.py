"""Whole runs: what logging costs, and the seconds of 50 epochs of RGBNT201's shape."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import cache_in, machine, seconds_now
from benchmarks.step import SyntheticTask
from sdtps.config import ReidConfig, identity, parse_config
from sdtps.data.generated import generate_rgbnt201, rgbnt201_name
from sdtps.run.folder import HEARTBEAT_SECONDS, RunFolder
from sdtps.training.device import keep_freed_memory
from sdtps.training.job import execute
from sdtps.training.loop import Loop

# 171 x 4 x 6 = 4,104 training triples (RGBNT201: 3,951) and 35 x 4 x 6 = 840 for the test (836).

ROWS_A_STEP = 3  # written for each step that is timed


@dataclass(frozen=True)
class Case:
    """A model and how often its runs log."""

    name: str
    backbone: str
    size: tuple[int, int]
    patch: int
    batch: int
    amp: str
    log_every: tuple[int, ...]


QUICK = Case("quick study", "tiny_vit", (64, 32), 8, 32, "off", (3, 10))
PERSONS = Case("RGBNT201's images", "tiny_vit", (256, 128), 16, 64, "off", (10,))
CLIP = Case("RGBNT201's recipe", "clip_vit_b16", (256, 128), 16, 64, "bf16", (10,))


def logging(
    device: torch.device, *, cases: Sequence[Case] | None = None, repeats: int = 15
) -> dict[str, Any]:
    """Seconds of a step, of a logged row and of a status, and their share of a run.

    A row is gradient norms of all groups, reading everything from the device, and appending to
    metrics.jsonl; a line of train.log comes with every tenth. status.json is written once every
    `HEARTBEAT_SECONDS`.
    """
    keep_freed_memory()
    cases = cases or ((CLIP,) if device.type == "cuda" else (QUICK, PERSONS))
    return {
        "bench": "logging",
        **machine(device),
        "cases": [measure(device, case, repeats) for case in cases],
    }


def measure(device: torch.device, case: Case, repeats: int) -> dict[str, Any]:
    """One case; rows and steps are timed in turns."""
    parsed = parse_config(
        {
            "task": "reid",
            "data": {
                "height": case.size[0],
                "width": case.size[1],
                "batch_size": case.batch,
                "instances": case.batch // 8,
            },
            "backbone": {"name": case.backbone, "weights": "random", "patch": case.patch},
            "sdtps": {"aggregation": "single"},
            "train": {"amp": case.amp},
        }
    )
    assert isinstance(parsed, ReidConfig)
    task = SyntheticTask(parsed, device)
    with tempfile.TemporaryDirectory() as name:
        loop = Loop(task, RunFolder(Path(name)), parsed, seed=0)
        training = loop.training_step
        rates = loop.schedule.apply(training.optimizer, 1, 1)

        def step() -> Any:
            done = training.forward_backward(task.batch, epoch=1)
            training.update(measure=False)
            loop.counters.step += 1
            return done

        def row() -> None:
            loss, parts = last
            norms = {"grad_norm": training.norm(task.model.parameters()), **training.group_norms()}
            written = loop.read_row(loss, parts, norms, rates, 1, None)
            written["images_per_s"] = 1.0
            loop.record(written)

        def noted() -> None:
            loop.reporter.stepped(1, loop.counters.step)

        def status() -> None:
            loop.reporter.folder.write_status("running", attempt=1, epoch=1, step=1, progress=0.5)

        seconds: dict[str, list[float]] = {"step": [], "row": [], "noted": [], "status": []}
        for turn in range(3 + repeats):
            begun = seconds_now(device)
            last = step()
            took = {"step": [seconds_now(device) - begun]}
            took["row"] = [_timed(row, device) for _ in range(ROWS_A_STEP)]
            took["noted"], took["status"] = [_timed(noted, device)], [_timed(status, device)]
            if turn >= 3:
                for key, values in took.items():
                    seconds[key] += values
    median = {key: statistics.median(values) for key, values in seconds.items()}
    return {
        "case": case.name,
        "backbone": case.backbone,
        "size": list(case.size),
        "batch": case.batch,
        "amp": case.amp,
        "seconds": median,
        "fastest": {key: min(values) for key, values in seconds.items()},
        "repeats": repeats,
        "share": {f"log_every {every}": _share(median, every) for every in case.log_every},
    }


def _share(seconds: dict[str, float], every: int) -> float:
    """Of a run's time; the status is written by another thread, and counted all the same."""
    logged = seconds["row"] / every + seconds["noted"]
    return round(logged / (seconds["step"] + logged) + seconds["status"] / HEARTBEAT_SECONDS, 5)


def _timed(do: Callable[[], None], device: torch.device) -> float:
    begun = seconds_now(device)
    do()
    return seconds_now(device) - begun


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
