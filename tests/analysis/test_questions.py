"""The verbs `attribute` and `rounds` on planted runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from operator import truediv
from pathlib import Path

import numpy as np
import pytest

from ablations.study.attribution import Changes, design
from ablations.study.manifest import load_study
from ablations.study.model import Study
from analysis.cli import main
from analysis.figures.figure import figures
from analysis.paper.build import Options, build
from analysis.results.attribution import attribute, sentences
from analysis.runs.collect import collect
from tests.analysis.planted import plant

HEAD = """\
study: small
task: reid
seeds: [0, 1]
baseline: topk
varies: [sdtps.decision, sdtps.mask, sdtps.temperature, sdtps.noise_clamp]
metrics: {mAP: {direction: up}}
variants:
  topk: {sdtps.mask: none}
  gumbel: {sdtps.decision: gumbel_ste, sdtps.mask: subtract_1e10, sdtps.temperature: 5.0}
"""
DECISION, MASK = "sdtps.decision", "sdtps.mask"


@pytest.fixture
def manifest(tmp_path: Path) -> Callable[[str], Study]:
    def write(more: str) -> Study:
        path = tmp_path / "small.yaml"
        path.write_text(HEAD + more)
        return load_study(path)

    return write


def plant_cells(runs_dir: Path, study: Study, level: Callable[[Changes], float]) -> None:
    """Every cell of the study's first attribution; 0 is good, 1 is broken."""
    rng = np.random.default_rng(1)
    planned = design(study, study.attributions[0])
    for cell in planned.cells:
        if cell.equals or cell.impossible:
            continue
        for seed in planned.study.seeds:
            score = 0.8 - 0.6 * level(cell.changes) + rng.normal(0, 0.005)
            plant(runs_dir, planned.study, cell.name, seed, scores={"mAP": [0.1, score]})


def test_both_changes_are_named_together_and_the_inert_one_is_not(
    manifest: Callable[[str], Study], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = manifest("attributions: [{good: topk, broken: gumbel}]\n")
    plant_cells(tmp_path / "runs", study, lambda s: float({DECISION, MASK} <= s))
    words = ["attribute", str(study.path), "--runs-dir", str(tmp_path / "runs")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert f"{DECISION} and {MASK} act together" in printed
    assert "sdtps.temperature: no effect" in printed
    assert main([*words, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["named"] == [DECISION, MASK]
    assert found["patterns"]["sdtps.temperature"] == "none"
    assert {cell["equals"] for cell in found["cells"]} == {"", "topk", "topk+mask"}
    assert len([e for e in found["effects"] if e["starred"]]) == 2
    assert main(["tables", str(study.path), "--runs-dir", str(tmp_path / "runs")]) in (0, 1)
    printed = capsys.readouterr().out
    assert f"{DECISION} and {MASK} act together" in printed and "equals topk +mask" in printed
    (drawn,) = figures(collect([study], tmp_path / "runs"), study)
    assert drawn.problem is None and drawn.files["pdf"].startswith(b"%PDF")
    assert set(drawn.runs) == {cell["name"] for cell in found["cells"] if not cell["equals"]}
    shown = Options(allow=("missing",), evidence=False, report=False)
    build([study], [], tmp_path / "runs", tmp_path / "generated", shown)
    text = (tmp_path / "generated" / "results.tex").read_text()
    for name in ("tables/small-topk-gumbel.tex", "figures/small-topk-gumbel.tex"):
        assert rf"\input{{\generated/{name}}}" in text and (tmp_path / "generated" / name).is_file()


def test_missing_runs_are_counted_and_the_command_to_run_them_is_given(
    manifest: Callable[[str], Study], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = manifest("")
    words = ["attribute", str(study.path), "topk", "gumbel", "--runs-dir", str(tmp_path / "runs")]
    assert main(words) == 1
    assert "30 runs missing" in (printed := capsys.readouterr().out)
    assert "--submit" in printed


def test_a_search_by_explosions_goes_on_from_its_runs(
    manifest: Callable[[str], Study], tmp_path: Path
) -> None:
    study = manifest("attributions: [{good: topk, broken: gumbel, explodes: true}]\n")
    runs_dir, spec = tmp_path / "runs", study.attributions[0]
    rounds = 0
    while not (found := attribute(study, spec, runs_dir)).decided:
        rounds += 1
        cells = {cell.name: cell.changes for cell in found.attribution.cells}
        for run in found.runs:
            if run.state == "planned":
                peak = 50.0 if {DECISION, MASK} <= cells[run.variant] else 2.0
                line = partial(truediv, peak)
                plant(runs_dir, found.study, run.variant, run.seed, loss=line)
    assert found.search is not None and rounds <= 6
    assert [set(s) for s in found.search.named] == [{DECISION, MASK}]
    assert len(found.study.seeds) == 3


@pytest.mark.parametrize(
    ("state", "text"),
    [("diverged", "good variant explodes"), ("failed", "sdtps retry")],
)
def test_a_good_end_that_explodes_is_refused_and_a_failed_one_is_to_run_again(
    manifest: Callable[[str], Study], tmp_path: Path, state: str, text: str
) -> None:
    study = manifest("attributions: [{good: topk, broken: gumbel, explodes: true}]\n")
    planned = design(study, study.attributions[0])
    for run in planned.study.runs():
        plant(tmp_path / "runs", planned.study, run.variant, run.seed, state=state, stop=(1, 3))
    assert text in sentences(attribute(study, study.attributions[0], tmp_path / "runs"))[-1]


ROUNDS = """\
  near: {sdtps.mask: log}
rounds: {looks: [5, 8, 12], margin: 1.0}
tables: [{name: main, kind: leave_one_out}]
"""


def test_rounds_stop_decided_variants_and_tables_print_the_p_of_the_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(HEAD.replace("[0, 1]", str(list(range(12)))) + ROUNDS)
    study, runs_dir = load_study(path), tmp_path / "runs"
    rng = np.random.default_rng(5)
    level = {"topk": 0.7, "gumbel": 0.2, "near": 0.71}
    for run in study.runs():
        score = level[run.variant] + rng.normal(0, 0.02)
        plant(runs_dir, study, run.variant, run.seed, scores={"mAP": [0.1, score]})
    words = ["rounds", str(path), "--runs-dir", str(runs_dir)]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seeds_of"] == {"topk": 8, "gumbel": 5, "near": 8}
    states = {verdict["variant"]: verdict["state"] for verdict in found["verdicts"]}
    assert states == {"gumbel": "starred", "near": "open"}
    assert main(words) == 0
    assert "gumbel" in capsys.readouterr().out
    assert main(["tables", *words[1:]]) in (0, 1)
    printed = capsys.readouterr().out
    assert "looks of 5, 8, 12 seeds" in printed
    assert "*" in next(line for line in printed.splitlines() if "gumbel" in line)
