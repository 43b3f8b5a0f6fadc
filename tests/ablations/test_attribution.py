"""The cells between two variants; attributions, rounds and budgets in a manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.cli import main
from ablations.study.attribution import design
from ablations.study.manifest import load_study
from ablations.study.model import Study
from sdtps.system.errors import ManifestError

HEAD = """\
study: small
task: reid
seeds: [0, 1]
baseline: topk
varies: [sdtps.decision, sdtps.mask, sdtps.temperature, sdtps.noise_clamp, optim.lr]
metrics: {mAP: {direction: up}, rank1: {direction: up}}
resources: {gpus: 1, timeout_min: 60}
variants:
  topk: {sdtps.mask: none}
  gumbel: {sdtps.decision: gumbel_ste, sdtps.mask: subtract_1e10, sdtps.temperature: 5.0}
  other: {sdtps.mask: log, optim.lr: 0.1}
"""


def load(folder: Path, text: str) -> Study:
    path = folder / "small.yaml"
    path.write_text(text)
    return load_study(path)


def test_cells_have_readable_names_and_a_setting_that_does_nothing_makes_an_equal_cell(
    tmp_path: Path,
) -> None:
    study = load(tmp_path, HEAD + "attributions: [{good: topk, broken: gumbel}]\n")
    found = design(study, study.attributions[0])
    assert set(found.changes) == {"sdtps.decision", "sdtps.mask", "sdtps.temperature"}
    equal = {cell.name: cell.equals for cell in found.cells if cell.equals}
    assert equal == {"topk+temperature": "topk", "gumbel-decision": "topk+mask"}
    assert set(found.study.variants) == {
        *("topk", "topk+decision", "topk+mask", "gumbel-mask", "gumbel-temperature", "gumbel"),
    }
    assert found.study.name == "small.topk.gumbel"
    assert len(found.study.runs()) == 6 * 5


def test_cells_leave_the_study_and_its_runs_as_they_were(tmp_path: Path) -> None:
    plain = load(tmp_path, HEAD)
    with_cells = load(tmp_path, HEAD + "attributions: [{good: topk, broken: gumbel}]\n")
    assert [run.name for run in plain.runs()] == [run.name for run in with_cells.runs()]
    found = design(with_cells, with_cells.attributions[0])
    own = {run.identity for run in plain.runs()}
    equal = {run.variant for run in found.study.runs() if run.identity in own}
    assert equal == {"topk", "gumbel"}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("attributions: [{good: topk, broken: gumbl}]", ["gumbl", "Did you mean 'gumbel'"]),
        ("attributions: [{good: topk, broken: topk}]", ["differ in 0 settings", "compare"]),
        ("attributions: [{good: topk, broken: gumbel, metric: map}]", ["'map'", "mAP"]),
        ("rounds: {looks: [5, 8], margin: 0.5}", ["below 12"]),
        ("rounds: {looks: [8, 5, 20], margin: 0.5}", ["must increase"]),
        ("rounds: {looks: [5, 12], margin: 0.5}", ["12 seeds", "lists 2"]),
        ("budget: {gpu_hours: 0}", ["gpu_hours"]),
    ],
)
def test_mistakes_are_named_with_the_manifest(tmp_path: Path, section: str, words: list[str]) -> None:
    with pytest.raises(ManifestError) as caught:
        load(tmp_path, f"{HEAD}{section}\n")
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("cells", ["no JSON", "{}", "[1]", '{"good": "topk", "sets": 3, "seeds": [0]}'])
def test_cells_that_attribute_did_not_give_are_a_message(
    tmp_path: Path, cells: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load(tmp_path, HEAD)
    words = ["submit", str(tmp_path / "small.yaml"), "--dry-run", "--cells", cells]
    assert main([*words, "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "--cells" in capsys.readouterr().err
