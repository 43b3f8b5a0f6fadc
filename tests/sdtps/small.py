"""Runs that train in seconds on images that are generated: both tasks, one process or two."""

from __future__ import annotations

import multiprocessing
import os
import socket
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from sdtps.config import AnyConfig, ReidConfig, RetrievalConfig, identity, parse_config
from sdtps.config.load import merged
from sdtps.run.folder import RunFolder
from sdtps.training.attempt import execute

# Processes are forks of one that has imported what takes seconds.
multiprocessing.set_forkserver_preload(["torch._dynamo"])
TIMED = {"images_per_s", "memory_mib", "attempt", "time"}  # what differs between equal runs
TINY = {"width": 16, "depth": 1, "heads": 2}
REID: dict[str, Any] = {
    "data": {
        "generate": {"train_pids": 6, "test_pids": 4, "images_per_camera": 3},
        **{"height": 32, "width": 16, "batch_size": 8, "instances": 2, "pad": 2},
        **{"test_batch_size": 5, "workers": 0},
    },
    "backbone": {"name": "tiny_vit", "weights": "random", "patch": 4, "embed": 16, **TINY},
    "train": {"amp": "off", "epochs": 1},
}
RETRIEVAL: dict[str, Any] = {
    "task": "retrieval",
    "data": {
        "generate": {"train_images": 8, "dev_images": 4, "test_images": 6},
        **{"batch_size": 8, "test_batch_size": 12, "max_words": 16, "max_dense_words": 40},
        "workers": 0,
    },
    "image_encoder": {"name": "tiny_vit", "size": 16, "patch": 4, **TINY},
    "text_encoder": {"name": "tiny_bert", **TINY},
    "matching": {"embed": 16},
    "optim": {"lr": 1e-3, "milestones": [1]},
    "train": {"epochs": 2, "log_every": 1, "checkpoint_every_steps": 2},
    "eval": {"also_dense_text": ["own", "shuffled", "none"]},
}
# The arrangements of the released codes.
LAPS: dict[str, Any] = {
    "sdtps": {"score": "attention_sum", "normalise": "none", "aggregation": "single"},
    "matching": {"form": "laps", "alignment": "mean", "dense_text": "none", "eval_dense_text": "none"},
}
RELEASED: dict[str, Any] = {
    "sdtps": {**LAPS["sdtps"], "no_grad": "selection"},
    "matching": {"form": "released", "alignment": "mean"},
    "loss": {"ratio": "released"},
}


def reid(**sections: dict[str, Any]) -> ReidConfig:
    config = parse_config(merged(REID, sections))
    assert isinstance(config, ReidConfig)
    return config


def retrieval(**sections: dict[str, Any]) -> RetrievalConfig:
    config = parse_config(merged(RETRIEVAL, sections))
    assert isinstance(config, RetrievalConfig)
    return config


def planted(path: Path, config: AnyConfig, seed: int = 0) -> RunFolder:
    """The folder of a run that has not begun."""
    folder = RunFolder(path)
    run = {"study": "s", "variant": "v", "seed": seed, "identity": identity(config, seed)}
    folder.create(config, run)
    return folder


def comparable(folder: RunFolder) -> list[dict[str, Any]]:
    """All that was logged, without what differs between equal runs."""
    rows = [row for row in folder.resolved_metrics() if row["kind"] != "event"]
    return [{k: v for k, v in row.items() if k not in TIMED} for row in rows]


def spawn(folder: RunFolder, **environment: str) -> BaseProcess:
    """The run as a process."""
    arguments = (folder.path, {**os.environ, **environment})
    job = multiprocessing.get_context("forkserver").Process(target=attempt, args=arguments)
    job.start()
    return job


def attempt(path: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    execute(path)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def train_in_two_processes(folder: RunFolder) -> None:
    """Over gloo."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    jobs = [spawn(folder, **place, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(2)]
    for job in jobs:
        job.join(timeout=300)
    assert [job.exitcode for job in jobs] == [0, 0]
