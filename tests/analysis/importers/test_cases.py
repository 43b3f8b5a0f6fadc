"""Files on which an importer once went wrong, each read right or refused by name (cases.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.cli import main
from analysis.importers import store, verb
from analysis.importers.mapped import Options
from analysis.importers.run import ImportedRun, LogError

CASES = Path(__file__).parent / "cases"
EXPECTED = yaml.safe_load(CASES.with_suffix(".yaml").read_text(encoding="utf-8"))


def read(case: dict[str, Any], tmp_path: Path) -> tuple[dict[str, ImportedRun], list[str]]:
    """The runs by "variant seed", and what was not read."""
    as_ = case.get("as")
    if as_ and "\n" in as_:
        (tmp_path / "mapping.yaml").write_text(as_)
        as_ = str(tmp_path / "mapping.yaml")
    how = verb.how(as_, Options(**case.get("options", {})))
    runs, complaints = verb.read([CASES / case["case"]], how)
    kept = [run for study in store.by_study(runs).values() for run in store.settle(study)]
    return {f"{run.variant} {run.seed}": run for run in kept}, complaints


def fact(run: ImportedRun, key: str) -> Any:
    """What is known of a run by a key of cases.yaml."""
    known = {
        "best": run.best and run.best.get("epoch"),
        "best_step": run.best and run.best["step"],
        "epochs": run.facts["epochs"],
        "steps": [row["step"] for row in run.rows],
        "directions": {name: metric.direction for name, metric in run.metrics.items()},
        "final": {"mAP": (run.final or {}).get("mAP")},
    }
    if key in known or hasattr(run, key):
        return known[key] if key in known else getattr(run, key)
    kind, name = ("train", key[6:]) if key.startswith("train:") else ("eval", key)
    rows = [row for row in run.rows if row["kind"] == kind and name in row]
    return [[row.get("epoch"), round(row[name], 6)] for row in rows]


@pytest.mark.parametrize("case", EXPECTED["right"], ids=lambda case: case["case"])
def test_it_is_read_right(case, tmp_path):
    runs, complaints = read(case, tmp_path)
    assert not complaints
    assert set(runs) == set(case["runs"])
    for name, facts in case["runs"].items():
        assert {key: fact(runs[name], key) for key in facts} == facts


@pytest.mark.parametrize("case", EXPECTED["refused"], ids=lambda case: case["case"])
def test_it_is_refused_by_name(case, tmp_path):
    _, complaints = read(case, tmp_path)
    for word in case["names"]:
        assert word in "\n".join(complaints)


def test_two_data_sets_are_two_studies(tmp_path):
    path = CASES / "06_two_data_sets_one_table"
    assert {run.study for run in verb.read([path])[0]} == {"ToyA", "ToyB"}
    with pytest.raises(LogError, match="2 data sets"):
        store.by_study(verb.read([path], study="both")[0])


@pytest.mark.parametrize(("split", "shown"), [(None, "test"), ("val", "val")])
def test_laps_validates_on_its_test_split_unless_somebody_says_otherwise(split, shown, tmp_path):
    case = {"case": "b11_laps_f30k", "options": {"split": split}}
    runs, _ = read(case, tmp_path)
    assert [run.selected_on for run in runs.values()] == [shown]


def test_a_folder_with_a_file_that_is_not_read_ends_with_1(tmp_path, capsys):
    assert main(["import", str(CASES / "b40_mixed"), "--runs-dir", str(tmp_path)]) == 1
    assert "torchreid/train.log" in capsys.readouterr().err
    assert len([*tmp_path.rglob("run.json")]) == 1
