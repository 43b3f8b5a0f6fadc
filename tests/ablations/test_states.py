"""Silence is not death: what a scheduler cannot know starts, ends and deletes nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from ablations.launch import dispatch
from ablations.launch.plan import make_plan
from ablations.slurm import commands as slurm
from ablations.slurm import endings
from ablations.slurm.scheduler import Scheduler
from ablations.store import attempts as records
from ablations.store import cancel, clean, locks, states
from ablations.store.locks import Process
from ablations.store.states import run_states
from ablations.store.submissions import Submission
from sdtps.run.folder import RunFolder
from tests.ablations import plant
from tests.ablations.fakes import Fakes
from tests.ablations.plant import Queued

DOWN = {"exit": 1, "stderr": "slurm_load_jobs error: Unable to contact slurm controller"}


def of(queued: Queued, user: str) -> None:
    """As if somebody else had submitted it."""
    lock = locks.read(queued.folder)
    assert lock is not None
    (queued.folder / "lock.json").write_text(json.dumps(dataclasses.replace(lock, user=user).json()))


# -- a heartbeat ----------------------------------------------------------------------------------


@pytest.mark.parametrize("beat", [1.0, 100.0])
def test_a_run_that_beats_is_running_whatever_the_scheduler_has_forgotten(
    queued: Queued, beat: float
) -> None:
    queued.begin(beat)
    queued.forget()
    assert queued.look().state == "running"
    assert queued.submit() == []


def test_a_run_that_has_just_beaten_is_running_also_where_the_scheduler_says_it_ended(
    queued: Queued,
) -> None:
    queued.begin(1.0)
    queued.fakes.set("1_0", state="COMPLETED")
    assert queued.look().state == "running"
    assert queued.submit() == []


def test_a_heartbeat_from_the_future_is_no_sign_of_life(queued: Queued) -> None:
    assert states.silent({"heartbeat": time.time() + 3600})
    assert not states.silent({"heartbeat": time.time() + 5})
    assert not states.silent({"heartbeat": time.time() - states.SILENT_SECONDS + 5})
    assert states.silent({"heartbeat": time.time() - states.SILENT_SECONDS - 5})
    queued.begin(-3600)
    queued.fakes.set("1_0", state="RUNNING")
    assert queued.look().state == "running"  # by the scheduler's word
    queued.fakes.answer("squeue", *[DOWN] * 3)
    (queued.runs / f".squeue-{os.getuid()}.json").unlink()
    assert queued.look().state == "unknown"


# -- a scheduler that cannot know -----------------------------------------------------------------


def test_a_silent_controller_leaves_a_silent_run_unknown_and_nothing_is_started(
    queued: Queued,
) -> None:
    queued.begin(10_000)
    queued.fakes.answer("squeue", *[DOWN] * 6)
    found = queued.look()
    assert found.state == "unknown"
    assert "does not answer" in found.detail and "Unable to contact" in found.detail
    assert queued.submit() == []
    plan = make_plan(queued.study, queued.runs, [found])
    assert [a.action for a in plan.actions] == ["skip"]
    assert "--retry unknown" in plan.actions[0].reason
    assert clean.select_folders(queued.study, queued.runs, [found], in_states=clean.CLEANED) == []
    assert cancel.cancel([found], queued.runs) == []
    assert make_plan(queued.study, queued.runs, [found], retry=["unknown"]).submitted


def test_a_controller_that_is_down_is_not_asked_again_at_once(queued: Queued) -> None:
    queued.begin(10_000)
    queued.fakes.answer("squeue", DOWN)
    before = len(queued.fakes.calls("squeue"))
    (queued.runs / f".squeue-{os.getuid()}.json").unlink(missing_ok=True)
    for _ in range(4):
        assert queued.look(refresh_s=15).state == "unknown"
    assert len(queued.fakes.calls("squeue")) - before == 1


def test_a_last_answer_stands_for_a_while_and_says_how_old_it_is(queued: Queued) -> None:
    queued.fakes.set("1_0", state="PENDING", reason="Priority")
    assert queued.look().state == "queued"
    queued.fakes.answer("squeue", DOWN)
    found = queued.look()
    assert found.state == "queued"
    assert "as of 0 min ago" in found.detail and "does not answer" in found.detail


def test_another_user_s_job_that_the_scheduler_does_not_show_is_unknown(queued: Queued) -> None:
    of(queued, "colleague")
    queued.begin(10_000)
    queued.forget()
    found = queued.look()
    assert found.state == "unknown"
    assert "colleague" in found.detail
    assert queued.submit() == []
    assert clean.select_folders(queued.study, queued.runs, [found], in_states=clean.CLEANED) == []


def test_another_user_s_job_is_asked_for_by_its_id(queued: Queued) -> None:
    of(queued, "colleague")
    queued.fakes.set("1_0", state="RUNNING", node="n7")
    found = queued.look()
    assert (found.state, found.node) == ("running", "n7")
    argv = queued.fakes.calls("squeue")[-1]["argv"]
    assert "--jobs=1" in argv and not any(a.startswith(("--user", "--me")) for a in argv)


def test_a_job_of_another_cluster_is_asked_for_there(queued: Queued) -> None:
    queued.edit("receipt.json", cluster="far")
    queued.begin(10_000)
    queued.fakes.set("1_0", state="RUNNING")
    assert queued.look().state == "running"
    assert "--clusters=far" in queued.fakes.calls("squeue")[-1]["argv"]
    no_database = {"exit": 1, "stderr": "squeue: error: 'far' can't be reached now"}
    queued.fakes.answer("squeue", *[no_database] * 3)
    (queued.runs / f".squeue-{os.getuid()}.json").unlink()
    found = queued.look()
    assert found.state == "unknown"
    assert "on far" in found.detail
    assert queued.submit() == []


def test_clusters_that_share_a_store_keep_their_answers_apart(
    queued: Queued, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same id is another job there: its absence there says nothing of ours."""
    monkeypatch.setattr(slurm, "cluster_name", lambda: "fake")
    queued.fakes.set("1_0", state="RUNNING")
    assert queued.look(refresh_s=3600).state == "running"
    monkeypatch.setattr(slurm, "cluster_name", lambda: "far")
    queued.edit("receipt.json", cluster="far", time=time.time() - 600)
    queued.fakes.set("1_0", state="FAILED", status=256)
    assert queued.look(refresh_s=3600).state == "failed"  # asked anew: the answer was the other's


@pytest.mark.parametrize("command", ["squeue", "sacct", "scancel", "scontrol", "sbatch"])
def test_no_variable_of_the_shell_reaches_a_command(
    tmp_path: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    names = ["PARTITION", "ACCOUNT", "QOS", "NAMES", "LICENSES", "USERS", "STATES", "SORT", "FORMAT2"]
    foreign = {f"SQUEUE_{name}": "x" for name in names}
    foreign |= {f"SACCT_{name}": "x" for name in ("FORMAT", "FEDERATION", "LOCAL")}
    foreign |= {"SLURM_JOB_ID": "7", "SLURM_CPU_BIND": "7", "SRUN_CPUS_PER_TASK": "7", "RANK": "7"}
    foreign |= {"SBATCH_WAIT": "1", "SBATCH_CLUSTERS": "x", "SLURM_CLUSTERS": "x", "SCANCEL_QOS": "x"}
    for name, value in {**foreign, "SLURM_CONF": "/etc/x.conf"}.items():
        monkeypatch.setenv(name, value)
    queued = Queued(tmp_path, fakes)
    queued.begin(10_000)
    queued.look()
    slurm.requeue("1_0")
    cancel.cancel([queued.look()], queued.runs)
    queued.forget()
    assert fakes.calls(command)
    for call in fakes.calls(command):
        assert not set(foreign) & set(call["env"])
        assert call["env"]["SLURM_CONF"] == "/etc/x.conf"


def test_a_cached_answer_from_the_future_is_asked_anew(queued: Queued) -> None:
    queued.fakes.set("1_0", state="RUNNING")
    assert queued.look().state == "running"
    file = queued.runs / f".squeue-{os.getuid()}.json"
    value = json.loads(file.read_text())
    ahead = time.time() + 3600
    for row in value["clusters"].values():
        row["time"] = ahead
        row["answered"] = {array: [ahead, ahead] for array in row["answered"]}
    file.write_text(json.dumps(value))
    queued.fakes.set("1_0", state="TIMEOUT")
    assert queued.look(refresh_s=3600).kind == "timeout"


# -- ends -----------------------------------------------------------------------------------------


def test_preempted_for_good_ends_and_is_resumed(queued: Queued) -> None:
    queued.begin(10_000)
    queued.end(endings.INTERRUPTED, terminated=True)
    queued.fakes.set("1_0", state="PREEMPTED")
    assert queued.look().state == "requeued"
    lines = records.attempts_file(queued.folder).read_text().splitlines()
    old = [f"{line.rpartition(' ')[0]} {time.time() - 1000:.0f}" for line in lines]
    records.attempts_file(queued.folder).write_text("".join(f"{line}\n" for line in old))
    found = queued.look()
    assert (found.state, found.kind) == ("failed", "preempted")
    assert make_plan(queued.study, queued.runs, [found]).submitted


@pytest.mark.parametrize(
    ("code", "kind"),
    [(128 + signal.SIGSEGV, "crash"), (128 + signal.SIGBUS, "crash"), (3, "exit")],
)
def test_a_run_s_own_fault_is_not_submitted_again_by_itself(
    queued: Queued, code: int, kind: str
) -> None:
    queued.begin(10_000)
    queued.end(code)
    queued.fakes.set("1_0", state="FAILED")
    found = queued.look()
    assert (found.state, found.kind) == ("failed", kind)
    assert ("SIG" in found.detail) == (kind == "crash")
    assert queued.submit() == []
    plan = make_plan(queued.study, queued.runs, [found])
    assert [a.action for a in plan.actions] == ["skip"]
    assert make_plan(queued.study, queued.runs, [found], retry=["failed"]).submitted


def test_a_run_that_is_killed_again_and_again_is_resumed_only_on_request(queued: Queued) -> None:
    for number in range(states.MOST_KILLS):
        queued.name = queued.fakes.arrays()[-1]["name"]
        job = f"{queued.fakes.arrays()[-1]['id']}_0"
        records.write_start(queued.folder, queued.name, job, 0)
        records.write_end(queued.folder, queued.name, job, 0, records.KILLED, terminated=False)
        found = queued.look()
        assert (found.state, found.kind) == ("failed", "killed")
        again = make_plan(queued.study, queued.runs, [found]).submitted
        assert bool(again) == (number < states.MOST_KILLS - 1), found.detail
        if again:
            dispatch.submit(queued.study.runs(), queued.runs, resume=[queued.folder])


def test_an_end_is_its_own_restart_s_and_a_kill_after_sigterm_is_not_counted(queued: Queued) -> None:
    for restart, terminated in enumerate([True, False]):
        queued.begin(restart=restart)
        assert records.read(queued.folder, queued.name).last_end is None
        queued.end(records.KILLED, restart=restart, terminated=terminated)
    assert records.read(queued.folder, queued.name).kills == 1


def test_what_follows_a_torn_record_is_read(queued: Queued) -> None:
    queued.begin()
    records.attempts_file(queued.folder).write_text(f"end {queued.name} 1_0")
    queued.begin()
    assert records.read(queued.folder, queued.name).last_start is not None


# -- copies ---------------------------------------------------------------------------------------


def _copied(queued: Queued, name: str) -> Path:
    copy = queued.runs.with_name(name)
    shutil.copytree(queued.runs, copy, symlinks=True)
    return copy


def test_a_moved_store_keeps_its_states(queued: Queued) -> None:
    queued.begin(10_000)
    queued.end(1)
    (queued.jobs / "1_0.log").write_text("slurmstepd: error: Exceeded job memory limit\n")
    before = queued.look()
    moved = queued.runs.rename(queued.runs.with_name("elsewhere"))
    found = queued.look(moved)
    assert (found.state, found.kind) == (before.state, before.kind) == ("failed", "oom")
    assert not found.elsewhere
    assert str(queued.runs) not in "".join(
        p.read_text() for p in moved.rglob("runs.txt") if p.is_file()
    )


@pytest.mark.parametrize("known", [True, False], ids=["its job failed", "its job is forgotten"])
def test_a_run_whose_store_was_moved_before_its_job_began_says_so(queued: Queued, known: bool) -> None:
    moved = queued.runs.rename(queued.runs.with_name("elsewhere"))
    assert queued.look(moved).state == "queued"
    if known:
        queued.fakes.set("1_0", state="FAILED", status=256)
    else:
        queued.fakes.set("1_0", gone=True)
        (receipt,) = moved.rglob("receipt.json")
        receipt.write_text(json.dumps({**json.loads(receipt.read_text()), "time": time.time() - 600}))
        queued.look(moved), queued.look(moved)  # two answers without the job are believed
    Scheduler(moved).expire()
    found = queued.look(moved)
    assert (found.state, found.kind) == ("failed", "start")
    assert f"the store was at {queued.runs} when it was submitted" in found.detail
    (action,) = make_plan(queued.study, moved, [found], retry=["failed"]).submitted
    assert dispatch.submit([action.run], moved, resume=[action.folder]).submitted


def test_a_copy_tells_its_own_states_and_submits_nothing_of_the_original(queued: Queued) -> None:
    queued.fakes.set("1_0", state="RUNNING")
    queued.begin(10_000)
    copy = _copied(queued, "copy")
    assert queued.look().state == "running"
    found = queued.look(copy)
    assert found.state == "unknown"
    assert str(queued.runs) in found.detail
    queued.fakes.set("1_0", state="NODE_FAIL")
    assert queued.look().resumes
    assert queued.look(copy).state == "unknown"
    plain = dispatch.submit(queued.study.runs(), copy)
    assert plain.submitted == []
    asked = dispatch.submit(queued.study.runs(), copy, resume=[queued.study.runs()[0].folder(copy)])
    assert len(asked.submitted) == 1


@pytest.mark.parametrize("beat", [1.0, 10_000.0], ids=["just copied", "copied long ago"])
def test_a_copy_of_a_local_queue_s_runs_does_not_look_at_processes(tmp_path: Path, beat: float) -> None:
    study, runs = plant.study(tmp_path, ["ok", "raise"]), tmp_path / "runs"
    folders = [run.folder(runs) for run in study.runs()]
    work = Submission(runs / "endings/_jobs/sdtps-endings-1")
    work.begin(locks.Lock.new(work.name, "local"))  # of this process: it lives
    for folder in folders:
        folder.mkdir(parents=True)
        locks.take(folder, work.lock_file)
    work.write_intent(folders, entry="standin:execute", max_requeues=0)
    records.write_start(folders[0], work.name, "1", 0)
    status = {"state": "running", "attempt": 1, "heartbeat": time.time() - beat, "epoch": 2}
    (folders[0] / "status.json").write_text(json.dumps(status))
    assert [s.state for s in run_states(study.runs(), runs)] == ["running", "queued"]
    copy = tmp_path / "copy"
    shutil.copytree(runs, copy, symlinks=True)
    found = run_states(study.runs(), copy)
    assert [s.state for s in found] == ["running" if beat < 60 else "unknown", "unknown"]
    assert f"a copy of {runs}" in found[1].detail
    assert dispatch.submit(study.runs(), copy, executor="local").submitted == []


def test_a_copy_cancels_nothing_of_the_original(queued: Queued) -> None:
    queued.begin(1.0)
    copy = _copied(queued, "copy")
    found = queued.look(copy)
    assert found.state == "running"  # as of the copy, a moment ago
    assert cancel.cancel([found], copy) == []
    folder = queued.study.runs()[0].folder(copy)
    status = {**(RunFolder(folder).status() or {}), "heartbeat": time.time() - 10_000}
    (folder / "status.json").write_text(json.dumps(status))
    dispatch.submit(queued.study.runs(), copy, resume=[folder])
    assert queued.fakes.calls("scancel") == []


@pytest.mark.parametrize("ours", [True, False])
def test_before_an_unknown_run_is_run_again_its_own_job_ends(queued: Queued, ours: bool) -> None:
    queued.begin(10_000)
    queued.fakes.set("1_0", state="RUNNING", name=queued.name if ours else "somebody-else")
    (queued.runs / f".squeue-{os.getuid()}.json").unlink(missing_ok=True)
    queued.fakes.answer("squeue", DOWN)  # so that the state is unknown
    asked = dispatch.submit(queued.study.runs(), queued.runs, resume=[queued.folder])
    assert asked.submitted == [queued.folder]
    assert [c["argv"] for c in queued.fakes.calls("scancel")] == ([["1_0"]] if ours else [])


def test_an_end_in_a_copy_is_told_as_in_the_original_but_not_resumed_by_itself(queued: Queued) -> None:
    queued.begin(10_000)
    queued.end(records.KILLED)
    copy = _copied(queued, "copy")
    here, there = queued.look(), queued.look(copy)
    assert (here.state, here.kind) == (there.state, there.kind) == ("failed", "killed")
    assert make_plan(queued.study, queued.runs, [here]).submitted
    plan = make_plan(queued.study, copy, [there])
    assert plan.submitted == [] and "copy of" in plan.actions[0].reason
    assert make_plan(queued.study, copy, [there], retry=["failed"]).submitted


def test_records_alone_say_the_same_as_a_silent_scheduler(queued: Queued) -> None:
    assert states.from_records(queued.folder).state == "unknown"  # queued, for all we know
    queued.begin(1.0)
    assert states.from_records(queued.folder).state == "running"
    queued.end(3)
    assert states.from_records(queued.folder).reason.startswith("exit")
    assert states.from_records(queued.runs / "endings/ok/seed9-none").state == "planned"


# -- deleting -------------------------------------------------------------------------------------


def test_clean_leaves_what_waits_in_the_queue_though_no_variant_plans_it(
    queued: Queued, tmp_path: Path
) -> None:
    other = plant.study(tmp_path / "other", ["raise"])
    for state, kept in (("PENDING", True), ("RUNNING", True), ("FAILED", False)):
        queued.fakes.set("1_0", state=state)
        Scheduler(queued.runs).expire()
        (chosen,) = clean.select_folders(other, queued.runs, [], unplanned=True)
        assert bool(chosen.kept) is kept, state


def test_clean_looks_once_more_before_it_deletes(queued: Queued) -> None:
    queued.fakes.set("1_0", state="FAILED", status=256)
    doomed = clean.select_folders(queued.study, queued.runs, [queued.look()])
    assert [d.folder for d in doomed] == [queued.folder]
    dispatch.submit(queued.study.runs(), queued.runs, resume=[queued.folder])
    assert clean.delete_folders(doomed, queued.runs) == []
    assert queued.folder.is_dir()


# -- local queues -----------------------------------------------------------------------------------


def test_a_local_queue_on_another_host_lives_by_its_heartbeat(tmp_path: Path) -> None:
    study = plant.study(tmp_path, ["ok"])
    runs = tmp_path / "runs"
    folder = study.runs()[0].folder(runs)
    work = Submission(runs / "endings/_jobs/sdtps-endings-1")
    elsewhere = Process("another-host", 1234, "boot", 99)
    work.begin(locks.Lock(work.name, "local", elsewhere, time.time() - 10_000, user="me"))
    folder.mkdir(parents=True)
    locks.take(folder, work.lock_file)
    work.write_intent([folder])
    work.beat()
    assert run_states(study.runs(), runs)[0].state == "queued"
    (work.folder / "queue.json").write_text(json.dumps({"heartbeat": time.time() - 10_000}))
    found = run_states(study.runs(), runs)[0]
    assert found.state == "unknown"
    assert "another-host" in found.detail
    assert dispatch.submit(study.runs(), runs, executor="local").submitted == []


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_where_locks_do_not_work_a_run_is_taken_over_all_the_same(
    tmp_path: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre without `-o flock` answers ENOSYS."""
    import errno
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    queued = Queued(tmp_path, fakes)
    queued.fakes.set("1_0", state="NODE_FAIL")
    found = dispatch.submit(queued.study.runs(), queued.runs, resume=[queued.folder])
    assert found.submitted == [queued.folder]
    assert RunFolder(queued.folder).lock_file.is_file()
