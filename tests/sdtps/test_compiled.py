"""`train.compile: true` completes a run of either task and trains what it trains without.

The compiler's front end is what breaks on a model's code; the code generator behind it takes a minute
and a C++ compiler, so the captured graphs are run as they are.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from sdtps.training.attempt import execute
from tests.sdtps.small import planted, reid, retrieval

GUMBEL = {"decision": "gumbel_ste", "mask": "log", "no_grad": "none"}
DEEPER = {"backbone": {"depth": 2}}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "reid": (reid, {}),
    "reid gumbel": (reid, {"sdtps": {**GUMBEL, "aggregation": "single"}}),
    "reid soft": (reid, {"sdtps": {"decision": "soft"}}),
    "reid demo": (reid, {**DEEPER, "sdtps": {"enabled": False}, "fusion": {"kind": "hdm_atmoe"}}),
    "retrieval gumbel": (retrieval, {"sdtps": GUMBEL}),
}


def losses(path: Path, case: str, **train: Any) -> list[float]:
    configured, sections = CASES[case]
    train = {"epochs": 1, "max_steps": 3, "log_every": 1, "amp": "off", **train}
    optim = {"schedule": "constant", "lr": 1e-3, "backbone_lr": None, "milestones": []}
    folder = planted(path, configured(**sections, train=train, optim=optim))
    assert execute(folder.path) == "completed"
    return [row["loss"] for row in folder.resolved_metrics() if row["kind"] == "train"]


@pytest.mark.parametrize("case", CASES)
def test_a_compiled_run_trains_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    counted = Mock(side_effect=functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr(torch, "compile", counted)
    torch.compiler.reset()
    of_compiled = losses(tmp_path / "compiled", case, compile=True)
    assert counted.call_count > 1
    plain = losses(tmp_path / "plain", case)
    assert plain and of_compiled == pytest.approx(plain, rel=1e-4)
