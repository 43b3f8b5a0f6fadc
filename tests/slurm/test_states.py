"""A study whose runs end in every way on a real SLURM: each state is right soon, by our records."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ablations.launch import dispatch
from ablations.launch.plan import make_plan
from ablations.slurm import commands as slurm
from ablations.slurm.scheduler import Scheduler
from ablations.store import cancel, states
from ablations.store.states import RunStatus, run_states
from ablations.study.model import Study
from sdtps.system.errors import SubmissionError
from tests.ablations import plant, standin
from tests.slurm.cluster import PATIENCE_S, Cluster, until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]

SOON = 120.0  # seconds after a run's end within which its state must be right, also on a busy machine
RESTARTS = "JobArrayID:20,RestartCnt:5"
ON_THE_WAY = {"queued", "running", "requeued"}
EXPECTED = {
    "ok": ("completed", None),
    "raise": ("failed", "error"),
    "exit3": ("failed", "exit"),
    "killed": ("failed", "killed"),
    "memory": ("failed", "oom"),
    "diverge": ("diverged", None),
    "sleep": ("failed", "timeout"),
    "sleep-scancelled": ("cancelled", None),
    "sleep-cancelled": ("cancelled", None),
}
FAILED = {name for name, (state, _) in EXPECTED.items() if state == "failed"}


class Look:
    """A study on a cluster, by variant."""

    def __init__(self, study: Study, runs: Path) -> None:
        self.study = study
        self.runs = runs
        self.scheduler = Scheduler(runs, refresh_s=1)

    def __call__(self) -> dict[str, RunStatus]:
        found = run_states(self.study.runs(), self.runs, self.scheduler)
        return {s.run.variant: s for s in found}

    def wait(self, wanted: Callable[[dict[str, RunStatus]], bool]) -> dict[str, RunStatus]:
        """The states as soon as they are as `wanted`."""
        found: dict[str, RunStatus] = {}

        def look() -> bool:
            found.update(self())
            return wanted(found)

        until(look, lambda: {k: (s.state, s.reason, s.log_tail) for k, s in found.items()})
        return found


@pytest.fixture(params=["accounting off", "accounting on"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Both kinds of cluster, one after the other."""
    name = "slurm" if request.param == "accounting off" else "slurm_with_accounting"
    found: Cluster = request.getfixturevalue(name)
    return found


def test_every_end_has_its_own_word_and_retry_takes_exactly_the_failed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "FRESH_SECONDS", 5.0)  # what was killed leaves a heartbeat behind
    # Waiting for the time limit takes longest: it goes first, and on one of the clusters only.
    order = [name for name in EXPECTED if name != "sleep"]
    if not cluster.accounting:
        order = ["sleep", *order]
    study = plant.study(tmp_path, order, own={"sleep": "{timeout_min: 1}"})
    look = Look(study, tmp_path / "runs")
    report = dispatch.submit(study.runs(), look.runs, entry=standin.ENTRY)
    assert len(report.jobs) == (1 if cluster.accounting else 2)

    ended: dict[str, float] = {}
    right: dict[str, float] = {}
    told = set()
    deadline = time.monotonic() + 2 * PATIENCE_S
    while len(right) < len(order):
        now = time.monotonic()
        found = look()
        queue = slurm.squeue(report.jobs)
        for name, status in found.items():
            job = queue.get(status.job_id or "")
            wanted = EXPECTED[name]
            if (job is not None and job.ended) or (status.state, status.kind) == wanted:
                ended.setdefault(name, now)
            if (status.state, status.kind) == wanted:
                right.setdefault(name, now)
            else:
                assert name not in right, f"{name} was {wanted} and is {status.state} ({status.reason})"
                assert status.state in ON_THE_WAY, f"{name} is called {status.state} ({status.reason})"
            if name.startswith("sleep") and status.state == "running" and name not in told:
                told.add(name)
                if name == "sleep":
                    cluster.end_soon(str(status.job_id), 2)
                elif name == "sleep-scancelled":  # by somebody who does not know of us
                    cluster.run("scancel", str(status.job_id))
                else:
                    cancel.cancel([status], look.runs)
        assert now < deadline, {k: (s.state, s.reason) for k, s in found.items()}
        time.sleep(0.5)
    late = {name: round(right[name] - ended[name], 1) for name in order}
    print(f"seconds from the end to the right state: {late}")
    assert max(late.values()) <= SOON, late
    found = look()
    assert "Exceeded job memory limit" in found["memory"].log_tail
    assert "ValueError: the loss went to the wrong place" in found["raise"].log_tail
    if "sleep" in order:
        assert "TIME LIMIT" in found["sleep"].log_tail
    files = [p for run in study.runs() for p in run.folder(look.runs).rglob("*") if not p.is_dir()]
    assert len(files) / len(study.runs()) < 12

    ends = [found[run.variant] for run in study.runs()]
    plan = make_plan(study, look.runs, ends, retry=["failed", "oom"])
    assert {a.run.variant for a in plan.submitted} == FAILED & set(order)
    again = dispatch.submit(
        [a.run for a in plan.submitted],
        look.runs,
        resume=[a.folder for a in plan.submitted],
        entry=standin.ENTRY,
    )
    assert {p.parent.name for p in again.submitted} == FAILED & set(order)
    for job in again.jobs:
        cluster.run("scancel", job)


def test_a_preempted_run_is_requeued_and_goes_on_from_its_checkpoint(
    cluster: Cluster, tmp_path: Path
) -> None:
    study = plant.study(tmp_path, ["polite"])
    look = Look(study, tmp_path / "runs")
    dispatch.submit(study.runs(), look.runs, entry=standin.ENTRY)
    look.wait(lambda s: s["polite"].state == "running" and s["polite"].epoch == 1)
    cluster.preempt()
    found = look.wait(lambda s: s["polite"].state == "requeued")
    assert found["polite"].attempt == 2
    folder = study.runs()[0].folder(look.runs)
    assert (folder / "checkpoint.pt").read_text() == "1", "SIGTERM left no time for a checkpoint"
    job = found["polite"].job_id
    assert job is not None
    cluster.start_now(job)
    found = look.wait(lambda s: s["polite"].state == "completed")
    assert found["polite"].attempt == 2


def test_a_run_at_its_time_limit_requeues_itself_and_no_other(slurm: Cluster, tmp_path: Path) -> None:
    study = plant.study(
        tmp_path,
        ["polite", "sleep"],
        resources="{partition: gpu, cpus: 1, mem_gb: 0.2, timeout_min: 1, max_requeues: 3}",
    )
    look = Look(study, tmp_path / "runs")
    report = dispatch.submit(study.runs(), look.runs, entry=standin.ENTRY)
    found = look.wait(lambda s: s["polite"].state == "requeued")
    # The other one has the same limit: when we look, SLURM may have ended it already.
    end = (found["sleep"].state, found["sleep"].kind)
    assert end in {("running", None), ("failed", "timeout")}, found["sleep"].reason
    assert found["sleep"].attempt == 1
    slurm.run("scancel", f"{report.jobs[0]}_1")
    restarts = slurm.run("squeue", "-hr", "-t", "all", "-j", report.jobs[0], "-O", RESTARTS).stdout
    assert dict(line.split() for line in restarts.splitlines())[f"{report.jobs[0]}_1"] == "0"
    slurm.start_now(f"{report.jobs[0]}_0")
    found = look.wait(lambda s: s["polite"].state == "completed")
    assert found["polite"].attempt == 2


def test_a_run_that_the_scheduler_holds_is_told_and_released(slurm: Cluster, tmp_path: Path) -> None:
    study = plant.study(
        tmp_path,
        ["ok"],
        resources="{partition: gpu, cpus: 1, mem_gb: 0.2, timeout_min: 1, sbatch: {hold: true}}",
    )
    look = Look(study, tmp_path / "runs")
    dispatch.submit(study.runs(), look.runs, entry=standin.ENTRY)
    found = look.wait(lambda found: found["ok"].held)["ok"]
    assert found.state == "queued" and "held (JobHeld" in found.detail
    cancel.release([found], look.runs)
    look.wait(lambda found: found["ok"].state == "completed")


def test_what_a_cluster_with_limits_refuses_names_the_key(
    slurm_with_accounting: Cluster, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    for resources, key in (
        ("{partition: nope, cpus: 1}", "resources.partition"),
        ("{qos: brief, timeout_min: 5}", "resources.timeout_min"),
        ("{account: nobody}", "resources.account"),
        ("{qos: nothing}", "resources.qos"),
        ("{gpus: 'huge:1'}", "resources.gpus"),
    ):
        study = plant.study(tmp_path, ["ok"], resources=resources)
        with pytest.raises(SubmissionError) as refused:
            dispatch.submit(study.runs(), runs, entry=standin.ENTRY)
        assert f"Change {key}" in str(refused.value)
    study = plant.study(
        tmp_path, ["beats"], seeds=8, resources="{qos: brief, cpus: 1, mem_gb: 0.2, timeout_min: 1}"
    )
    report = dispatch.submit(study.runs(), runs, entry=standin.ENTRY)
    assert report.partial and 1 <= len(report.submitted) <= 3
    assert cancel.cancel(run_states(study.runs(), runs), runs)
