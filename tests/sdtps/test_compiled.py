"""`train.compile: true` completes a run of either task and trains what it trains without.

The compiler's front end is what breaks on a model's code; the code generator behind it takes a minute
and a C++ compiler, so the captured graphs are run as they are.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from sdtps.config import identity, parse_config
from sdtps.run.folder import RunFolder
from sdtps.training.job import execute

TRAIN = {"epochs": 1, "log_every": 1, "amp": "off"}
OPTIM = {"schedule": "constant", "lr": 1e-3}
REID: dict[str, Any] = {
    "data": {
        "generate": {"train_pids": 4, "test_pids": 2, "images_per_camera": 2},
        "height": 32,
        "width": 16,
        "batch_size": 4,
        "instances": 2,
        "workers": 0,
    },
    "backbone": {"name": "tiny_vit", "weights": "random", "patch": 4, "width": 16, "depth": 2},
    "optim": {**OPTIM, "backbone_lr": None},
}
RETRIEVAL: dict[str, Any] = {
    "task": "retrieval",
    "data": {
        "generate": {"train_images": 8, "dev_images": 4, "test_images": 4},
        "batch_size": 8,
        "test_batch_size": 8,
        "max_words": 12,
        "max_dense_words": 24,
        "workers": 0,
    },
    "image_encoder": {"name": "tiny_vit", "size": 32, "patch": 4, "width": 16, "depth": 2, "heads": 2},
    "text_encoder": {"name": "tiny_bert", "width": 16, "depth": 2, "heads": 2},
    "matching": {"embed": 16},
    "optim": OPTIM,
}
GUMBEL = {"decision": "gumbel_ste", "mask": "log", "no_grad": "none"}
CASES = {
    "reid": REID,
    "reid gumbel": {**REID, "sdtps": {**GUMBEL, "aggregation": "single"}},
    "reid soft": {**REID, "sdtps": {"decision": "soft"}},
    "reid demo": {**REID, "sdtps": {"enabled": False}, "fusion": {"kind": "hdm_atmoe"}},
    "retrieval": RETRIEVAL,
    "retrieval gumbel": {**RETRIEVAL, "sdtps": GUMBEL},
}


def losses(path: Path, tree: dict[str, Any], **train: Any) -> list[float]:
    config = parse_config({**tree, "train": {**TRAIN, **train}})
    folder = RunFolder(path)
    folder.create(config, {"study": "s", "variant": "v", "seed": 0, "identity": identity(config, 0)})
    assert execute(folder.path) == "completed"
    return [row["loss"] for row in folder.resolved_metrics() if row["kind"] == "train"]


@pytest.mark.parametrize("case", CASES)
def test_a_compiled_run_trains_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    compiled = 0
    whole = functools.partial(torch.compile, backend="eager")

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return whole(*arguments, **options)

    monkeypatch.setattr(torch, "compile", counted)
    torch.compiler.reset()
    found = losses(tmp_path / "compiled", CASES[case], compile=True)
    assert compiled > 1
    plain = losses(tmp_path / "plain", CASES[case])
    assert found and found == pytest.approx(plain, rel=1e-4)
