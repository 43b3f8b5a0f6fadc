"""The benchmark of the analysis says where it ran and compares with the plain way."""

from __future__ import annotations

import json

import pytest

from analysis.cli import main
from benchmarks.analysis import bench


def test_each_figure_has_its_machine_its_reference_and_their_ratio() -> None:
    collected, curves = bench(runs=6, rows=40, steps=2000)
    for result in (collected, curves):
        assert result["host"] and result["python"] and result["versions"]["numpy"]
        assert result["seconds"].keys() == {"ours", "reference"} and result["repeats"] > 1
        expected = result["seconds"]["reference"] / result["seconds"]["ours"]
        assert result["speedup"] == pytest.approx(expected, abs=0.01)
    assert collected["collect_runs"] == 6 and collected["collect_values"] == 6 * 40 * 4
    assert curves["pdf_kb"]["ours"] < curves["pdf_kb"]["reference"]


def test_the_command_prints_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    import benchmarks.analysis

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmarks.analysis, "_draw", lambda steps: {"bench": "curves"})
        assert main(["bench", "--runs", "2", "--rows", "10"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["bench"] for line in lines] == ["collect", "curves"]
