"""Local slots: a real queue, a GPU each, Ctrl-C that loses nothing, killed queues that are repaired."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from ablations.launch import dispatch, local
from ablations.store import attempts as records
from ablations.store import cancel, locks
from ablations.store.states import RunStatus, run_states
from ablations.study.model import Study
from ablations.study.schema import Resources
from tests.ablations import plant, standin
from tests.ablations.copies import ends, fork, fork_modules

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _stand_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", standin.PATH)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if "every_end" not in request.node.name:  # that one has a queue as users have it
        fork_modules(monkeypatch)


def _submit(study: Study, runs: Path, slots: int | None = 2) -> dispatch.SubmitReport:
    return dispatch.submit(study.runs(), runs, executor="local", slots=slots, entry=standin.ENTRY)


def _states(study: Study, runs: Path) -> list[RunStatus]:
    return run_states(study.runs(), runs)


def _queue(study: Study, runs: Path) -> int:
    """`submit` to one slot in a process of its own, as on a terminal."""
    return fork(lambda: _submit(study, runs, slots=1) and None)


def _wait(condition: object, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_every_end_is_told_and_one_failure_does_not_stop_the_queue(tmp_path: Path) -> None:
    study = plant.study(tmp_path, ["raise", "exit3", "killed", "diverge", "ok"])
    report = _submit(study, tmp_path / "runs")
    found = {s.run.variant: (s.state, s.kind) for s in _states(study, tmp_path / "runs")}
    assert found == {
        "raise": ("failed", "error"),
        "exit3": ("failed", "exit"),
        "killed": ("failed", "killed"),
        "diverge": ("diverged", None),
        "ok": ("completed", None),
    }
    assert sorted(report.outcomes.values()) == ["completed", "diverged", "failed", "failed", "failed"]
    again = _submit(study, tmp_path / "runs")
    assert again.submitted == []


def test_no_more_runs_than_slots_at_once_each_with_its_own_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    study = plant.study(tmp_path, ["show"], seeds=5, resources="{gpus: 1}")
    runs = tmp_path / "runs"
    assert len(_submit(study, runs, slots=None).outcomes) == 5
    spans = []
    for run in study.runs():
        folder = run.folder(runs)
        shown = json.loads((folder / "shown.json").read_text())
        assert shown["CUDA_VISIBLE_DEVICES"] in {"3", "5"}
        assert shown["OMP_NUM_THREADS"] == str(max(1, local.cpu_count() // 2))
        lines = records.attempts_file(folder).read_text().splitlines()
        assert [line.split()[0] for line in lines] == ["start", "began", "end"]
        spans.append((shown["CUDA_VISIBLE_DEVICES"], (folder / "shown.json").stat().st_mtime, folder))
    # Two runs on one GPU never overlap: each starts after the one before it on that GPU wrote its
    # result.
    for gpu in ("3", "5"):
        mine = sorted((begun, folder) for which, begun, folder in spans if which == gpu)
        for (_, earlier), (begun, _) in pairwise(mine):
            assert (earlier / "result.json").stat().st_mtime <= begun


@pytest.mark.parametrize(
    ("shell", "study", "threads"), [("3", "5", "3"), (None, "5", "5"), (None, None, None)]
)
def test_threads_are_the_shell_s_then_the_study_s_then_the_slot_s(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shell: str | None,
    study: str | None,
    threads: str | None,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if shell:
        monkeypatch.setenv("OMP_NUM_THREADS", shell)
    own = f", environment: {{OMP_NUM_THREADS: '{study}'}}" if study else ""
    planted = plant.study(tmp_path, ["show"], resources=f"{{cpus: 1{own}}}")
    _submit(planted, tmp_path / "runs", slots=1)
    shown = json.loads((planted.runs()[0].folder(tmp_path / "runs") / "shown.json").read_text())
    assert shown["OMP_NUM_THREADS"] == (threads or str(local.cpu_count()))


def test_slots_are_gpus_or_else_the_cpus_that_runs_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "cpu_count", lambda: 8)
    assert local.default_slots(Resources(gpus=1), ["0", "1", "2"]) == 3
    assert local.default_slots(Resources(gpus=2), ["0", "1", "2"]) == 1
    assert local.default_slots(Resources(gpus=1, runs_per_gpu=3), ["0", "1"]) == 6
    assert local.default_slots(Resources(gpus=1, cpus=4), []) == 2
    assert local.default_slots(Resources(gpus=0, cpus=16), []) == 1


def test_ctrl_c_lets_runs_write_a_checkpoint_and_the_next_submission_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    study = plant.study(tmp_path, ["polite", "ok"])
    runs = tmp_path / "runs"
    queue = _queue(study, runs)
    _wait(lambda: _states(study, runs)[0].epoch == 1)
    assert [s.state for s in _states(study, runs)] == ["running", "queued"]
    os.kill(queue, signal.SIGINT)
    assert ends(queue) == [130]
    assert "Stopping 1 run (our models write a checkpoint first). Ctrl-C" in capfd.readouterr().err
    found = _states(study, runs)
    assert [s.state for s in found] == ["interrupted", "planned"]
    assert "epoch 1" in found[0].detail
    assert locks.read(study.runs()[0].folder(runs)) is None
    _submit(study, runs)
    found = _states(study, runs)
    assert [(s.state, s.attempt) for s in found] == [("completed", 2), ("completed", 1)]


def test_a_killed_queue_s_locks_are_repaired_and_its_orphan_is_left_to_finish(tmp_path: Path) -> None:
    study = plant.study(tmp_path, ["polite", "ok"])
    runs = tmp_path / "runs"
    queue = _queue(study, runs)
    _wait(lambda: _states(study, runs)[0].epoch == 1)
    os.kill(queue, signal.SIGKILL)
    ends(queue)
    assert [s.state for s in _states(study, runs)] == ["running", "planned"]
    report = _submit(study, runs)
    assert [p.parent.name for p in report.submitted] == ["ok"]
    # Now the orphan is killed as well: nobody is left to write its end down, and it goes on next time.
    folder = study.runs()[0].folder(runs)
    lock = locks.read(folder)
    assert lock is not None
    start = records.read(folder, lock.submission).last_start
    assert start is not None
    os.kill(start.process.pid, signal.SIGKILL)
    _wait(lambda: _states(study, runs)[0].state == "interrupted")
    (folder / "checkpoint.pt").write_text("1")
    assert _submit(study, runs).submitted == [folder]
    assert [s.state for s in _states(study, runs)] == ["completed", "completed"]


@pytest.mark.parametrize("cancelled", [1, 2])
def test_a_cancelled_run_stops_or_never_starts(tmp_path: Path, cancelled: int) -> None:
    study = plant.study(tmp_path, ["polite", "ok"])
    runs = tmp_path / "runs"
    queue = _queue(study, runs)
    _wait(lambda: _states(study, runs)[0].epoch == 1)
    cancel.cancel(_states(study, runs)[:cancelled], runs)
    assert ends(queue) == [0] or cancelled == 2
    told = ["cancelled"] * cancelled + ["completed"] * (2 - cancelled)
    assert [s.state for s in _states(study, runs)] == told


def test_a_run_that_cannot_even_start_python_is_failed(tmp_path: Path) -> None:
    study = plant.study(tmp_path, ["ok"], resources="{cpus: 1, python: /nope/python}")
    _submit(study, tmp_path / "runs")
    found = _states(study, tmp_path / "runs")[0]
    assert (found.state, found.kind) == ("failed", "start"), found.detail


def test_another_program_s_process_group_in_the_shell_is_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", standin.PATH)
    study = plant.study(tmp_path, ["show"])
    dispatch.submit(study.runs(), tmp_path / "runs", executor="local", entry=standin.ENTRY)
    folder = study.runs()[0].folder(tmp_path / "runs")
    shown = json.loads((folder / "shown.json").read_text())
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"} & set(shown)
    assert run_states(study.runs(), tmp_path / "runs")[0].state == "completed"


class _NoDriver(Exception):
    pass


@pytest.mark.parametrize(
    ("used", "gpus"),
    [([100, 40_000, 0], ["0", "2"]), ([40_000, 50_000], ["0", "1"]), (None, [])],
    ids=["those in use are left out", "all in use", "no driver"],
)
def test_gpus_that_others_use_are_left_out(
    monkeypatch: pytest.MonkeyPatch, used: list[int] | None, gpus: list[str]
) -> None:
    def start() -> None:
        if used is None:
            raise _NoDriver

    mib = used or []
    nvml = SimpleNamespace(
        NVMLError=_NoDriver,
        nvmlInit=start,
        nvmlDeviceGetCount=lambda: len(mib),
        nvmlDeviceGetHandleByIndex=lambda k: k,
        nvmlDeviceGetMemoryInfo=lambda k: SimpleNamespace(used=mib[k] * 2**20),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert local.visible_gpus() == gpus
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,-1")
    assert local.visible_gpus() == ["3"]
