"""A node that goes down under a run, on a real SLURM: the run comes back, or its end has a name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ablations.launch import dispatch
from ablations.launch.plan import make_plan
from ablations.store.states import RunStatus
from tests.ablations import plant, standin
from tests.slurm.cluster import NODE, Cluster
from tests.slurm.test_states import Look

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]


@pytest.fixture(params=["accounting off", "accounting on"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Both kinds of cluster; the node is up again afterwards."""
    name = "slurm" if request.param == "accounting off" else "slurm_with_accounting"
    found: Cluster = request.getfixturevalue(name)
    yield found
    found.run("scontrol", "update", f"NodeName={NODE}", "State=RESUME")
    found.wait_for_node()


def test_a_run_whose_node_fails_is_requeued_and_completes(cluster: Cluster, tmp_path: Path) -> None:
    look = _running(tmp_path, "twice")
    _fail_node(cluster)
    found = look.wait(lambda s: s["twice"].state == "requeued")
    assert found["twice"].attempt == 2
    job = str(found["twice"].job_id)

    def completed(states: dict[str, RunStatus]) -> bool:
        if states["twice"].state == "requeued":
            # A launch beside what is still being killed fails; the node is drained and the job held.
            cluster.run("scontrol", "update", f"NodeName={NODE}", "State=RESUME")
            cluster.run("scontrol", "release", job)
            cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        return states["twice"].state == "completed"

    found = look.wait(completed)
    assert found["twice"].attempt == 2


def test_a_run_that_does_not_come_back_failed_by_its_node_and_is_submitted_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    look = _running(tmp_path, "sleep")
    job = str(look()["sleep"].job_id)
    assert cluster.run("scontrol", "update", f"JobId={job}", "Requeue=0").returncode == 0
    _fail_node(cluster)
    found = look.wait(lambda s: s["sleep"].state == "failed")
    assert found["sleep"].kind == "node", found["sleep"].detail
    (action,) = make_plan(look.study, look.runs, [found["sleep"]]).submitted
    assert action.start == "resume"


def _running(folder: Path, variant: str) -> Look:
    study = plant.study(folder, [variant])
    look = Look(study, folder / "runs")
    dispatch.submit(study.runs(), look.runs, entry=standin.ENTRY)
    look.wait(lambda s: s[variant].state == "running" and s[variant].epoch == 1)
    return look


def _fail_node(cluster: Cluster) -> None:
    done = cluster.run("scontrol", "update", f"NodeName={NODE}", "State=DOWN", "Reason=test")
    assert done.returncode == 0, done.stderr
