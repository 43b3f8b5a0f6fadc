"""Several runs to a GPU: what the arrays and the batch script make of it, without a scheduler."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from ablations.launch import dispatch, worker
from ablations.launch.plan import make_plan
from ablations.slurm import endings
from ablations.slurm.arrays import chunks
from ablations.store import attempts as records
from ablations.store.states import run_states
from ablations.store.submissions import Submission
from ablations.study.schema import Resources
from sdtps.run.folder import RunFolder
from tests.ablations import plant

PACKED = (
    "{partition: gpu, gpus: 1, cpus: 2, mem_gb: 4, timeout_min: 5, runs_per_gpu: 3, max_parallel: 6}"
)


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        ({"runs_per_gpu": 2, "gpus": 0}, "runs_per_gpu 2 needs gpus: 1 and nodes: 1"),
        ({"runs_per_gpu": 2, "gpus": 2}, "runs_per_gpu 2 needs gpus: 1 and nodes: 1"),
        ({"runs_per_gpu": 2, "gpus": 1, "nodes": 2}, "runs_per_gpu 2 needs gpus: 1 and nodes: 1"),
        ({"runs_per_gpu": 3, "gpus": 1, "max_parallel": 2}, "more runs at once than max_parallel 2"),
        ({"sbatch": {"comment": "a\nrm x"}}, "is not a single line of text"),
        ({"sbatch": {"a\nb": 1}}, "is not a single line of text"),
    ],
)
def test_resources_that_no_job_can_have_are_refused(resources: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Resources.model_validate(resources)


@pytest.mark.parametrize(
    ("count", "limit", "array", "cpus", "memory", "together"),
    [  # 3 to a job
        (8, "6", "0-2%2", "6", "12288M", 3),
        (8, "null", "0-2%3", "6", "12288M", 3),
        (2, "6", "0-0%1", "4", "8192M", 2),
    ],
)
def test_a_job_asks_for_what_its_runs_need_together(
    tmp_path: Path, count: int, limit: str, array: str, cpus: str, memory: str, together: int
) -> None:
    resources = PACKED.replace("max_parallel: 6", f"max_parallel: {limit}")
    study = plant.study(tmp_path, [f"ok-{k}" for k in range(count)], resources=resources)
    (text,) = dispatch.render(
        make_plan(study, tmp_path / "runs", run_states(study.runs(), tmp_path / "runs"))
    )
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, re.MULTILINE))
    assert (options["array"], options["cpus-per-task"], options["mem"]) == (array, cpus, memory)
    assert (options["ntasks-per-node"], options["gpus-per-node"]) == ("1", "1")
    assert f"TOGETHER={together}\n" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert study.runs()[0].resources.summary().startswith("gpu · 1 GPU for 3 runs · 2 CPUs")


def test_arrays_are_cut_by_jobs_not_by_runs(tmp_path: Path) -> None:
    study = plant.study(tmp_path, [f"ok-{k}" for k in range(8)], resources=PACKED)
    assert [len(c.runs) for c in chunks(study.runs(), 4)] == [8]
    assert [len(c.runs) for c in chunks(study.runs(), 3)] == [3, 5]  # three jobs, whole ones


def test_a_run_knows_its_job_and_those_it_shares_it_with(tmp_path: Path) -> None:
    submission = Submission(tmp_path / "s/_jobs/n")
    submission.folder.mkdir(parents=True)
    runs = [tmp_path / f"s/v/seed{k}" for k in range(5)]
    submission.write_intent(runs, resources={"runs_per_gpu": 2})
    submission.write_receipt("77")
    assert [submission.element(run) for run in runs] == ["77_0", "77_0", "77_1", "77_1", "77_2"]
    assert submission.members(1) == runs[2:4] and submission.members(2) == runs[4:]


def test_a_signal_is_passed_on_to_each_run(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        worker._PassedOn([worker._Child(tmp_path, process)])(signal.SIGTERM, None)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("code", "terminated", "wrote", "ended"),
    [
        (0, False, "", False),  # srun's word for a run whose node went down
        (0, False, "result", True),
        (0, False, "diverged", True),
        (1, False, "", True),
        (137, True, "", False),
        (endings.INTERRUPTED, False, "", False),
    ],
)
def test_what_starts_again_with_its_job(
    tmp_path: Path, code: int, terminated: bool, wrote: str, ended: bool
) -> None:
    records.write_start(tmp_path, "s", "7_0", 0)
    records.write_end(tmp_path, "s", "7_0", 0, code, terminated=terminated)
    if wrote == "result":
        RunFolder(tmp_path).write_result({"best": {"mAP": 0.5}, "final": {"mAP": 0.5}})
    elif wrote:
        RunFolder(tmp_path).write_status("diverged", attempt=1)
    assert records.ended_by_itself(tmp_path, "s") is ended
