"""The benchmarks compare like with like: same results, and figures with their machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import analysis, dispatch, reid, runs
from benchmarks.__main__ import BEGIN, END, Row, last_record, regressions, rows, with_records
from benchmarks.machine import compare
from benchmarks.runs import whole_run
from benchmarks.step import PlainStep, SyntheticTask, bench_config
from benchmarks.step import run as bench_step

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
    result = reid.images(CPU, sizes=((32, 16),), batch=8, repeats=1)
    (case,) = result["cases"]
    for way, rate in case["images_per_s"].items():
        assert rate == pytest.approx(3 * 8 * reid.BATCHES / case["seconds"][way], rel=0.01)


def test_both_rankings_agree() -> None:
    result = reid.ranking(CPU, queries=120, width=16, repeats=1)
    assert result["difference"]["mAP"] < 1e-9 and result["difference"]["rank1"] < 1e-9


def test_a_step_on_cached_outputs_is_the_frozen_backbones() -> None:
    result = reid.frozen(CPU, size=(32, 16), batch=8, repeats=2)
    assert result["relative_loss_difference"] < 1e-6
    assert result["seconds"].keys() == {"ours", "reference"} and result["speedup"] > 0
    assert result["cached_triples"] > 0 and result["cache_seconds"] > 0


def test_logging_figures_count_every_logged_row(capsys: pytest.CaptureFixture[str]) -> None:
    case = runs.Case("small", "tiny_vit", (32, 16), 8, 8, "off", (1, 10))
    result = runs.logging(CPU, cases=[case], repeats=2)["cases"][0]
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
    assert result["spread"] > 1  # of turns whose own ratios are 4, 40 and 0.04


def test_the_whole_run_of_the_gpu_script_works_at_a_small_size() -> None:
    small = {"train_pids": 8, "test_pids": 4, "cameras": 2, "images_per_camera": 2}
    result = whole_run(CPU, epochs=1, shape=small)
    assert result["outcome"] == "completed" and result["steps"] > 0
    assert result["run_seconds"] > 0 and result["peak_memory_mib"] > 0


def test_each_figure_has_its_machine_its_reference_and_their_ratio() -> None:
    collected, curves = analysis.bench(runs=6, rows=40, steps=2000)
    for result in (collected, curves):
        assert result["host"] and result["python"] and result["versions"]["numpy"]
        assert result["seconds"].keys() == {"ours", "reference"} and result["repeats"] > 1
        expected = result["seconds"]["reference"] / result["seconds"]["ours"]
        assert result["speedup"] == pytest.approx(expected, abs=0.01)
    assert collected["collect_runs"] == 6 and collected["collect_values"] == 6 * 40 * 4
    assert curves["pdf_kb"]["ours"] < curves["pdf_kb"]["reference"]


def test_each_result_has_both_ways_in_one_process() -> None:
    results = {result["bench"]: result for result in dispatch.bench(40, 20, 20)}
    assert list(results) == ["status", "plan", "expand"]
    assert results["status"]["folders"] == 40
    for timed in (results["status"]["compared"], results["plan"]["compared"], results["expand"]):
        assert timed["repeats"] >= 3
        ratio = timed["seconds"]["reference"] / timed["seconds"]["ours"]
        # Both are rounded. Which is faster is for the benchmark to say: a busy machine tells anything.
        assert timed["speedup"] == pytest.approx(ratio, rel=0.2, abs=0.1)


# -- the command ----------------------------------------------------------------------------------


def row(bench: str, speedup: float, spread: float = 0.02) -> Row:
    return Row(bench, "small", 1.0, speedup, speedup, spread)


def test_a_ratio_that_fell_beyond_the_noise_is_named(tmp_path: Path) -> None:
    record = {"rows": [asdict(row("step", 2.0)), asdict(row("eval", 10.0, 0.3))]}
    assert regressions([row("step", 1.9), row("eval", 5.0, 0.1), row("new", 0.1)], record) == []
    (change,) = regressions([row("step", 1.5)], record)
    assert "REGRESSION step (small): ratio 1.50, was 2.00; noise 10 %" in str(change)


def test_the_newest_record_of_the_same_kind_of_machine_is_compared(tmp_path: Path) -> None:
    here = {"processor": "p", "gpu": None, "threads": 1, "torch": "2.13"}
    for name, processor in (("1", "p"), ("2", "p"), ("3", "other")):
        kind = {**here, "processor": processor, "torch": name}
        content = {"machine": kind, "commit": "c0ffee1", "rows": []}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    found = last_record(here, tmp_path)
    assert found is not None and found[0].name == "2.json"
    assert last_record({**here, "gpu": "H100"}, tmp_path) is None
    (tmp_path / "2026-11-30T1-p.json").write_text(
        json.dumps({"machine": here, "commit": "c0ffee1", "rows": [asdict(row("step", 2.0))]})
    )
    page = with_records(f"a\n{BEGIN}\nold\n{END}\nb\n", tmp_path)
    assert page.startswith(f"a\n{BEGIN}\n\n") and page.endswith(f"\n{END}\nb\n") and "old" not in page
    assert "| step | small | 2.00 s | 1.00 s | 2.00 | 2 |" in page
    assert "**p** (threads 1, torch 2.13; 2026-11-30, commit c0ffee1)" in page
    assert with_records(page, tmp_path) == page


def test_every_result_becomes_rows_that_tell_the_cases_apart() -> None:
    result = reid.images(CPU, sizes=((32, 16), (64, 32)), batch=8, repeats=1)
    first, second = rows(result)
    assert (first.bench, first.case, second.case) == ("data", "32x16", "64x32")
    assert first.ours and first.reference and first.speedup


def test_the_command_measures_compares_and_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timed = {"seconds": {"ours": 0.1, "reference": 0.3}, "speedup": 3.0, "spread": 0.01}
    measured = [{"bench": "eval", "queries": 120, **timed}]
    monkeypatch.setattr(command, "_measure", lambda name, words: measured)
    monkeypatch.setattr(command, "RECORDS", tmp_path)
    monkeypatch.setattr(command.last_record, "__defaults__", (tmp_path,))
    assert command.main(["eval", "--device", "cpu", "--record"]) == 0
    shown = capsys.readouterr().out
    assert "queries 120" in shown and "300 ms" in shown and "No record" in shown
    measured[0]["speedup"] = 1.0
    assert command.main(["eval", "--device", "cpu"]) == 1
    shown = capsys.readouterr()
    assert "REGRESSION eval" in shown.err and "3.00" in shown.out
    assert command.main(["eval", "--device", "cpu", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[0])["queries"] == 120
    assert command.main(["evl"]) == 2
    assert "Did you mean 'eval'" in capsys.readouterr().err


def test_a_measurement_runs_in_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = command.Measurement("", lambda options: iter([{"threads": options.threads}] * 2))
    monkeypatch.setitem(command.MEASUREMENTS, "eval", measured)
    assert command.main(["eval", "--here"]) == 0
    printed = capsys.readouterr().out
    python = tmp_path / "python"  # prints how it was called, and what the measurement would print
    python.write_text(f"#!/bin/sh\nprintf '\"%s\"\\n' \"$*\"\ncat <<'END'\n{printed}END\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    words, *results = command._measure("eval", ["eval", "--threads", "1", "--record"])
    assert words == "-m benchmarks eval --here --threads 1"
    assert results == [{"threads": None}] * 2


def test_a_ratio_stands_beside_the_number_of_folders_that_it_was_measured_on() -> None:
    timed = {
        "folders": 200,
        "seconds": {"ours": 0.02, "reference": 0.8},
        "speedup": 40.0,
        "spread": 0.1,
    }
    result = {"bench": "status", "folders": 10_000, "seconds": 0.7, "compared": timed}
    many, few = command.rows(result)
    assert (many.case, many.ours, many.reference, many.speedup) == ("folders 10000", 0.7, None, None)
    assert (few.case, few.ours, few.reference, few.speedup) == ("folders 200", 0.02, 0.8, 40.0)
