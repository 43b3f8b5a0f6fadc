"""A run folder never loses, doubles or half-writes anything."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sdtps.config import ReidConfig, identity
from sdtps.run.folder import RunFolder, find_runs
from sdtps.system.errors import RunError


def row(attempt: int, step: int, kind: str = "train", **values: float) -> dict:
    return {"attempt": attempt, "kind": kind, "epoch": 1, "step": step, **values}


def test_metrics_stay_strict_json_when_a_loss_is_not_finite(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.append_metrics(row(1, 1, loss=math.nan, grad_norm=math.inf))
    read = json.loads(run.metrics_file.read_text(), parse_constant=pytest.fail)
    assert read["loss"] is None
    assert read["nonfinite"] == {"loss": "nan", "grad_norm": "inf"}


def test_a_torn_last_line_is_closed_and_told(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.append_metrics(row(1, 1, loss=2.0))
    with run.metrics_file.open("a") as stream:
        stream.write('{"attempt": 1, "kind": "tr')  # killed here
    run.append_metrics(row(2, 2, loss=1.0))
    assert [r["step"] for r in run.metrics()] == [1, 2]
    assert run.torn_lines() == [2]


def test_a_later_attempt_replaces_what_was_logged_after_its_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in range(1, 51):
        run.append_metrics(row(1, step, loss=1.0))
    for step in range(41, 46):  # resumed at 40, has come to 45
        run.append_metrics(row(2, step, loss=2.0))
    rows = run.resolved_metrics()
    assert [r["step"] for r in rows] == list(range(1, 46))
    assert {r["loss"] for r in rows if r["step"] > 40} == {2.0}


def test_a_run_completes_once(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_result({"attempt": 1})
    with pytest.raises(RunError, match="completes once"):
        run.write_result({"attempt": 2})
    assert run.result() == {"attempt": 1}


def test_torn_status_is_no_status(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.status_file.write_text('{"state": "runn')
    assert run.status() is None


def test_configuration_survives_the_disk(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "study" / "v" / "seed0-abc")
    config = ReidConfig()
    run.create(config, {"seed": 0})
    assert run.config() == config
    assert identity(run.config(), 0) == identity(config, 0)
    assert [r.path for r in find_runs(tmp_path)] == [run.path]


def test_a_resume_noted_at_the_checkpoints_step_hides_nothing(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.append_metrics({"attempt": 1, "kind": "train", "epoch": 1, "step": step, "loss": 1.0})
    folder.append_metrics({"attempt": 2, "kind": "event", "epoch": 1, "step": 2, "event": "resumed"})
    folder.append_metrics({"attempt": 2, "kind": "train", "epoch": 1, "step": 3, "loss": 2.0})
    trained = [row for row in folder.resolved_metrics() if row["kind"] == "train"]
    assert [(row["step"], row["attempt"]) for row in trained] == [(1, 1), (2, 1), (3, 2)]
