from __future__ import annotations

import json
from pathlib import Path

from ablations.view.curve import LossCurve, sparkline


def row(loss: float | None, kind: str = "train") -> bytes:
    return json.dumps({"kind": kind, "loss": loss}).encode() + b"\n"


def test_a_sparkline_falls_with_the_loss_and_marks_what_is_not_finite() -> None:
    assert sparkline([]) == ""
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([1.0, float("inf"), 2.0]) == "▁×█"
    assert sparkline([float("nan")] * 3) == "×××"
    assert len(sparkline([float(i) for i in range(1000)], width=16)) == 16


def test_an_explosion_is_drawn_on_a_logarithmic_scale() -> None:
    assert sparkline([1.0, 10.0, 100.0]) == "▁▅█"


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


def test_a_long_curve_stays_small(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"".join(row(float(i)) for i in range(5000)))
    curve = LossCurve(file)
    curve.update()
    assert curve.losses[0] == 0.0
    assert len(curve.losses) <= 1024
    assert curve.losses == sorted(curve.losses)
