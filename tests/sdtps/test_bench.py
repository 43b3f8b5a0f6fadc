"""The benchmarks compare like with like: same results, and figures with their machine."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator

import pytest
import torch

from benchmarks import data, evaluation, frozen, gpu, rows
from benchmarks.machine import compare
from benchmarks.step import PlainStep, SyntheticTask, bench_config
from benchmarks.step import run as bench_step
from sdtps.cli import main

CPU = torch.device("cpu")


def test_the_plain_step_has_the_same_loss_and_gradients() -> None:
    config = bench_config("tiny_vit", 8, "off", False)
    task = SyntheticTask(config, CPU)
    plain = PlainStep(task, config)
    ours, _ = task.loss(task.batch, 1, 1)
    theirs, _ = plain.loss(task.batch)
    assert torch.allclose(ours, theirs, rtol=1e-5)
    ours.backward()
    theirs.backward()
    for (name, one), two in zip(task.model.named_parameters(), plain.model.parameters(), strict=True):
        if one.grad is not None:
            assert two.grad is not None
            assert torch.allclose(one.grad, two.grad, rtol=1e-3, atol=1e-5), name


def test_step_figures_name_their_machine() -> None:
    result = bench_step(CPU, batch=4, repeats=2)
    assert result["relative_loss_difference"] < 1e-4
    assert result["torch"] == torch.__version__ and result["threads"] >= 1
    assert result["seconds"].keys() == result["samples_per_s"].keys() == {"ours", "reference"}
    assert result["gflop_per_step"] > 0


def test_data_figures() -> None:
    result = data.run(CPU, sizes=((32, 16),), batch=8, repeats=1)
    (case,) = result["cases"]
    for way, rate in case["images_per_s"].items():
        assert rate == pytest.approx(3 * 8 * data.BATCHES / case["seconds"][way], rel=0.01)


def test_both_rankings_agree() -> None:
    result = evaluation.run(CPU, queries=120, width=16, repeats=1)
    assert result["difference"]["mAP"] < 1e-9 and result["difference"]["rank1"] < 1e-9


def test_a_step_on_cached_outputs_is_the_frozen_backbones() -> None:
    result = frozen.run(CPU, size=(32, 16), batch=8, repeats=2)
    assert result["relative_loss_difference"] < 1e-6
    assert result["seconds"].keys() == {"ours", "reference"} and result["speedup"] > 0
    assert result["cached_triples"] > 0 and result["cache_seconds"] > 0


def test_logging_figures_count_every_logged_row(capsys: pytest.CaptureFixture[str]) -> None:
    case = rows.Case("small", "tiny_vit", (32, 16), 8, 8, "off", (1, 10))
    result = rows.run(CPU, cases=[case], repeats=2)["cases"][0]
    seconds, share = result["seconds"], result["share"]
    assert seconds.keys() == {"step", "row", "noted", "status"}
    expected = (seconds["row"] + seconds["noted"]) / sum(seconds[k] for k in ("step", "row", "noted"))
    assert share["log_every 1"] == pytest.approx(expected + seconds["status"] / 15, rel=1e-2)
    assert share["log_every 10"] < share["log_every 1"]


def test_the_ratio_is_of_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("benchmarks.machine.time.perf_counter", lambda: now[0])
    ours, reference = iter([1.0, 1.0, 90.0]), iter([4.0, 40.0, 4.0])

    def passes(seconds: Iterator[float]) -> None:
        now[0] += next(seconds)

    result = compare(lambda: passes(ours), lambda: passes(reference), CPU, repeats=3, warmup=0)
    assert result["seconds"] == {"ours": 1.0, "reference": 4.0} and result["speedup"] == 4.0


def test_the_command_prints_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = functools.partial(evaluation.run, queries=120, width=16, repeats=1)
    monkeypatch.setattr(evaluation, "run", small)
    assert main(["bench", "eval", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["queries"] == 120


def test_the_whole_run_of_the_gpu_script_works_at_a_small_size() -> None:
    small = {"train_pids": 8, "test_pids": 4, "cameras": 2, "images_per_camera": 2}
    result = gpu.whole_run(CPU, epochs=1, shape=small)
    assert result["outcome"] == "completed" and result["steps"] > 0
    assert result["run_seconds"] > 0 and result["peak_memory_mib"] > 0
