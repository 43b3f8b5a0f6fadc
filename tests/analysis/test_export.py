"""Exported runs hold every value that was logged, bit for bit, and the same bytes twice."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from planted import plant, planted_study

from analysis.paper.export import ExportError, export
from analysis.runs.collect import Collected, collect


@pytest.fixture
def collected(tmp_path: Path) -> Collected:
    study = planted_study("demo", ["topk", "w/o_msa & 5%"], seeds=(0, 1))
    plant(tmp_path, study, "topk", 0, loss=lambda step: 1.0 / step)
    plant(tmp_path, study, "w/o_msa & 5%", 1, state="diverged", stop=(2, 7))
    return collect([study], tmp_path)


def test_csv_keeps_every_bit_and_tells_nan_from_absence(tmp_path: Path, collected: Collected) -> None:
    export(collected, "csv", tmp_path / "out")
    with (tmp_path / "out" / "values.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    losses = [r for r in rows if r["metric"] == "loss" and r["variant"] == "topk"]
    assert [float(r["value"]) for r in losses] == [1.0 / step for step in range(1, 11)]
    assert [r["step"] for r in rows if r["value"] == "nan"] == ["7"]
    with (tmp_path / "out" / "runs.csv").open(newline="") as stream:
        runs = {(r["variant"], r["seed"]): r for r in csv.DictReader(stream)}
    assert len(runs) == 4
    assert runs["w/o_msa & 5%", "1"]["best/mAP"] == ""
    assert runs["w/o_msa & 5%", "0"]["state"] == "planned"


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path, collected: Collected) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = export(collected, "tensorboard", tmp_path / "out")
    assert len(files) == 2
    accumulator = EventAccumulator(str(files[0].parent), size_guidance={"scalars": 0})
    accumulator.Reload()
    losses = [(e.step, e.value) for e in accumulator.Scalars("train/loss")]
    assert losses == [(s, pytest.approx(1.0 / s)) for s in range(1, 11)]
    assert [e.value for e in accumulator.Scalars("eval/mAP")] == [
        pytest.approx(0.4),
        pytest.approx(0.6),
    ]
    diverged = EventAccumulator(str(files[1].parent), size_guidance={"scalars": 0})
    diverged.Reload()
    assert math.isnan(diverged.Scalars("train/loss")[-1].value)


@pytest.mark.parametrize("format_name", ["csv", "tensorboard"])
def test_exporting_twice_gives_the_same_bytes(
    tmp_path: Path, collected: Collected, format_name: str
) -> None:
    first = export(collected, format_name, tmp_path / "a")
    second = export(collected, format_name, tmp_path / "b")
    assert [f.read_bytes() for f in first] == [f.read_bytes() for f in second]


def test_what_is_exported_to_tensorboard_can_be_imported_again(
    tmp_path: Path, collected: Collected
) -> None:
    from analysis.importers import command

    export(collected, "tensorboard", tmp_path / "out")
    runs, complaints = command.read([tmp_path / "out"])
    assert not complaints
    finished = next(r for r in runs if r.final and "mAP" in r.final)
    assert finished.final and finished.final["mAP"] == 0.6


def test_nothing_to_export_is_an_error(tmp_path: Path) -> None:
    study = planted_study("empty", ["topk"])
    with pytest.raises(ExportError, match="nothing to export"):
        export(collect([study], tmp_path), "csv", tmp_path / "out")
