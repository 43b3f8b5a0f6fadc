"""The curves frame: every variant on its own grid, no mean that jumps because of who was logged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import plant, planted_study, reseal

from analysis.results import curves as curveframe
from analysis.results.curves import Curve, curves, frame, kept
from analysis.runs.collect import Collected, collect

Line = Callable[[int], float]


def logged(
    place: Path, lines: Mapping[str, Mapping[int, tuple[range, Line]]], **fields: object
) -> tuple[object, Collected]:
    """Runs whose training loss is logged at the given steps only: variant -> seed -> (steps, line)."""
    seeds = sorted({seed for of_variant in lines.values() for seed in of_variant})
    study = planted_study("s", list(lines), seeds=seeds)
    for variant, of_variant in lines.items():
        for seed, (steps, line) in of_variant.items():
            folder = plant(place, study, variant, seed, **fields)  # type: ignore[arg-type]
            rows = [
                {"attempt": 1, "kind": "train", "epoch": 1, "step": step, "loss": line(step)}
                for step in steps
            ]
            folder.metrics_file.write_text("")
            for row in rows:
                folder.append_metrics(row)
            if folder.result():
                reseal(folder)
    return study, collect([study], place)


def one(pair: tuple[object, Collected], **points: tuple[int, int]) -> Curve:
    study, collected = pair
    return curves(collected, study, "loss", variants=["a"], **points)[0]  # type: ignore[arg-type]


def falling(step: int) -> float:
    return 4.4 - 0.03 * step


def test_seeds_that_log_at_10_7_and_13_steps_give_no_sawtooth(tmp_path: Path) -> None:
    steps = {0: range(10, 131, 10), 1: range(7, 131, 7), 2: range(13, 131, 13)}
    curve = one(logged(tmp_path, {"a": {seed: (r, falling) for seed, r in steps.items()}}))
    finite = np.isfinite(curve.mean)
    assert curve.interpolated and finite.sum() > 20
    np.testing.assert_allclose(curve.mean[finite], [falling(s) for s in curve.step[finite]])
    assert set(curve.n[finite]) == {3} and set(curve.stretch) == {0}
    assert curve.step[finite][0] == 13  # where the last of them begins


def test_a_shorter_seed_leaves_without_a_jump(tmp_path: Path) -> None:
    lengths = {0: 100, 1: 90, 2: 100}
    lines = {seed: (range(1, n + 1), lambda s, seed=seed: 10.0 * seed) for seed, n in lengths.items()}
    curve = one(logged(tmp_path, {"a": lines}))
    assert [seed.end for seed in curve.seeds] == [None, "shorter", None]
    first, second = curve.pieces()
    assert (first, second) == (slice(0, 90), slice(90, 100))  # two lines, never joined
    assert set(curve.n[first]) == {3} and set(curve.n[second]) == {2}
    assert np.ptp(curve.mean[first]) == 0 and np.ptp(curve.mean[second]) == 0


def test_a_seed_that_is_infinite_for_three_steps_leaves_a_gap_and_no_jump(tmp_path: Path) -> None:
    def infinite(step: int) -> float:
        return math.inf if 4 <= step <= 6 else 39.0

    lines = {0: (range(1, 11), infinite), 1: (range(1, 11), lambda s: 19.0)}
    curve = one(logged(tmp_path, {"a": lines}))
    assert curve.mean[:3].tolist() == [29.0] * 3 and curve.mean[6:].tolist() == [29.0] * 4
    assert np.isnan(curve.mean[3:6]).all() and curve.seeds[0].broken.tolist() == [4, 5, 6]
    assert curve.pieces() == [slice(0, 3), slice(6, 10)]


def test_a_diverged_seed_leaves_at_its_last_finite_value(tmp_path: Path) -> None:
    study = planted_study("s", ["a"], seeds=(0, 1))
    plant(tmp_path, study, "a", 0, loss=lambda s: 1.0, scores={"mAP": [0.1] * 4})
    plant(tmp_path, study, "a", 1, loss=lambda s: 3.0, state="diverged", stop=(3, 12))
    curve = one((study, collect([study], tmp_path)))
    assert curve.seeds[1].last == (11.0, 3.0) and curve.seeds[1].end == "diverged"
    assert curve.mean.tolist() == [2.0] * 11 + [1.0] * 9
    assert curve.pieces() == [slice(0, 11), slice(11, 20)]


def test_windows_keep_the_mean_and_every_extreme(tmp_path: Path) -> None:
    def spiked(step: int) -> float:
        return 40.0 if step == 777 else math.sin(step)

    lines = {s: (range(1, 2001), spiked if s else lambda t: 0.0) for s in (0, 1)}
    curve = one(logged(tmp_path, {"a": lines}), points=(100, 1200))
    assert curve.merged == pytest.approx(20) and len(curve.step) == 100
    assert curve.high.max() == curve.seeds[1].value.max() == 40.0 and curve.mean.max() < 2.0
    assert curve.mean.mean() == pytest.approx(sum(map(spiked, range(1, 2001))) / 4000)


@pytest.mark.parametrize(("state", "epoch"), [("completed", 1.0), ("failed", math.nan)])
def test_a_run_that_ends_within_its_first_epoch_is_not_drawn_to_its_end(
    tmp_path: Path, state: str, epoch: float
) -> None:
    curve = one(logged(tmp_path, {"a": {0: (range(1, 4), falling)}}, state=state))
    means = frame([curve])
    assert means["step"].tolist() == [1, 2, 3]
    assert means["epoch"].tolist()[-1] == pytest.approx(epoch, nan_ok=True)


def test_seconds_come_from_the_rows_and_leave_waiting_out(tmp_path: Path) -> None:
    study = planted_study("s", ["a"], seeds=(0, 1))
    for seed in study.seeds:
        folder = plant(tmp_path, study, "a", seed, train_seconds=60.0)
        if seed == 0:
            rows = [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]
            times = [{**r, "time": 100.0 + 2 * r["step"] + (500 if r["step"] > 5 else 0)} for r in rows]
            for row in times:
                row["attempt"] = 2 if row["step"] > 5 else 1
            folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in times))
            reseal(folder)
    collected = collect([study], tmp_path)
    clocks = curveframe.second_clocks(collected, study)
    where = [run.where for run in collected.runs]
    clock, measured = clocks[where[0]]
    assert measured and clock.at(np.array([1, 5, 10])).tolist() == [2.0, 10.0, 20.0]
    clock, measured = clocks[where[1]]
    assert not measured and clock.at(np.array([5]))[0] == 30.0


VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=False, width=32), min_size=1, max_size=400)


@given(VALUES, st.integers(4, 60))
def test_thinning_keeps_ends_extremes_and_gaps(values: list[float], most: int) -> None:
    y = np.array(values)
    index = kept(y, most)
    assert index[0] == 0 and index[-1] == len(y) - 1
    assert np.all(np.diff(index) > 0)
    if np.isfinite(y).any():
        assert np.nanmax(y[index]) == np.nanmax(y) and np.nanmin(y[index]) == np.nanmin(y)
    assert np.isfinite(y[index]).all() == np.isfinite(y).all()
    assert len(index) <= max(most, 8) * 2 + 8
