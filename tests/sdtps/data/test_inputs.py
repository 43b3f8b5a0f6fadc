"""Data and weights are looked at before anything is submitted, and each mistake is told by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ablations.cli import main
from sdtps.data.inputs import look, look_at
from sdtps.models.backbones import build_backbone
from tests.sdtps import small


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SDTPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SDTPS_DATA_ROOT", raising=False)
    return tmp_path / "cache"


def config(weights: Path | str, **backbone: Any) -> Any:
    own = {"weights": str(weights), "camera_embedding": False, **backbone}
    return small.reid(backbone=own)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    encoder = build_backbone(config("random").backbone, 32, 16, 0)
    torch.save({"model_state_dict": encoder.state_dict()}, tmp_path / "w.pt")
    return tmp_path / "w.pt"


def test_good_weights_are_loaded_once_and_then_remembered(weights: Path, cache: Path) -> None:
    assert look(config(weights)).mistakes == []
    assert look(config(weights)).weights == {"backbone": str(weights)}
    assert len(list(cache.glob("checked-*"))) == 1
    weights.write_bytes(weights.read_bytes()[:-100])  # changed: looked at again
    assert "truncated" in look(config(weights)).mistakes[0]


def test_missing_weights_may_lie_where_the_jobs_run(tmp_path: Path) -> None:
    found = look(config(tmp_path / "nowhere.pt"), deep=False)
    assert not found.mistakes and "backbone.weights: weights" in found.unseen[0]
    assert "SDTPS_WEIGHTS" in found.unseen[0]


@pytest.mark.parametrize("deep", [True, False])
def test_files_that_are_no_weights_are_told_without_torch_too(tmp_path: Path, deep: bool) -> None:
    """Their kinds are in test_weights.py."""
    (tmp_path / "w.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    (mistake,) = look(config(tmp_path / "w.pt"), deep=deep).mistakes
    assert mistake.startswith(f"backbone.weights: {tmp_path / 'w.pt'}") and "Git LFS pointer" in mistake


def test_nan_and_another_architecture_are_told_before_training(weights: Path) -> None:
    (mistake,) = look(config(weights, width=32)).mistakes
    assert "of another shape" in mistake and "the model has (1, 32)" not in mistake.split("\n")[0]
    state = torch.load(weights)["model_state_dict"]
    state["norm.weight"][0] = torch.nan
    torch.save(state, weights)
    (mistake,) = look(config(weights)).mistakes
    assert "1 with NaN or infinite values: norm.weight" in mistake
    assert look(config(weights), deep=False).mistakes == []  # only its first bytes were read


def test_a_batch_that_the_training_split_cannot_fill_is_told() -> None:
    wide = config("random").data.model_copy(update={"batch_size": 16})
    found = look(config("random").model_copy(update={"data": wide}))
    assert "= 8 identities, the training split has 6" in found.mistakes[0]


def test_what_several_variants_read_alike_is_looked_at_once(weights: Path) -> None:
    one = config(weights)
    same = one.model_copy(update={"optim": one.optim.model_copy(update={"lr": 0.1})})
    assert len(look_at([one, same, config("random")])) == 2


STUDY = """\
study: own
task: reid
seeds: [0]
baseline: a
varies: [sdtps, backbone]
overrides: {data.generate: {seed: 1}, backbone.weights: random}
metrics: {mAP: {direction: up}}
variants:
  a: {}
  b: {backbone.weights: WEIGHTS}
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "own.yaml").write_text(STUDY.replace("WEIGHTS", str(tmp_path / "w.pt")))
    (tmp_path / "w.pt").write_bytes(b"<!doctype html>")
    return tmp_path / "own.yaml"


def test_the_verb_counts_and_says_what_is_wrong(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", str(study), "--variant", "a"]) == 0
    assert "generated: 24 train pids" in capsys.readouterr().out
    assert main(["data", str(study)]) == 1
    assert "mistake: backbone.weights" in capsys.readouterr().out
    assert main(["data", str(study), "--json"]) == 1
    looks = json.loads(capsys.readouterr().out)
    assert [bool(entry["mistakes"]) for entry in looks] == [False, True]


def test_a_submission_here_is_refused_and_one_elsewhere_warned(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["submit", str(study), "--runs-dir", str(tmp_path), "--no-audit"]
    assert main([*words, "--executor", "local"]) == 2
    said = capsys.readouterr().err
    assert "web page (HTML)" in said and "nothing was started" in said
    assert main([*words, "--executor", "slurm", "--dry-run", "--json"]) == 0
    assert "web page (HTML)" in json.loads(capsys.readouterr().out)["warnings"][-1]
