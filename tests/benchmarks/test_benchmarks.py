"""The benchmarks compare like with like, and their command prints and records what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import crossnet, scale, training
from benchmarks.__main__ import BEGIN, END, Row, with_records
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


def test_a_step_gives_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "STEPS", 1)
    (row,) = training.step(CPU, repeats=2)
    assert row.case == "tiny_vit, 64x32, batch 8"
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


def test_the_page_has_the_newest_record_of_each_kind_of_machine(tmp_path: Path) -> None:
    here = {"processor": "p", "gpu": None, "threads": 1}
    for day, processor, commit in (("29", "p", "old"), ("30", "p", "c0ffee1"), ("30", "q", "beef")):
        record = {"machine": {**here, "processor": processor}, "commit": commit, "rows": [asdict(ROW)]}
        (tmp_path / f"2026-11-{day}T1-{processor}.json").write_text(json.dumps(record))
    page = with_records(f"a\n{BEGIN}\nold\n{END}\nb\n", tmp_path)
    assert page.startswith(f"a\n{BEGIN}\n\n") and page.endswith(f"\n{END}\nb\n") and "old" not in page
    assert page.count("| step | small | 2.00 s | 1.00 s | 2.00 | 2 |  |  |") == 2
    assert "**p** (threads 1; 2026-11-30, commit c0ffee1)" in page and "**q**" in page
    assert with_records(page, tmp_path) == page


def test_the_command_measures_prints_and_records(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}")
    monkeypatch.setattr(command, "MEASUREMENTS", {"step": ("", lambda device: iter([ROW]))})
    monkeypatch.setattr(command, "RECORDS", tmp_path)
    monkeypatch.setattr(command, "PAGE", page)
    assert command.main(["step", "--device", "cpu"]) == 0
    assert command.main(["--device", "cpu", "--record"]) == 0  # without a name: all
    assert "| step | small | 2.00 s |" in capsys.readouterr().out
    assert "| step | small | 2.00 s |" in page.read_text()
    with pytest.raises(SystemExit):
        command.main(["stp"])
    assert "step" in capsys.readouterr().err
