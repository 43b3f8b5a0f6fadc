"""Submitting to a real SLURM: one array, nothing twice, and jobs that get what they were promised."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ablations.cli import main
from ablations.launch import dispatch
from ablations.store import snapshot
from ablations.store.states import RunStatus
from ablations.study.manifest import load_study
from ablations.study.model import Study
from tests.ablations import plant, standin
from tests.ablations import test_rounds as rounds
from tests.slurm.cluster import PATIENCE_S, Cluster, until
from tests.slurm.test_states import Look

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800), pytest.mark.usefixtures("slurm")]

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = """\
study: programs
task: command
overrides: {command: "{python} p.py {settings.x} {seed}", settings: {x: 1}}
seeds: [0]
baseline: one
varies: [settings]
resources: {partition: gpu, cpus: 1, mem_gb: 0.3, timeout_min: 10, max_parallel: 2}
metrics: {mAP: {direction: up}}
variants:
  one: {}
  two: {settings.x: 2}
"""


def _wait(study: Study, runs: Path) -> list[RunStatus]:
    """Until no run is on its way."""
    return list(Look(study, runs).wait(lambda s: not any(one.active for one in s.values())).values())


def test_a_study_runs_as_one_array_and_only_a_deleted_run_is_submitted_again(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("from sdtps.log import log; log('eval', epoch=1, step=1, mAP=0.5)")
    manifest, runs = tmp_path / "programs.yaml", tmp_path / "runs"
    manifest.write_text(PROGRAMS)
    study = load_study(manifest)

    def submit() -> set[Path]:
        assert main(["submit", str(manifest), "--runs-dir", str(runs), "--executor", "slurm"]) == 0
        return set((runs / "programs" / "_jobs").glob("*/receipt.json"))

    receipts = submit()
    assert len(receipts) == 1, "one array for one class of resources"
    found = _wait(study, runs)
    assert [s.state for s in found] == ["completed"] * 2, [(s.reason, s.log_tail) for s in found]
    assert submit() == receipts

    gone = study.runs()[1].folder(runs)
    shutil.rmtree(gone)
    (new,) = submit() - receipts
    assert (new.parent / "runs.txt").read_text() == f"{gone.parent.name}/{gone.name}\n"
    assert [s.state for s in _wait(study, runs)] == ["completed"] * 2
    code = json.loads((gone / "run.json").read_text())["code"]
    assert set(code) >= {"commit", "dirty", "digest"}


def test_a_submission_runs_the_next_look_of_open_variants(tmp_path: Path) -> None:
    path = rounds.write(tmp_path)
    assert rounds.submit(tmp_path) == 0  # the first look, on local slots
    path.write_text(path.read_text().replace("timeout_min: 2", "timeout_min: 2, mem_gb: 0.3"))
    words = ["submit", str(path), "--runs-dir", str(tmp_path / "runs"), "--executor", "slurm"]
    assert main(words) == 0
    done = functools.partial(rounds.completed, tmp_path)
    until(lambda: done() == {"base": 6, "far": 3, "near": 6}, done)


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ("python: /nope/python", "/nope/python"),
        ('setup: ["module load missing"]', "module load missing"),
    ],
)
def test_a_job_dead_before_python_starts_is_failed_with_the_batch_log(
    tmp_path: Path, resources: str, words: str
) -> None:
    study = plant.study(tmp_path, ["ok"], resources=f"{{cpus: 1, mem_gb: 0.2, {resources}}}")
    dispatch.submit(study.runs(), tmp_path / "runs", entry=standin.ENTRY)
    found = _wait(study, tmp_path / "runs")[0]
    assert (found.state, found.kind) == ("failed", "start"), found.detail
    assert words in found.log_tail


def test_a_task_gets_its_cpus_its_gpu_and_unbuffered_output(tmp_path: Path) -> None:
    study = plant.study(tmp_path, ["show"], resources="{cpus: 2, gpus: 1, mem_gb: 0.2}")
    dispatch.submit(study.runs(), tmp_path / "runs", entry=standin.ENTRY)
    found = _wait(study, tmp_path / "runs")[0]
    assert found.state == "completed", found.log_tail
    shown = json.loads((study.runs()[0].folder(tmp_path / "runs") / "shown.json").read_text())
    assert shown["SLURM_CPUS_PER_TASK"] == "2"
    assert shown["OMP_NUM_THREADS"] == "2"
    assert shown["PYTHONUNBUFFERED"] == "1"
    assert shown["terminal"] is False, "progress bars would be drawn into the log"
    assert shown["CUDA_VISIBLE_DEVICES"] in {"0", "1"}
    assert shown["executable"] == sys.executable


def test_two_tasks_of_a_node_are_told_of_each_other(tmp_path: Path) -> None:
    study = plant.study(tmp_path, ["show"], resources="{cpus: 1, gpus: 2, mem_gb: 0.2}")
    dispatch.submit(study.runs(), tmp_path / "runs", entry=standin.ENTRY)
    found = _wait(study, tmp_path / "runs")[0]
    assert found.state == "completed", found.log_tail
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
    shown = study.runs()[0].folder(tmp_path / "runs").glob("shown*.json")
    assert sorted([json.loads(file.read_text())[name] for name in names] for file in shown) == [
        [rank, rank, "2", "127.0.0.1"] for rank in "01"
    ]


def test_a_submission_from_inside_a_job_makes_a_job_of_its_own(slurm: Cluster, tmp_path: Path) -> None:
    study = plant.study(tmp_path, ["show"], resources="{cpus: 1, mem_gb: 0.2}")
    program = (
        "import sys; from pathlib import Path; from ablations.launch import dispatch;"
        "from ablations.study.manifest import load_study; from tests.ablations import standin;"
        "study = load_study(Path(sys.argv[1]));"
        "dispatch.submit(study.runs(), Path(sys.argv[2]), entry=standin.ENTRY)"
    )
    inside = subprocess.run(
        [
            *("srun", "--ntasks=1", "--cpus-per-task=1", "--mem=400M", "--job-name=outer"),
            *(sys.executable, "-c", program, str(study.path), str(tmp_path / "runs")),
        ],
        env={**slurm.environment(), "PYTHONPATH": f"{ROOT}{os.pathsep}{standin.PATH}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert inside.returncode == 0, inside.stderr
    found = _wait(study, tmp_path / "runs")[0]
    assert found.state == "completed", found.log_tail
    shown = json.loads((study.runs()[0].folder(tmp_path / "runs") / "shown.json").read_text())
    assert shown["SLURM_JOB_NAME"].startswith("sdtps-endings-")


def test_code_edited_after_submission_is_not_what_runs(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    for package in snapshot.PACKAGES:
        shutil.copytree(
            ROOT / package, code / package, ignore=shutil.ignore_patterns("__pycache__", "*.yaml")
        )
    marker = code / "sdtps" / "marker.py"
    marker.write_text("def execute(path):\n    print('as submitted')\n    raise SystemExit(3)\n")
    monkeypatch.setattr(snapshot, "ROOT", code)
    study = plant.study(tmp_path, ["ok"], resources="{cpus: 1, mem_gb: 0.2, sbatch: {hold: true}}")
    report = dispatch.submit(study.runs(), tmp_path / "runs", entry="sdtps.marker:execute")
    marker.write_text("def execute(path):\n    print('edited')\n")
    slurm.run("scontrol", "release", report.jobs[0])
    found = _wait(study, tmp_path / "runs")[0]
    assert "as submitted" in found.log_tail
    assert (found.kind, found.detail) == ("exit", "exit code 3")
