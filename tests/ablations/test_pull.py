"""A pulled store: the same tables, states of its own, and nothing submitted again from it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ablations import cli
from ablations.launch import dispatch
from ablations.store import attempts, states
from ablations.store.states import run_states
from sdtps.run.folder import RunFolder
from tests.ablations import plant
from tests.ablations.fakes import Fakes


@pytest.fixture
def store(tmp_path: Path, fakes: Fakes) -> Path:
    """One completed run, one that runs, one that waits."""
    study = plant.study(tmp_path, ["ok"], seeds=3)
    runs = tmp_path / "cluster" / "runs"
    dispatch.submit(study.runs(), runs)
    name = fakes.arrays()[0]["name"]
    for index, run in enumerate(study.runs()[:2]):
        folder = RunFolder(run.folder(runs))
        attempts.write_start(folder.path, name, f"1_{index}", 0)
        folder.write_status("running", attempt=1)
        folder.append_metrics({"kind": "train", "attempt": 1, "step": 1, "epoch": 1, "loss": 0.5})
        (folder.path / "last.safetensors").write_text("weights")
    RunFolder(study.runs()[0].folder(runs)).write_result({"attempt": 1, "best": {"mAP": 0.5}})
    return runs


def test_a_store_is_pulled_while_runs_train_and_again_when_they_have_ended(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = plant.study(tmp_path, ["ok"], seeds=3)
    copy = tmp_path / "laptop"
    words = ["pull", str(store), "--runs-dir", str(copy)]
    assert cli.main(words) == 0
    assert "3 runs: 1 completed, 1 running, 1 unknown" in capsys.readouterr().out
    assert not list(copy.rglob("*.safetensors")) and not (copy / "_code").exists()
    there, here = (study.runs()[1].folder(runs) for runs in (store, copy))
    assert (here / "metrics.jsonl").read_bytes() == (there / "metrics.jsonl").read_bytes()
    status = {**(RunFolder(here).status() or {}), "heartbeat": time.time() - 10_000}
    (here / "status.json").write_text(json.dumps(status))
    assert states.from_records(here).state == "unknown"
    assert dispatch.submit(study.runs(), copy).submitted == []
    RunFolder(there).write_result({"attempt": 1, "best": {"mAP": 0.6}})
    assert cli.main([*words, "--weights"]) == 0
    assert [s.state for s in run_states(study.runs(), copy)] == ["completed", "completed", "unknown"]
    assert (here / "last.safetensors").read_text() == "weights"


def test_one_study_may_be_pulled_alone(store: Path, tmp_path: Path) -> None:
    (store / "other" / "v" / "seed0-x").mkdir(parents=True)
    copy = tmp_path / "laptop"
    assert cli.main(["pull", str(store), "--runs-dir", str(copy), "--study", "endings"]) == 0
    assert [p.name for p in copy.iterdir()] == ["endings"]


def test_what_rsync_says_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", str(tmp_path / "none"), "--runs-dir", str(tmp_path / "copy")]) == 2
    err = capsys.readouterr().err
    assert "rsync failed" in err and "No such file" in err and "resumes" in err
