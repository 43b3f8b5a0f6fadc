"""Imported runs stand in tables and reports like runs of our own, and are marked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from planted import plant, planted_study

from analysis.importers import store, verb
from analysis.importers.run import LogError
from analysis.importers.store import imported_names, imported_study
from analysis.report import verb as report
from analysis.runs.collect import collect
from analysis.tables import forms
from analysis.tables.study import table, tables
from tests.analysis.importers import logs


def imported(tmp_path: Path, study: str, **texts: str) -> Path:
    place = tmp_path / "logs" / study
    place.mkdir(parents=True)
    for name, text in texts.items():
        (place / f"{name}.log").write_text(text)
    runs, _ = verb.read([place])
    kept = store.settle(runs)
    store.label_runs(kept)
    for run in kept:
        store.write(run, study, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    base = logs.demo_header(epochs=1, switches=()) + logs.demo_epoch(1, {"[moe,ori]": "55.0"})
    full = logs.demo_header(epochs=1) + logs.demo_epoch(1, {"[moe,ori]": "63.2", "ori": "60.0"})
    short = logs.demo_header(epochs=5, switches=("USE_LIF",)) + logs.demo_epoch(
        1, {"[moe,ori]": "70.0"}
    )
    return imported(tmp_path, "grid", a_base=base, b_full=full, c_short=short)


def test_a_study_is_made_of_the_logs_alone(runs: Path) -> None:
    assert imported_names(runs) == ["grid"]
    study = imported_study("grid", runs)
    assert list(study.variants) == ["a_base", "b_full", "c_short"]
    assert (study.baseline, study.seeds) == ("a_base", (1111,))
    assert study.variants["b_full"].overrides["MODEL.USE_SDTPS"] == "True"
    assert study.differences("b_full")["MODEL.USE_SDTPS"] == ("False", "True")
    assert {n: (m.direction, m.unit, m.digits) for n, m in study.metrics.items()} == {
        "mAP": ("up", "%", 1),
        "rank1": ("up", "%", 1),
        "rank10": ("up", "%", 1),
    }


def test_its_tables_print_what_the_logs_print(runs: Path) -> None:
    study = imported_study("grid", runs)
    collected = collect([study], runs)
    main = table(collected, study, study.tables[0])
    assert main.cell("a_base", "best/mAP").plain == "55.0"
    assert main.cell("b_full", "best/mAP").plain == "63.2"
    assert main.cell("b_full", "best/mAP").rank == 1
    assert main.cell("c_short", "best/mAP").kind == "state"  # it ended at epoch 1 of 5: no result
    text = forms.to_markdown(main)
    assert "the log ends at epoch 1 of 5" in text and "Imported from other people's logs." in text
    assert "selected on the test split" in text  # DeMo selects on the test split
    components = table(collected, study, study.tables[1])
    assert components.cell("b_full", "SDTPS").text == "✓"
    for made in tables(collected, study):
        forms.to_latex(made)
    report.write(collected, runs / "report.html")  # without a manifest
    text = (runs / "report.html").read_text()
    assert '"63.2"' in text and "a_base" in text
    with pytest.raises(LogError, match="Did you mean 'grid'"):
        imported_study("gird", runs)


def test_imported_runs_stand_beside_planned_ones_and_are_marked(tmp_path: Path) -> None:
    text = logs.demo_header(epochs=1) + logs.demo_epoch(1, {"[moe,ori]": "63.2"})
    runs = imported(tmp_path, "demo", theirs=text)
    study = planted_study("demo", ["ours"], seeds=(0,))
    plant(runs, study, "ours", 0)
    collected = collect([study], runs)
    assert [(run.variant, run.imported) for run in collected.runs] == [
        ("ours", False),
        ("theirs", True),
    ]


@pytest.mark.real_data
def test_grids_of_real_logs_give_their_tables_and_report(tmp_path: Path) -> None:
    data = os.environ.get("SDTPS_REAL_DATA")
    if not data:
        pytest.skip("SDTPS_REAL_DATA is not set")
    found, complaints = verb.read([Path(data) / "demo_logs"])
    assert not complaints
    for name, members in store.by_study(found).items():
        store.label_runs(members)
        for run in store.settle(members):
            store.write(run, name, tmp_path)
    studies = [imported_study(name, tmp_path) for name in imported_names(tmp_path)]
    collected = collect(studies, tmp_path)
    assert len(studies) == 5 and len(collected.runs) == 32
    assert sum(run.state == "completed" for run in collected.runs) == 28
    report.write(collected, tmp_path / "report.html")
    vehicles = next(s for s in studies if s.name.startswith("MSVR310"))
    shown = table(collected, vehicles, vehicles.tables[0])
    assert [row.cells[1].kind for row in shown.rows] == ["number"] * len(vehicles.variants)
    assert shown.cell("01_baseline", "best/mAP").text == "22.9"
    assert shown.cell("01_baseline", "last/mAP").text == "22.6"
