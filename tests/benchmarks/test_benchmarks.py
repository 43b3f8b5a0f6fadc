"""The benchmarks compare like with like, and their command finds what became slower."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import crossnet, scale, training
from benchmarks.__main__ import BEGIN, END, Row, last_record, regressions, with_records
from benchmarks.timing import CPU, compare

ROW = Row("step", "small", 1.0, 2.0, 2.0, 0.02)


def test_the_plain_step_has_the_same_loss_and_gradients() -> None:
    with training.own_cache():
        task = training.reid_task(training.reid_config(CPU, (32, 16), 8), CPU)
        batch = next(task.train_batches(1, 0))
    plain = training.PlainStep(task)
    losses = task.loss(batch, 1, 1)[0], plain.loss(batch)[0]
    assert torch.allclose(*losses, rtol=1e-5)
    for loss in losses:
        loss.backward()
    for (name, one), two in zip(task.model.named_parameters(), plain.model.parameters(), strict=True):
        if one.grad is not None:
            assert two.grad is not None
            assert torch.allclose(one.grad, two.grad, rtol=1e-3, atol=1e-5), name


def test_each_measurement_of_training_gives_both_sides() -> None:
    rows = [
        *training.step(CPU, repeats=2),
        *training.logging(CPU, repeats=2),
    ]
    assert [row.case for row in rows] == [
        "tiny_vit, 64x32, batch 8",
        "tiny_vit, 64x32, batch 32",
    ]
    for row in rows:
        assert row.reference and row.speedup == pytest.approx(row.reference / row.ours, abs=0.01)


def test_the_ratio_is_of_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    for clock in ("perf_counter", "process_time"):
        monkeypatch.setattr(f"benchmarks.timing.time.{clock}", lambda: now[0])
    ours, reference = iter([1.0, 1.0, 90.0]), iter([4.0, 40.0, 4.0])

    def passes(seconds: Iterator[float]) -> None:
        now[0] += next(seconds)

    row = compare("", "", lambda: passes(ours), lambda: passes(reference), repeats=3, warmup=0)
    assert (row.ours, row.reference, row.speedup) == (1.0, 4.0, 4.0)
    assert row.spread > 1  # of turns whose own ratios are 4, 40 and 0.04


def test_verbs_read_the_runs_that_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "VERBS", {"tables": scale.VERBS["tables"]})
    (row,) = scale.verbs(CPU, (10,))
    assert row.case == "tables, runs 10" and row.ours > 0 and row.peak_mib


# -- the cross-net --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["laps", "released", "paper"])
def test_every_case_of_the_cross_net_agrees_with_the_loop(form: crossnet.Form) -> None:
    encoder = crossnet.Encoder(16, True, 0.5, 0.4)
    for case in crossnet.cases("cpu", form):
        small = replace(case, images=2, captions=5, encoder=encoder)
        ours, loop = (crossnet.compute(small, way)() for way in ("batched", "loop"))
        assert crossnet.difference(ours, loop) < 1e-5, str(case)


def test_a_difference_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    case = crossnet.Case("laps", False, 2, 2, crossnet.SWIN, "cpu")
    monkeypatch.setattr(
        crossnet, "compute", lambda case, way: lambda: [torch.tensor(1.0 + (way == "loop"))]
    )
    with pytest.raises(RuntimeError, match="disagree"):
        crossnet.measure(case, 1)


def test_peak_memory_counts_what_the_work_adds() -> None:
    case = crossnet.Case("laps", False, 32, 2, crossnet.SWIN, "cpu")
    assert 1 < crossnet.peak_by_itself(case, "loop") < 200


def test_on_a_gpu_both_kernels_are_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    cases = [str(case) for case in crossnet.cases("cuda", "laps")]
    assert len(cases) == 8 and f"{cases[0]}, fused" in cases


# -- the command ----------------------------------------------------------------------------------


def test_a_ratio_that_fell_beyond_the_noise_is_named() -> None:
    noisy = replace(ROW, bench="data", speedup=10.0, spread=0.3)
    record = {"rows": [asdict(ROW), asdict(noisy)]}
    now = [replace(ROW, speedup=1.9), replace(noisy, speedup=5.0, spread=0.1), replace(ROW, case="new")]
    assert regressions(now, record) == []
    (message,) = regressions([replace(ROW, speedup=1.5)], record)
    assert "step (small): ratio 1.50, was 2.00; noise 10 %" in message


def test_the_newest_record_of_the_same_kind_of_machine_is_compared(tmp_path: Path) -> None:
    here = {"processor": "p", "gpu": None, "threads": 1, "torch": "2.13"}
    for name, processor in (("1", "p"), ("2", "p"), ("3", "other")):
        machine = {**here, "processor": processor, "torch": name}
        record = {"machine": machine, "commit": "c0ffee1", "rows": []}
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    newest = last_record(here, tmp_path)
    assert newest is not None and newest["machine"]["torch"] == "2"
    assert last_record({**here, "gpu": "H100"}, tmp_path) is None
    (tmp_path / "2026-11-30T1-p.json").write_text(
        json.dumps({"machine": here, "commit": "c0ffee1", "rows": [asdict(ROW)]})
    )
    page = with_records(f"a\n{BEGIN}\nold\n{END}\nb\n", tmp_path)
    assert page.startswith(f"a\n{BEGIN}\n\n") and page.endswith(f"\n{END}\nb\n") and "old" not in page
    assert "| step | small | 2.00 s | 1.00 s | 2.00 | 2 |  |  |" in page
    assert "**p** (threads 1, torch 2.13; 2026-11-30, commit c0ffee1)" in page
    assert with_records(page, tmp_path) == page


def test_the_command_measures_compares_and_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}")
    measured = [ROW]
    monkeypatch.setattr(command, "_measure", lambda name, words: measured)
    monkeypatch.setattr(command, "RECORDS", tmp_path)
    monkeypatch.setattr(command, "PAGE", page)
    assert command.main(["step", "--device", "cpu", "--record"]) == 0
    assert "| step | small | 2.00 s |" in capsys.readouterr().out
    assert "| step | small | 2.00 s |" in page.read_text()
    measured[0] = replace(ROW, speedup=1.0)
    assert command.main(["step", "--device", "cpu", "--json"]) == 1
    shown = capsys.readouterr()
    assert "REGRESSION step" in shown.err and json.loads(shown.out)["speedup"] == 1.0
    assert command.main(["stp"]) == 2
    assert "Did you mean 'step'" in capsys.readouterr().err


def test_a_measurement_runs_in_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = command.Measurement("", lambda device: iter([ROW] * 2))
    monkeypatch.setitem(command.MEASUREMENTS, "step", measured)
    assert command.main(["step", "--here"]) == 0
    printed = capsys.readouterr().out
    python = (
        tmp_path / "python"
    )  # writes how it was called, and prints what the measurement would print
    python.write_text(f"#!/bin/sh\necho \"$*\" > {tmp_path}/called\ncat <<'END'\n{printed}END\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert command._measure("step", ["step", "--threads", "1", "--record"]) == [ROW] * 2
    assert (tmp_path / "called").read_text() == "-m benchmarks step --here --threads 1\n"
