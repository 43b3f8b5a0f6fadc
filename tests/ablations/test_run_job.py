"""Runs as submitit's jobs: one executor for the command line and notebooks, and its hooks."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.core import core, utils

import ablations
from ablations.launch.dispatch import LocalRunsExecutor
from ablations.slurm.executor import Entry, RunsExecutor, train
from ablations.slurm.run_job import RunJob, RunWatcher
from ablations.store.states import run_states
from ablations.store.submissions import Submission
from sdtps.run.folder import RunFolder
from sdtps.system.errors import SubmissionError
from tests.ablations import plant, standin
from tests.ablations.fakes import Fakes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, where jobs call the stand-in."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((standin.PATH, str(ROOT))))
    monkeypatch.setenv("SDTPS_JOB_ENTRY", standin.ENTRY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RunJob, "watcher", RunWatcher())
    return tmp_path


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (core.Executor, "_internal_process_submissions", "self delayed_submissions"),
        (core.Executor, "_valid_parameters", ""),
        (core.Executor, "_equivalence_dict", ""),
        (core.Job, "_get_outcome_and_result", "self"),
        (core.Job, "_register_in_watcher", "self"),
        (core.Job, "__init__", "self folder job_id tasks"),
        (core.InfoWatcher, "register_job", "self job_id"),
        (core.InfoWatcher, "update", "self"),
        (core.InfoWatcher, "get_info", "self job_id mode"),
        (core.InfoWatcher, "update_if_long_enough", "self mode"),
        (submitit.SlurmExecutor, "_make_submission_file_text", "self command uid"),
        (utils.JobPaths, "__init__", "self folder job_id task_id"),
    ],
)
def test_submitit_has_the_hooks_that_are_used(owner: type, name: str, parameters: str) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters.split()


def test_no_private_name_of_submitit_is_imported() -> None:
    for file in (ROOT / "ablations").rglob("*.py"):
        assert not re.search(r"from submitit\S* import .*\b_\w", file.read_text()), file


def test_jobs_follow_their_runs_with_one_question_to_squeue(
    here: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = plant.study(here, ["ok"], seeds=3)
    jobs = RunsExecutor("runs").map_array(train, study.runs())
    assert [job.state for job in jobs] == ["PENDING"] * 3 and not jobs[0].done()
    assert len(fakes.calls("squeue")) == 1
    assert [job.job_id for job in jobs] == ["1_0", "1_1", "1_2"]
    assert not list(here.rglob("*.pkl"))
    for number, state in enumerate(("RUNNING", "FAILED")):
        fakes.set(f"1_{number}", state=state, status=256 * number)
    RunFolder(jobs[2].folder).write_result({"attempt": 1, "best": {"mAP": 0.5}})
    (here / f"runs/.squeue-{os.getuid()}.json").unlink()
    assert [job.get_info()["State"] for job in jobs] == ["RUNNING", "FAILED", "COMPLETED"]
    assert jobs[2].done() and jobs[2].result()["best"] == {"mAP": 0.5} and jobs[2].exception() is None
    assert jobs[1].done() and "failed" in str(jobs[1].exception())
    jobs[0].cancel()
    assert fakes.calls("scancel")[0]["argv"] == ["1_0"]
    again = RunsExecutor("runs").map_array(train, study.runs())
    assert [job.folder for job in again] == [job.folder for job in jobs]
    assert len(fakes.calls("sbatch")) == 1


def test_parameters_reach_sbatch_and_the_intent_or_are_refused(here: Path, fakes: Fakes) -> None:
    study = plant.study(here, ["ok"])
    executor = RunsExecutor("runs")
    executor.update_parameters(timeout_min=7, partition="other")
    with executor.batch():
        job = executor.submit(train, study.runs()[0])
    assert "#SBATCH --time=7\n" in fakes.calls("sbatch")[0]["text"]
    (folder,) = (job.folder.parents[1] / "_jobs").glob("sdtps-*")
    assert Submission(folder).resources["partition"] == "other"
    executor.update_parameters(minutes=3)
    with pytest.raises(SubmissionError, match="minutes"):
        executor.submit(train, study.runs()[0])
    for call in (lambda run: run, Entry("a:b")):
        with pytest.raises(TypeError):
            RunsExecutor("runs").submit(call, "no run")


def test_auto_executor_finds_the_entry_point(here: Path) -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["submitit"]
    about = here / "plugin-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    lines = "".join(f"{name} = {value}\n" for name, value in table.items())
    (about / "entry_points.txt").write_text(f"[submitit]\n{lines}")
    code = (
        "import submitit; e = submitit.AutoExecutor('runs', cluster='runs');"
        "e.update_parameters(cpus_per_task=3, runs_partition='gpu'); print(e._executor.parameters)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(here), str(ROOT)))}
    done = subprocess.run([sys.executable, "-c", code], env=env, text=True, capture_output=True)
    assert done.stdout.strip() == "{'cpus': 3, 'partition': 'gpu'}", done.stderr


def test_local_runs_are_an_executor_too(here: Path) -> None:
    study = plant.study(here, ["ok", "raise"])
    jobs = LocalRunsExecutor("runs", slots=2).map_array(Entry(standin.ENTRY), study.runs())
    assert [job.state for job in jobs] == ["COMPLETED", "FAILED"]
    assert "wrong place" in str(jobs[1].exception()) and "attempt 1" in (jobs[0].stdout() or "")


def test_a_notebook_s_ten_lines_in_the_documents_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    text = (ROOT / "docs/extending.md").read_text()
    block = re.search(r"```python\n(import submitit\n.*?)```", text, re.DOTALL)
    assert block is not None
    own = "overrides: {data.generate: {seed: 1}, backbone.weights: random}\nseeds:"
    manifest = plant.study(here, ["ok", "raise"], name="quick", seeds=2).path
    manifest.write_text(manifest.read_text().replace("seeds:", own))
    names: dict[str, Any] = {}
    exec(block[1].replace('"topk"', '"ok"'), names)
    assert len(names["jobs"]) == 2
    assert capsys.readouterr().out.count("'mAP': 0.5") == 2


def test_a_notebook_hears_the_command_s_mistakes(here: Path, fakes: Fakes) -> None:
    study = plant.study(here, ["ok"])
    with pytest.raises(TypeError, match="--help"):
        ablations.submit(study.path, nothing_like_it=1)
    assert fakes.calls("sbatch") == []
    (job,) = ablations.submit(study.path, executor="slurm", no_audit=True)
    assert job.state == "PENDING" and [s.state for s in run_states(study.runs(), "runs")] == ["queued"]
