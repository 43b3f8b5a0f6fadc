"""A run folder that was damaged is told, never a traceback and never a result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysis import metricrows
from analysis.explain import describe
from analysis.runstate import state_of
from sdtps.runfolder import RunFolder

ROW = {"kind": "train", "attempt": 1, "epoch": 1, "step": 1, "loss": 2.0}


def _write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    "row",
    [
        {**ROW, "epoch": "x"},
        {**ROW, "step": None},
        {**ROW, "step": 2**40},
        {**ROW, "kind": ["train"]},
        {**ROW, "attempt": {}},
        {**ROW, "nonfinite": 3},
        {"kind": 3},
    ],
)
def test_a_row_without_a_place_counts_as_torn_and_costs_no_other(tmp_path: Path, row: object) -> None:
    rows = metricrows.read(_write(tmp_path / "metrics.jsonl", ROW, row, {**ROW, "step": 2}))
    assert rows.torn == 1
    assert [list(block.step) for block in rows.blocks] == [[1, 2]]


def test_a_value_that_is_no_number_is_absent(tmp_path: Path) -> None:
    rows = metricrows.read(_write(tmp_path / "metrics.jsonl", ROW, {**ROW, "step": 2, "loss": "low"}))
    assert rows.torn == 0
    losses = {int(b.step[0]): b.values[0] for b in rows.blocks}
    assert np.array_equal(losses[1], [2.0])
    assert losses[2].size == 0


def _directory(path: Path) -> None:
    path.mkdir()


def _empty(path: Path) -> None:
    path.touch()


def _bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe{}")


def _nested(path: Path) -> None:
    path.write_text("[" * 100_000)


@pytest.mark.parametrize("damage", [_directory, _empty, _bytes, _nested])
def test_every_reader_takes_a_damaged_file_as_nothing(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = RunFolder(tmp_path)
    for path in (folder.run_file, folder.status_file, folder.metrics_file):
        damage(path)
    assert (folder.run(), folder.status(), folder.metrics()) == ({}, None, [])
    assert metricrows.read(folder.metrics_file).blocks == ()
    assert state_of(folder, 0.0) == ("interrupted", {"reason": "status.json cannot be read"})
    damage(folder.result_file)
    assert folder.result() is None
    told = describe(str(tmp_path), tmp_path)
    assert (told["state"], told["reason"]) == ("failed", "result.json cannot be read")


def test_a_result_that_cannot_be_read_is_replaced(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.result_file.touch()
    folder.write_result({"attempt": 2})
    assert folder.result() == {"attempt": 2}
