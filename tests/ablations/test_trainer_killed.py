"""A trainer killed at any of its writes: nothing is done that is not, nothing lost that was.

The folder of the runs is copied before every file that the process of a local queue and of its run
opens, removes or renames, before every sync, and before and in the middle of every write that reaches
the system, from the first line of the attempt's record to the last: what a kill at that moment leaves.
From each such state the next submission must come to the numbers of a run that nobody disturbed.
"""

from __future__ import annotations

import builtins
import gc
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablations.launch import dispatch, local, worker
from ablations.launch.plan import make_plan
from ablations.store import attempts as records
from ablations.store import locks, snapshot
from ablations.store.states import run_states
from ablations.study.manifest import load_study
from ablations.study.model import Study
from sdtps.run import provenance
from sdtps.run.folder import RunFolder, row_of
from sdtps.system.files import read_bytes
from sdtps.training import checkpoint
from sdtps.training.attempt import execute
from tests.ablations.copies import Copies, in_process
from tests.sdtps.toy_task import ToyTask

MANIFEST = """\
study: killed
task: reid
overrides:
  train: {epochs: 2, amp: off, log_every: 1, checkpoint_every_steps: 3, checkpoint_every_s: 0}
seeds: [0]
baseline: only
varies: [optim.lr]
resources: {cpus: 1}
metrics: {mAP: {direction: up}}
variants: {only: {optim.lr: 1e-2}}
"""
STEPS = 2  # in each of two epochs: the checkpoint after the third is in the middle of one
TIMED = {
    "images_per_s",
    "memory_mib",
    "attempt",
    "time",
}  # of a row: differ between two undisturbed runs
STATES_OF_DIVERGED = 10  # the last, in which it differs from a run that completes
WRITES_AT_LEAST, STATES_AT_LEAST = 80, 30
# Files whose writes a test of every write must have seen.
FILES = {"attempts.txt", "run.json", "status.json", "metrics.jsonl", "train.log", "checkpoint.pt"}
EVENTS = {"os.link", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate"}


class _Tap:
    """Numbers this process's writes below `folder`, and takes a copy of it before each.

    Attributes:
        busy: nothing is numbered or copied.
    """

    def __init__(self, folder: Path, copies: Copies | None) -> None:
        self.folder, self.copies = str(folder), copies
        self.seen, self.busy = 0, copies is None
        self.touched: set[str] = set()

    def __call__(self, what: str = "") -> None:
        if self.busy or self.copies is None:
            return
        self.busy = True
        self.touched.add(Path(what).name)
        self.copies.take(self.seen)
        self.seen += 1
        self.busy = False

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Before a file is made, opened for writing, renamed or removed (see sys.audit)."""
        writing = os.O_CREAT | os.O_WRONLY | os.O_RDWR
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & writing
        if (opened or event in EVENTS) and str(arguments[0]).startswith(self.folder):
            self(str(arguments[1] if event == "os.rename" else arguments[0]))

    def write(self, write: Callable[[Any], int], content: Any) -> int:
        """Before the write, and in the middle of it."""
        whole = bytes(content)
        self()
        half = write(whole[: len(whole) // 2])
        self()
        return half + write(whole[half:])

    def install(self) -> None:
        """From here on; for processes that end with os._exit."""
        sys.addaudithook(self.audit)
        tap, raw_write, fsync, plain = self, os.write, os.fsync, io.open

        class Raw(io.FileIO):
            def write(self, content: Any) -> int:
                return tap.write(super().write, content)

        def opened(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            if tap.busy or not set("wax+") & set(mode):
                return plain(file, mode, *more, **named)
            raw = Raw(file, mode.replace("b", "").replace("t", ""))
            stream = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return stream if "b" in mode else io.TextIOWrapper(stream, encoding="utf-8")

        def synced(handle: int) -> None:
            tap()
            fsync(handle)

        builtins.open = io.open = opened  # type: ignore[assignment]
        os.write = lambda handle, content: tap.write(lambda part: raw_write(handle, part), content)
        os.fsync = synced
        sys.stdout = sys.stderr = opened(1, "w")


def _submit(study: Study, runs: Path, copies: Copies | None = None, seen: Path | None = None) -> None:
    """Plan and work through the study in a process of its own.

    Args:
        copies: of `runs`, one for each kill that leaves something else.
        seen: a file for the number of writes, and the names of the files written.
    """

    def run_queue(submission: Any, *_: Any) -> dict[Path, str]:
        os.environ.update(SUBMITIT_EXECUTOR="local", SUBMITIT_LOCAL_JOB_ID=str(os.getpid()))
        tap = _Tap(runs, copies)
        if copies is not None:
            tap.install()
        for place in range(len(submission.runs)):
            worker.main([str(submission.folder), str(place)])
        tap.busy = True
        if seen is not None:
            seen.write_text("\n".join([str(tap.seen), *sorted(tap.touched)]))
        return {}

    def work() -> None:
        known = run_states(study.runs(), runs)
        plan = make_plan(study, runs, known)
        local.run_queue = run_queue
        dispatch.submit(
            [action.run for action in plan.submitted],
            runs,
            executor="local",
            resume=[action.folder for action in plan.submitted if action.start == "resume"],
            over=[action.folder for action in plan.submitted if action.start == "over"],
        )

    in_process(work)


def _rows(folder: RunFolder) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if k not in TIMED}
        for row in folder.resolved_metrics()
        if row.get("event") != "resumed"
    ]


def _result(folder: RunFolder) -> dict[str, Any] | None:
    """What of a result does not depend on the clock or on how often the run was begun."""
    result = folder.result()
    if result is None:
        return None
    untimed = {k: {n: v for n, v in result[k].items() if n not in TIMED} for k in ("best", "final")}
    return {k: result[k] for k in ("steps", "select_metric", "selected_on")} | untimed


def _checkpoint_step(folder: RunFolder) -> int:
    """The step from which a resume would go on; that of the kept weights once the run has completed."""
    if folder.result() is not None:
        return int(checkpoint.load_weights(folder.weights_file("last"))[1]["step"])
    saved = checkpoint.load(folder.checkpoint_file)
    return -1 if saved is None else int(saved["step"])


def _weights(folder: RunFolder) -> dict[str, Any]:
    """The kept weights of the selected and of the last epoch."""
    found: dict[str, Any] = {}
    for which in ("best", "last"):
        weights, about = checkpoint.load_weights(folder.weights_file(which))  # type: ignore[arg-type]
        found[which] = {name: value.tolist() for name, value in weights.items()}, about["step"]
    return found


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    code = {"commit": "0" * 40, "dirty": False, "digest": "0" * 12, "diff": "+ a line"}
    monkeypatch.setattr(provenance, "code_version", lambda *_: dict(code))  # asks git, writes nothing
    monkeypatch.setattr(snapshot, "freeze", lambda runs_dir: runs_dir)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    path = tmp_path / "killed.yaml"
    path.write_text(MANIFEST)
    return load_study(path)


@pytest.mark.parametrize("blow_up_at", [None, 3], ids=["completes", "diverges"])
def test_killed_at_any_write_the_next_submission_repairs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, study: Study, blow_up_at: int | None
) -> None:
    monkeypatch.setattr(
        "sdtps.training.attempt.build_task",
        lambda _, seed, __: ToyTask(seed, steps=STEPS, blow_up_at=blow_up_at),
    )
    (run,) = study.runs()
    state = "completed" if blow_up_at is None else "diverged"
    warm = RunFolder(tmp_path / "warm")  # imports that each forked process would make anew
    warm.create(run.config, {"seed": run.seed})
    execute(warm.path)
    gc.freeze()  # a collection would copy every page of a forked process
    runs, seen = tmp_path / "runs", tmp_path / "seen"
    runs.mkdir()
    copies = Copies(runs, tmp_path / "states")
    folder = RunFolder(run.folder(runs))
    _submit(study, runs, copies, seen)
    assert run_states([run], runs)[0].state == state
    count, *touched = seen.read_text().splitlines()
    assert set(touched) >= FILES | ({"result.json"} if blow_up_at is None else set())
    assert int(count) > WRITES_AT_LEAST, "fewer writes than a run has: this test sees too little"
    rows, raw, result = _rows(folder), len(folder.metrics()), _result(folder)
    weights = _weights(folder) if state == "completed" else None
    recorded, saved = 0, -1  # never fall, the later the kill

    left = sorted(copies.to.iterdir())
    assert len(left) > STATES_AT_LEAST, "fewer states than a run has: this test sees too little"
    if blow_up_at is not None:  # until the loss explodes, both runs write the same
        left = left[-STATES_OF_DIVERGED:]
    for copy in left:
        where = copies.put_back(copy)

        # What was done is recorded, and nothing else.
        kept = len(folder.metrics())
        assert [r for r in _rows(folder) if r["kind"] != "event"] == [
            r for r in rows[:kept] if r["kind"] != "event"
        ], where
        written = read_bytes(folder.metrics_file) or b""
        torn = [line for line in written.splitlines() if row_of(line) is None]
        assert recorded <= kept <= raw and len(torn) <= 1, where
        # A run that has its result keeps no checkpoint.
        assert folder.result() is not None or _checkpoint_step(folder) >= saved, where
        recorded, saved = kept, max(saved, _checkpoint_step(folder))
        assert _result(folder) in (None, result), where
        (found,) = run_states([run], runs)
        done = folder.result() is not None or (folder.status() or {}).get("state") == "diverged"
        lock = locks.read(folder.path)
        assert lock is not None, where
        began = records.read(folder.path, lock.submission).last_start is not None
        assert found.state == (state if done else "interrupted" if began else "planned"), (where, found)
        (action,) = make_plan(study, runs, [found]).actions
        assert action.action == ("skip" if done else "submit"), where

        _submit(study, runs)
        assert run_states([run], runs)[0].state == state, where
        assert _rows(folder) == rows, where
        assert _result(folder) == result, where
        if weights is not None:
            assert _weights(folder) == weights, where
        assert done or not [p.name for p in folder.path.glob(".*")], f"{where}: temporary files"
