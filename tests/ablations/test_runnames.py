from __future__ import annotations

from pathlib import Path

import pytest

from ablations.study.arguments import find_run
from ablations.study.manifest import load_study
from sdtps.run.locations import find_folder
from sdtps.system.errors import RunError


def make_run(runs: Path, name: str) -> Path:
    folder = runs / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    return folder


def test_a_run_is_found_by_folder_name_or_part(tmp_path: Path) -> None:
    one = make_run(tmp_path, "small/topk/seed0-aaaa")
    make_run(tmp_path, "small/topk/seed1-bbbb")
    make_run(tmp_path, "_trials/small/topk/seed0-cccc")
    assert find_folder(str(one), tmp_path) == one
    assert find_folder("small/topk/seed0-aaaa", tmp_path) == one
    assert find_folder("topk/seed0", tmp_path) == one
    with pytest.raises(RunError, match=r"(?s)'topk' names 2 runs.*seed0-aaaa.*seed1-bbbb"):
        find_folder("topk", tmp_path)
    with pytest.raises(RunError, match=r"(?s)'soft' names no run.*small/topk/seed0-aaaa"):
        find_folder("soft", tmp_path)
    with pytest.raises(RunError, match="There are no runs"):
        find_folder("x", tmp_path / "none")


def test_a_planned_run_is_found_by_variant_and_seed(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(
        "study: small\nseeds: [0, 1]\nbaseline: 1\nvaries: [optim.lr]\n"
        "variants: {1: {}, w/o x: {optim.lr: 1}}\n"
    )
    study = load_study(path)
    assert find_run("1", [study]).seed == 0
    assert find_run("1/seed1", [study]).seed == 1
    assert find_run("w/o x/1", [study]).name == study.runs()[3].name
    assert find_run(study.runs()[2].identity, [study]) == study.runs()[2]
    with pytest.raises(RunError, match="'seed0' names 2 runs"):
        find_run("seed0", [study])
