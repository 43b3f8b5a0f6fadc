"""Every run's state, told from our records, a scheduler that misbehaves, and no accounting."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ablations import cli
from ablations.launch import dispatch
from ablations.slurm import commands as slurm
from ablations.slurm import endings
from ablations.slurm.scheduler import Scheduler
from ablations.store import cancel
from ablations.store.states import run_states
from sdtps.run.folder import RunFolder
from tests.ablations.fakes import Fakes
from tests.ablations.plant import Queued

DEAD_JOB = "slurm_load_jobs error: Socket timed out on send/recv operation"


@pytest.mark.parametrize(
    ("scheduler", "began", "state", "kind"),
    [
        ({"state": "PENDING", "reason": "Priority"}, False, "queued", None),
        ({"state": "CONFIGURING"}, False, "queued", None),
        ({"state": "REQUEUE_HOLD"}, True, "requeued", None),
        ({"state": "SPECIAL_EXIT"}, True, "requeued", None),
        ({"state": "PENDING", "reason": "BeginTime", "restarts": 1}, True, "requeued", None),
        ({"state": "PREEMPTED"}, True, "requeued", None),
        ({"state": "RUNNING", "node": "n1"}, True, "running", None),
        ({"state": "COMPLETING"}, True, "running", None),
        ({"state": "SIGNALING"}, True, "running", None),
        ({"state": "SUSPENDED"}, True, "running", None),
        ({"state": "A_STATE_OF_NEXT_YEAR"}, True, "running", None),
        ({"state": "TIMEOUT"}, True, "failed", "timeout"),
        ({"state": "DEADLINE"}, False, "failed", "timeout"),
        ({"state": "OUT_OF_MEMORY"}, True, "failed", "oom"),
        ({"state": "NODE_FAIL"}, True, "failed", "node"),
        ({"state": "BOOT_FAIL"}, False, "failed", "node"),
        ({"state": "CANCELLED by 1000"}, True, "cancelled", None),
        ({"state": "CANCELLED"}, False, "cancelled", None),
        ({"state": "FAILED", "status": 256}, False, "failed", "start"),
        ({"state": "FAILED", "status": 9}, True, "failed", "killed"),
        ({"state": "FAILED", "status": 3 * 256}, True, "failed", "exit"),
        ({"state": "COMPLETED"}, True, "failed", "exit"),
    ],
)
def test_each_word_of_the_scheduler_is_one_of_ours(
    queued: Queued, scheduler: dict[str, Any], began: bool, state: str, kind: str | None
) -> None:
    if began:
        queued.begin()
    queued.fakes.set("1_0", **scheduler)
    found = queued.look()
    assert (found.state, found.kind) == (state, kind), found.detail


@pytest.mark.parametrize(
    ("code", "terminated", "log", "state", "kind"),
    [
        (1, False, "Traceback ...\nValueError: no", "failed", "exit"),
        (3, False, "", "failed", "exit"),
        (137, False, "", "failed", "killed"),
        (137, False, "slurmstepd: error: Exceeded job memory limit", "failed", "oom"),
        (137, False, "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0", "failed", "oom"),
        (1, False, "torch.OutOfMemoryError: CUDA out of memory.", "failed", "oom"),
        (1, False, "OSError: No space left on device", "failed", "disk"),
        (139, False, "", "failed", "crash"),
        (134, False, "", "failed", "crash"),
        (127, False, "srun: error: execve(): /nope: No such file or directory", "failed", "start"),
        (endings.SETUP_FAILED, False, "module: command not found", "failed", "start"),
        (endings.GAVE_UP, False, "", "failed", "timeout"),
        (0, False, "", "failed", "exit"),
        (143, True, "*** JOB 1 ON n1 CANCELLED AT ... DUE TO TIME LIMIT ***", "failed", "timeout"),
        (143, True, "*** JOB 1 ON n1 CANCELLED AT 2026-01-01 ***", "cancelled", None),
        (75, True, "*** JOB 1 ON n1 CANCELLED AT ... DUE TO PREEMPTION ***", "failed", "preempted"),
        (143, True, "*** JOB 1 ON n1 CANCELLED AT ... DUE TO NODE FAILURE ***", "failed", "node"),
    ],
)
def test_without_accounting_a_forgotten_job_s_end_is_told_from_our_records(
    queued: Queued, code: int, terminated: bool, log: str, state: str, kind: str | None
) -> None:
    queued.begin()
    queued.end(code, terminated=terminated)
    queued.log(log)
    queued.forget()
    found = queued.look()
    assert (found.state, found.kind) == (state, kind), found.detail
    if log:
        assert log.splitlines()[-1] in found.log_tail


@pytest.mark.parametrize(
    ("began", "state", "kind", "says"),
    [(True, "failed", "lost", ""), (False, "cancelled", "unstarted", "before it started")],
)
def test_a_job_that_is_gone_ends_in_a_definite_state(
    queued: Queued, began: bool, state: str, kind: str, says: str
) -> None:
    if began:
        queued.begin()
    queued.forget()
    found = queued.look()
    assert (found.state, found.kind) == (state, kind) and says in found.detail


def test_a_cancelled_job_stays_cancelled_when_it_is_forgotten(queued: Queued) -> None:
    cancel.cancel([queued.look()], queued.runs)
    assert queued.fakes.calls("scancel")[0]["argv"] == ["1_0"]
    assert queued.look().state == "cancelled"
    queued.forget()
    assert queued.look().state == "cancelled"
    assert cancel.cancel([queued.look()], queued.runs) == []
    assert len(queued.fakes.calls("scancel")) == 1  # nothing to cancel: nothing is asked


def test_an_exit_of_0_without_a_result_is_left_to_the_scheduler(queued: Queued) -> None:
    queued.begin()
    queued.end(0)  # what srun says of a run whose node went down
    queued.fakes.set("1_0", state="PENDING", reason="NodeDown", restarts=1)
    assert (queued.look().state, queued.look().attempt) == ("requeued", 2)
    queued.fakes.set("1_0", state="NODE_FAIL")
    assert (queued.look().state, queued.look().kind) == ("failed", "node")
    queued.fakes.set("1_0", state="COMPLETED")
    assert (queued.look().state, queued.look().kind) == ("failed", "exit")
    queued.log("slurmstepd: error: *** JOB 1 ON n CANCELLED AT X DUE TO NODE FAILURE ***")
    queued.forget()
    assert (queued.look().state, queued.look().kind) == ("failed", "node")


def test_a_cancelled_run_is_told_at_once_whatever_was_cached(tmp_path: Path, fakes: Fakes) -> None:
    queued = Queued(tmp_path, fakes, count=2)
    queued.scheduler = Scheduler(queued.runs)
    assert queued.look().state == "queued"
    cancel.cancel([queued.look()], queued.runs)
    fakes.set("1_1", state="RUNNING")
    assert queued.look().state == "cancelled"
    before = len(fakes.calls("squeue"))
    assert queued.look(index=1).state == "running"
    assert len(fakes.calls("squeue")) == before  # the new answer is shared again


def test_an_answer_that_was_on_its_way_when_a_run_was_cancelled_is_not_kept(
    queued: Queued, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = slurm.squeue

    def squeue(*jobs: Any, **more: Any) -> dict[str, slurm.JobInfo]:
        found = ask(*jobs, **more)
        monkeypatch.setattr(slurm, "squeue", ask)
        cancel.cancel([status], queued.runs)
        return found

    queued.scheduler = Scheduler(queued.runs)
    status = queued.look()
    queued.scheduler.expire()
    monkeypatch.setattr(slurm, "squeue", squeue)
    assert queued.look().state == "queued"
    assert queued.look().state == "cancelled"


def test_an_exception_that_the_run_recorded_needs_no_scheduler(queued: Queued) -> None:
    queued.begin()
    RunFolder(queued.folder).write_status("failed", attempt=1, kind="error", reason="ValueError: no")
    before = len(queued.fakes.calls("squeue"))
    found = queued.look()
    assert (found.state, found.kind, found.detail) == ("failed", "error", "ValueError: no")
    assert len(queued.fakes.calls("squeue")) == before


def test_a_result_is_all_that_completed_means(queued: Queued) -> None:
    RunFolder(queued.folder).write_status("completed", attempt=1)
    assert queued.look().state == "queued"
    (queued.folder / "result.json").write_text("")
    assert queued.look().state == "queued"
    RunFolder(queued.folder).result_file.unlink()
    RunFolder(queued.folder).write_result({"attempt": 1, "best": {"mAP": 0.25}, "select_metric": "mAP"})
    assert queued.look().state == "completed"


def test_somebody_else_s_job_under_our_id_is_not_our_job(queued: Queued) -> None:
    queued.fakes.set("1_0", name="somebody-else", state="COMPLETED")
    assert queued.look().state == "queued"
    queued.begin()
    assert queued.look().state == "running"


def test_other_jobs_and_banners_in_the_queue_change_nothing(queued: Queued) -> None:
    rows = f"77|RUNNING|0|n1|bash|0|None|\n1_0|RUNNING|0|n1|{queued.name}|0|None|\n"
    queued.fakes.answer("squeue", {"stdout": f"Welcome to job 12 of 1|2\n{rows}"})
    found = queued.look()
    assert (found.state, found.node) == ("running", "n1")


def test_a_controller_that_does_not_answer_changes_no_state(queued: Queued) -> None:
    queued.fakes.set("1_0", state="RUNNING", node="n1")
    queued.begin()
    assert queued.look().state == "running"
    queued.fakes.answer("squeue", *[{"exit": 1, "stderr": DEAD_JOB}] * 3)
    for _ in range(3):
        assert queued.look().state == "running"
    queued.fakes.set("1_0", state="TIMEOUT")
    assert queued.look().kind == "timeout"


def test_one_empty_answer_does_not_lose_a_job(queued: Queued) -> None:
    queued.fakes.set("1_0", state="RUNNING")
    queued.begin()
    assert queued.look().state == "running"
    queued.fakes.answer("squeue", {"stdout": ""})
    assert queued.look().state == "running"
    assert queued.look().state == "running"


def test_preempted_and_then_pending_is_requeued_throughout(queued: Queued) -> None:
    queued.begin()
    queued.end(endings.INTERRUPTED, terminated=True)
    RunFolder(queued.folder).write_status("requeued", attempt=1, epoch=4)
    for state in ("PREEMPTED", "PENDING"):
        queued.fakes.set("1_0", state=state, restarts=1)
        found = queued.look()
        assert (found.state, found.attempt, found.epoch) == ("requeued", 2, 4)
    queued.begin(restart=1)
    queued.fakes.set("1_0", state="RUNNING")
    assert queued.look().state == "running"


def test_an_answer_from_before_the_start_does_not_call_a_new_run_requeued(queued: Queued) -> None:
    queued.fakes.set("1_0", state="PENDING", reason="Resources")
    queued.begin()
    assert queued.look().state == "running"


def test_an_end_seen_once_is_remembered_when_the_controller_forgets(queued: Queued) -> None:
    queued.begin()
    queued.fakes.set("1_0", state="NODE_FAIL")
    assert queued.look().kind == "node"
    queued.forget()
    assert queued.look().kind == "node"


def test_what_an_earlier_submission_left_says_nothing_of_this_one(tmp_path: Path, fakes: Fakes) -> None:
    queued = Queued(tmp_path, fakes)
    queued.begin()
    RunFolder(queued.folder).write_status("failed", attempt=1, kind="error", reason="old")
    assert queued.look().state == "failed"
    dispatch.submit(queued.study.runs(), queued.runs, resume=[queued.folder])
    assert queued.look().state == "queued"
    assert queued.look().job_id == "2_0"


def test_two_watchers_of_48_runs_ask_once_a_refresh(tmp_path: Path, fakes: Fakes) -> None:
    queued = Queued(tmp_path, fakes, count=48)
    before = len(fakes.calls("squeue"))
    (queued.runs / f".squeue-{os.getuid()}.json").unlink(missing_ok=True)
    watchers = [Scheduler(queued.runs, refresh_s=15) for _ in range(2)]
    for _ in range(3):
        for watcher in watchers:
            run_states(queued.study.runs(), queued.runs, watcher)
    assert len(fakes.calls("squeue")) - before == 1


def test_disabled_accounting_is_asked_once_and_not_complained_about(
    tmp_path: Path, fakes: Fakes, capfd: pytest.CaptureFixture[str]
) -> None:
    queued = Queued(tmp_path, fakes)
    queued.begin()
    queued.forget()
    for _ in range(5):
        queued.look()
    assert len(fakes.calls("sacct")) == 1
    assert capfd.readouterr() == ("", "")


def test_accounting_settles_what_our_records_leave_open(queued: Queued) -> None:
    queued.begin()
    row = f"1_0|CANCELLED by 1000|0:15|n1|{queued.name}\n"
    queued.fakes.answer("sacct", {"stdout": row})
    queued.forget()
    assert queued.look().state == "cancelled"


def test_accounting_of_a_reused_id_is_not_believed(queued: Queued) -> None:
    queued.begin()
    queued.fakes.answer("sacct", {"stdout": "1_0|COMPLETED|0:0|n1|of-another-year\n"})
    queued.forget()
    assert (queued.look().state, queued.look().kind) == ("failed", "lost")


def test_telling_states_writes_nothing_into_the_runs(queued: Queued) -> None:
    queued.begin()
    before = {p: p.stat().st_mtime_ns for p in queued.runs.rglob("*") if ".squeue" not in p.name}
    queued.look()
    after = {p: p.stat().st_mtime_ns for p in queued.runs.rglob("*") if ".squeue" not in p.name}
    assert after == before


def test_a_run_that_ends_while_the_scheduler_is_asked_is_not_lost(
    queued: Queued, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued.begin()
    queued.fakes.set("1_0", state="RUNNING")
    ask = slurm.squeue

    def squeue(*jobs: Any, **more: Any) -> dict[str, slurm.JobInfo]:
        RunFolder(queued.folder).write_result({"attempt": 1})
        queued.end(0)
        queued.fakes.set("1_0", state="COMPLETED")
        return ask(*jobs, **more)

    monkeypatch.setattr(slurm, "squeue", squeue)
    assert queued.look().state == "completed"


def test_a_running_run_that_is_silent_says_so(
    queued: Queued, capsys: pytest.CaptureFixture[str]
) -> None:
    queued.begin(360)
    queued.fakes.set("1_0", state="RUNNING")
    cli.main(["status", str(queued.study.path), "--runs-dir", str(queued.runs)])
    assert "running 40 % (no heartbeat for 6 min)" in capsys.readouterr().out
