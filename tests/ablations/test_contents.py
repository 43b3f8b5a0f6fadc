"""A run is its contents: one trained on other data is not the same run, whatever it is called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ablations.cli import main
from sdtps.config.reid import GeneratedReidConfig
from sdtps.data.generated import generate_rgbnt201
from sdtps.run.folder import RunFolder
from tests.ablations.copies import TRAINING, fork_modules

MANIFEST = """
study: {name}
task: reid
seeds: [0]
baseline: topk
varies: [train.init]
variants: {{topk: {{}}{more}}}
overrides:
  data: {{height: 32, width: 16, batch_size: 4, instances: 2, workers: 0}}
  backbone: {{name: tiny_vit, weights: random, patch: 8, width: 16, depth: 1, heads: 2}}
  train: {{epochs: 1, amp: 'off', device: cpu, threads: 1}}
metrics: {{mAP: {{direction: up}}}}
tables: [{{name: main, kind: main, metrics: [mAP]}}]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two data sets of one layout, and one manifest under two names."""
    monkeypatch.chdir(tmp_path)
    fork_modules(monkeypatch, *TRAINING)
    monkeypatch.setenv("SDTPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SDTPS_RUNS_DIR", raising=False)
    for name, seed in (("A", 1), ("B", 2)):
        size = GeneratedReidConfig(train_pids=4, test_pids=2, seed=seed)
        generate_rgbnt201(size, 32, 16, tmp_path).rename(name)
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(MANIFEST.format(name=name, more=""))
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_second_data_root_is_another_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steer = ("--executor", "local", "--no-audit")
    assert main(["submit", "one.yaml", "--data-root", "A", *steer]) == 0
    (run,) = (place / "runs/one/topk").iterdir()
    recorded = RunFolder(run)
    digest = recorded.run()["data"]["digest"]
    assert recorded.result()["origin"]["data"] == digest  # type: ignore[index]

    assert answer(capsys, "plan", "two.yaml", "--data-root", "A")["take_over"] == 1
    other = answer(capsys, "plan", "two.yaml", "--data-root", "B")
    assert other["submit"] == 1 and digest[:12] in other["runs"][0]["reason"]

    same = answer(capsys, "plan", "one.yaml", "--data-root", "B")
    assert same["submit"] == 0 and run.name in same["warnings"][0]
    assert main(["submit", "one.yaml", "--data-root", "B", *steer]) == 2
    assert run.name in capsys.readouterr().err and recorded.run()["data"]["digest"] == digest
    again = answer(capsys, "plan", "one.yaml", "--data-root", "B", "--retry", "stale")
    assert again["submit"] == 1
    shutil.move(place / "A", place / "elsewhere")
    assert answer(capsys, "plan", "one.yaml", "--data-root", "elsewhere")["warnings"] == []
    assert answer(capsys, "plan", "one.yaml", "--data-root", "nowhere")["warnings"] == []

    image = next((place / "elsewhere").rglob("*.jpg"))
    content = bytearray(image.read_bytes())
    content[-3] ^= 1
    image.write_bytes(content)
    changed = answer(capsys, "plan", "one.yaml", "--data-root", "elsewhere")
    assert "other data" in changed["warnings"][0]


def test_what_init_cannot_be_is_told_by_plan(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An optimiser's state alone, a run of another width, a path that is not there (D8)."""
    import torch

    torch.save({"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": []}, place / "adam.pt")
    (place / "wide.yaml").write_text(
        MANIFEST.format(name="wide", more="").replace("width: 16, depth", "width: 32, depth")
    )
    assert main(["submit", "wide.yaml", "--data-root", "A", "--executor", "local", "--no-audit"]) == 0
    wide = next((place / "runs/wide/topk").iterdir())
    inits = {"a": "adam.pt", "b": f"runs/wide/topk/{wide.name}", "c": "runs/none"}
    more = "".join(f", {name}: {{train.init: {file}}}" for name, file in inits.items())
    (place / "one.yaml").write_text(MANIFEST.format(name="one", more=more))
    for words in (("plan",), ("data",)):
        capsys.readouterr()
        main([*words, "one.yaml", "--data-root", "A"])
        text = capsys.readouterr().out
        for told in ("adam.pt:", f"{wide.name}", "the model's (64,)", "runs/none: there is"):
            assert told in text, (words, told)
