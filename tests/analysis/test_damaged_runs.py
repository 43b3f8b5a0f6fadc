"""A run folder that was damaged is told, never a traceback and never a result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from planted import plant, planted_study, reseal

from ablations.store.states import DAMAGED, from_records
from analysis.paper.explain import describe
from analysis.runs.collect import collect
from analysis.runs.rows import read_rows
from analysis.tables.forms import to_terminal
from analysis.tables.study import tables
from sdtps.run.folder import RunFolder

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
    rows = read_rows(_write(tmp_path / "metrics.jsonl", ROW, row, {**ROW, "step": 2}))
    assert rows.torn == 1
    assert [list(block.step) for block in rows.blocks] == [[1, 2]]


def test_a_value_that_is_no_number_is_absent(tmp_path: Path) -> None:
    rows = read_rows(_write(tmp_path / "metrics.jsonl", ROW, {**ROW, "step": 2, "loss": "low"}))
    assert rows.torn == 0
    losses = {int(b.step[0]): b.values[0] for b in rows.blocks}
    assert np.array_equal(losses[1], [2.0])
    assert losses[2].size == 0


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe{}", b"[" * 100_000], ids=["empty", "bytes", "nested"]
)
def test_every_reader_takes_a_damaged_file_as_nothing(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder(tmp_path)
    for path in (folder.run_file, folder.status_file, folder.metrics_file):
        path.write_bytes(content)
    assert (folder.run(), folder.status(), folder.metrics()) == ({}, None, [])
    assert read_rows(folder.metrics_file).blocks == ()
    assert from_records(tmp_path).state == "planned"
    folder.result_file.write_bytes(content)
    assert folder.result() is None
    told = describe(str(tmp_path), tmp_path)
    assert (told["state"], told["reason"]) == ("failed", DAMAGED)


def test_a_result_that_cannot_be_read_is_replaced(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.result_file.touch()
    folder.write_result({"attempt": 2})
    assert (folder.result() or {})["attempt"] == 2


def test_a_score_that_is_no_finite_number_is_a_note_of_its_run(tmp_path: Path) -> None:
    study = planted_study("s", ["a"], seeds=(0, 1))
    for seed in study.seeds:
        folder = plant(tmp_path, study, "a", seed)
    final = (folder.result() or {})["final"]
    reseal(folder, final={**final, "mAP": 10**400}, train_seconds=10**400)
    collected = collect([study], tmp_path)
    assert collected.runs[1].notes == ("result.json: final mAP is no finite number",)
    for made in tables(collected, study):
        to_terminal(made)


def test_a_name_that_the_output_cannot_show_stops_no_command(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(MANIFEST, encoding="utf-8")
    words = ["collect", str(tmp_path / "s.yaml"), "--runs-dir", str(tmp_path / "runs")]
    command = [sys.executable, "-m", "analysis", *words]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"\\u4e2d" in done.stdout


MANIFEST = """
study: s
task: reid
seeds: [0]
baseline: a
varies: [sdtps]
overrides: {data.generate: {train_pids: 24}}
variants: {a: {}, 中: {label: middle, sdtps.keep_ratio: 0.3}}
metrics: {mAP: {direction: up}}
"""
