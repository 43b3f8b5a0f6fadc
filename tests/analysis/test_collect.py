"""Nothing that a run did is lost on the way into the tidy table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planted import plant, plant_all, planted_study, reseal

from ablations.store.states import from_records
from analysis.runs.collect import collect
from analysis.runs.comparable import refuse_to_average
from analysis.runs.record import as_rows
from analysis.runs.rows import NOT_A_METRIC, read_rows
from analysis.tables.forms import to_csv
from analysis.tables.study import compute_table, table
from sdtps.run.folder import RunFolder
from sdtps.system.errors import AggregationError


@pytest.fixture
def study():
    return planted_study("demo", ["topk", "none", "NA"], seeds=(0, 1, 2))


def test_every_planned_run_has_a_row_whatever_became_of_it(tmp_path, study):
    plant(tmp_path, study, "topk", 0)
    plant(tmp_path, study, "topk", 1, state="diverged", stop=(3, 12), reason="loss is nan")
    plant(tmp_path, study, "topk", 2, state="failed", stop=(1, 3), reason="CUDA out of memory")
    plant(tmp_path, study, "none", 0, state="running", stop=(1, 3))
    plant(tmp_path, study, "none", 1, state="running", stop=(1, 3), silent_seconds=1e4)
    plant(tmp_path, study, "none", 2, state="queued")
    plant(tmp_path, study, "NA", 0, state="requeued", stop=(1, 3))
    plant(tmp_path, study, "NA", 1, state="cancelled", stop=(1, 3))
    runs = collect([study], tmp_path).runs
    assert [run.state for run in runs] == [
        *("completed", "diverged", "failed"),
        *("running", "interrupted", "queued"),
        *("interrupted", "cancelled", "planned"),
    ]
    assert [run.variant for run in runs] == ["topk"] * 3 + ["none"] * 3 + ["NA"] * 3
    assert (runs[1].epoch, runs[1].step) == (3, 12) and runs[2].reason == "CUDA out of memory"
    assert runs[0].best["mAP"] == 0.6 and not runs[1].best
    steps, values = runs[1].rows.series("train", "loss")
    assert list(steps) == list(range(1, 13)) and list(np.isfinite(values)) == [True] * 11 + [False]
    json.dumps(as_rows(runs), allow_nan=False)


@pytest.mark.parametrize(
    ("state", "claimed", "silent", "word"),
    [
        ("requeued", False, 1e6, "interrupted"),  # nobody holds it any more: nothing resumes it
        ("running", False, 1e6, "interrupted"),
        ("running", False, 1.0, "running"),
        ("running", True, 1e6, "unknown"),  # a claim that says nothing: only its cluster can tell
    ],
)
def test_states_are_those_of_the_record_of_life(tmp_path, study, state, claimed, silent, word):
    folder = plant(tmp_path, study, "topk", 0, state=state, stop=(1, 3), silent_seconds=silent)
    if claimed:
        folder.lock_file.write_text("{}")
    collected = collect([study], tmp_path)
    assert collected.runs[0].state == word == from_records(folder.path).state
    with pytest.raises(AggregationError, match=f"topk seed 0: {word}"):
        refuse_to_average(collected)


def test_peak_memory_is_the_most_of_any_attempt_with_a_result_or_without(tmp_path, study):
    whole, failed, old = (
        plant(tmp_path, study, "topk", seed, state=state)
        for seed, state in enumerate(("completed", "failed", "failed"))
    )
    whole.update_run(attempts=[{"attempt": 1, "peak_memory_mib": 700.0}, {"attempt": 2}])
    reseal(whole)
    failed.update_run(attempts=[{"attempt": 1, "peak_memory_mib": 300.5}])
    old.update_run(attempts=[{"attempt": 1, "peak_memory_mib": "much"}])
    collected = collect([study], tmp_path)
    assert [run.peak_memory_mib for run in collected.runs[:3]] == [700.0, 300.5, None]
    table = compute_table(collected, study)
    column = [c.key for c in table.columns].index("memory")
    row = next(r for r in table.rows if r.key == "topk")
    assert row.cells[column].value == 700.0


def _torn(folder: RunFolder) -> None:
    lines = folder.metrics_file.read_text().splitlines()
    folder.metrics_file.write_text("\n".join([lines[0], lines[1][:20], *lines[2:]]) + "\n")


def _folder(folder: RunFolder) -> None:
    folder.metrics_file.unlink()
    folder.metrics_file.mkdir()


@pytest.mark.parametrize(
    ("change", "result", "note"),
    [
        (_torn, {}, "1 unreadable line in metrics.jsonl"),
        (lambda f: f.metrics_file.unlink(), {}, "metrics.jsonl is missing or empty: no curves"),
        (lambda f: f.metrics_file.write_text(""), {}, "metrics.jsonl is missing or empty: no curves"),
        (_folder, {}, "metrics.jsonl is a directory"),
        (
            lambda f: None,
            {"best": {"epoch": 1}, "final": {"epoch": 2}},
            "result.json holds no metric",
        ),
    ],
)
def test_what_a_completed_run_lacks_is_noted(tmp_path, study, change, result, note):
    folder = plant(tmp_path, study, "topk", 0)
    change(folder)
    reseal(folder, **result)
    run = collect([study], tmp_path).runs[0]
    assert (run.state, run.notes) == ("completed", (note,))


def test_a_missing_seed_is_refused_with_the_command_that_gets_it(tmp_path, study):
    plant_all(tmp_path, study)
    shutil.rmtree(study.runs()[4].folder(tmp_path))
    collected = collect([study], tmp_path)
    with pytest.raises(AggregationError, match=r"none seed 1: not run[\s\S]*sdtps submit"):
        refuse_to_average(collected)
    (mark,) = refuse_to_average(collected, allow={"missing"})
    assert mark.kind == "missing" and mark.text == "8 of 9 planned runs have ended"
    plant(tmp_path, study, "none", 1, state="diverged", stop=(1, 4))  # a result, and no hole
    assert refuse_to_average(collect([study], tmp_path)) == []


def test_folders_that_nothing_plans_are_named(tmp_path, study):
    plant_all(tmp_path, study)
    smaller = planted_study("demo", ["topk", "none"], seeds=(0, 1, 2))
    collected = collect([smaller], tmp_path)
    assert len(collected.unplanned) == 3 and len(collected.runs) == 6
    assert not any(run.notes for run in collect([study], tmp_path, curves=False).runs)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "attempt": st.integers(1, 3),
            "kind": st.sampled_from(["train", "eval"]),
            "epoch": st.integers(0, 2),
            "step": st.integers(0, 6),
            "loss": st.floats() | st.integers(-5, 5),
        },
        optional={"lr": st.floats(0, 1), "mAP": st.floats(0, 1), "note": st.just("text")},
    ),
    max_size=25,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=ROWS, torn=st.booleans())
def test_the_fast_reader_gives_what_the_run_folder_gives(tmp_path: Path, rows, torn):
    folder = RunFolder(tmp_path)
    folder.metrics_file.unlink(missing_ok=True)
    for row in rows:
        folder.append_metrics(row)
    if torn and rows:
        with folder.metrics_file.open("a") as stream:
            stream.write('{"attempt": 1, "ki')
    fast = read_rows(folder.metrics_file)
    got = {
        (block.kind, int(step), int(attempt), name): repr(float(value))
        for block in fast.blocks
        for (attempt, _, step), values in zip(block.place, block.values, strict=True)
        for name, value in zip(block.metrics, values, strict=True)
    }
    expected = {}
    for row in folder.resolved_metrics():
        for name in row.keys() - NOT_A_METRIC - {"note"}:
            value = row[name]
            if value is None:
                value = float(row["nonfinite"][name])
            expected[row["kind"], row["step"], row["attempt"], name] = repr(float(value))
    assert got == expected
    assert fast.torn == int(torn and bool(rows))


def test_conditions_scored_after_training_are_metrics_of_the_run(tmp_path: Path) -> None:
    study = planted_study("later", ["a"], seeds=(0,))
    folder = plant(tmp_path, study, "a", 0)
    base = {"condition": "missing_r", "data": {"own": True}, "code": "x"}
    folder.append_evaluation({**base, "weights": "best", "metrics": {"mAP@missing_r": 0.25}})
    folder.append_evaluation(
        {**base, "weights": "last", "metrics": {"mAP@missing_r": 0.125, "mAP": 0.9}}
    )
    other = {**base, "data": {"own": False}, "weights": "best"}
    folder.append_evaluation({**other, "metrics": {"mAP@missing_r": 0.99}})
    run = collect([study], tmp_path).runs[0]
    assert (run.best["mAP@missing_r"], run.last["mAP@missing_r"]) == (0.25, 0.125)
    assert run.last["mAP"] == (folder.result() or {})["final"]["mAP"] != 0.9


@pytest.mark.parametrize("name", ["config.yaml", "run.json", "metrics.jsonl", "result.json"])
def test_a_run_that_was_changed_after_it_completed_is_no_result(tmp_path, study, name):
    plant_all(tmp_path, study)
    folder = study.runs()[1].folder(tmp_path)
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace("0", "1", 1))
    collected = collect([study], tmp_path)
    run = collected.runs[1]
    assert run.state == "damaged" and name in run.reason and not run.best and not run.rows.blocks
    with pytest.raises(AggregationError) as refused:
        refuse_to_average(collected)
    assert all(part in str(refused.value) for part in (str(folder), name, "--allow-damaged"))
    made = table(collected, study, study.tables[0], refuse_to_average(collected, allow={"damaged"}))
    assert "(2/3)" in to_csv(made) and "seed 1 damaged" in " ".join(made.notes)
    assert any("1 run" in sentence and "changed" in sentence for sentence in made.caption)


def test_warnings_about_the_data_stay_with_the_run(tmp_path, study):
    data = {"name": "rgbnt201", "warnings": ["test camera 7 was never seen in training"]}
    plant(tmp_path, study, "topk", 0, data=data)
    plant(tmp_path, study, "topk", 1, data=data)
    collected = collect([study], tmp_path)
    assert "camera 7" in collected.runs[0].notes[0]
    notes = table(collected, study, study.tables[0]).notes
    assert notes.count("Data: test camera 7 was never seen in training.") == 1
