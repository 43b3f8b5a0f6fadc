from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from ablations.store import states
from ablations.view.watch import LossCurve, sparkline, table
from sdtps.run.folder import RunFolder
from tests.ablations import plant


def row(loss: float | None, kind: str = "train") -> bytes:
    return json.dumps({"kind": kind, "loss": loss}).encode() + b"\n"


def test_a_sparkline_falls_with_the_loss_and_marks_what_is_not_finite() -> None:
    assert sparkline([]) == ""
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁"
    assert sparkline([1.0, 10.0, 100.0]) == "▁▅█"  # an explosion: on a logarithmic scale
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([1.0, float("inf"), 2.0]) == "▁×█"
    assert sparkline([float("nan")] * 3) == "×××"
    assert len(sparkline([float(i) for i in range(1000)], width=16)) == 16


def test_a_curve_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    curve = LossCurve(file)
    curve.update()
    assert curve.losses == []
    file.write_bytes(row(3.0) + row(9.0, "eval") + b"not json\n" + row(2.0)[:-5])
    curve.update()
    assert curve.losses == [3.0]
    with file.open("ab") as stream:
        stream.write(row(2.0)[-5:] + row(None))
    curve.update()
    assert curve.losses == [3.0, 2.0, float("inf")]
    file.write_bytes(row(1.0))
    curve.update()
    assert curve.losses == [1.0]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_table_fits_the_terminal_and_keeps_what_matters(tmp_path: Path, width: int) -> None:
    study = plant.study(tmp_path, ["released_single_branch_eq3_tau5_clamped", "b"])
    folder = RunFolder(study.runs()[0].folder(tmp_path / "runs"))
    folder.create(study.runs()[0].config, {"seed": 0})
    for step in range(20):
        folder.append_metrics({"kind": "train", "step": step + 1, "epoch": 1, "loss": 5.0 - step / 5})
    folder.append_metrics({"kind": "eval", "step": 20, "epoch": 1, "mAP": 0.4321})
    folder.write_status("running", attempt=1, epoch=1, step=20, progress=0.5)
    statuses = states.run_states(study.runs(), tmp_path / "runs")
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table(study, statuses, {}, 10, width))
    lines = console.export_text().splitlines()
    row = next(line for line in lines if "running" in line and "/" in line)
    assert max(map(len, lines)) <= width
    assert "1.2" in row and "▁" in row, lines
    assert ("43.2" in row and "50 %" in row) == (width >= 64)
