"""Clusters as they are: preemption, typed GPUs, limits, a stopped controller, a second cluster."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from ablations import cli
from ablations.launch import dispatch, trial
from ablations.launch.plan import make_plan
from ablations.slurm import commands
from ablations.slurm.scheduler import Scheduler
from ablations.store import states
from ablations.store.states import run_states
from ablations.study.model import Study
from sdtps.run.folder import RunFolder
from tests.ablations import plant, standin
from tests.slurm.cluster import GPU_TYPE, Cluster, until
from tests.slurm.conftest import write_patience
from tests.slurm.test_states import Look

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
SMALL = "cpus: 1, mem_gb: 0.2, timeout_min: 5"


def _send(study: Study, runs: Path, **more: object) -> Look:
    dispatch.submit(study.runs(), runs, entry=standin.ENTRY, **more)  # type: ignore[arg-type]
    return Look(study, runs)


def test_a_run_that_is_preempted_for_good_ends_and_is_resumed(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "PREEMPTED_SECONDS", 3.0)
    monkeypatch.setattr(states, "FRESH_SECONDS", 3.0)
    study = plant.study(tmp_path, ["sleep"], resources=f"{{partition: scavenge, {SMALL}}}")
    look = _send(study, tmp_path / "runs")
    look.wait(lambda s: s["sleep"].state == "running" and s["sleep"].epoch == 1)
    slurm.preempt()
    found = look.wait(lambda s: not s["sleep"].active)["sleep"]
    assert (found.state, found.kind) == ("failed", "preempted"), found.detail
    assert make_plan(study, look.runs, [found]).submitted


def test_typed_gpus_a_command_as_interpreter_and_a_path_with_a_percent_sign(
    slurm: Cluster, tmp_path: Path
) -> None:
    asked = f"gpus: '{GPU_TYPE}:1', python: env SHOWN=yes {sys.executable}, setup: ['export B=1']"
    study = plant.study(tmp_path, ["show"], resources=f"{{{asked}, {SMALL}}}")
    look = _send(study, tmp_path / "50% off %u")
    found = look.wait(lambda s: not s["show"].active)["show"]
    assert found.state == "completed", found.log_tail
    shown = json.loads((study.runs()[0].folder(look.runs) / "shown.json").read_text())
    assert (shown["SHOWN"], shown["B"]) == ("yes", "1")
    assert shown["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    assert found.log_file is not None and "stand-in show" in found.log_file.read_text()


def test_the_rest_starts_only_if_its_canary_succeeds(slurm: Cluster, tmp_path: Path) -> None:
    for variant, end in (("ok", "completed"), ("raise", "cancelled")):
        study = plant.study(tmp_path, [variant], name=variant, resources=f"{{{SMALL}}}", seeds=2)
        runs = tmp_path / f"runs-{variant}"
        actions = make_plan(study, runs, run_states(study.runs(), runs)).submitted
        os.environ[dispatch.ENTRY_VARIABLE] = standin.ENTRY
        try:
            after = trial.canaries(study, actions, runs, executor="slurm")
        finally:
            del os.environ[dispatch.ENTRY_VARIABLE]
        assert after is not None
        look = _send(study, runs, after=after)
        found = look.wait(lambda s, v=variant: not s[v].active)  # type: ignore[misc]
        assert found[variant].state == end, found[variant].detail
        assert ("canary" in found[variant].detail) == (variant == "raise")


def test_a_stopped_controller_keeps_nobody_waiting_and_starts_nothing(
    slurm: Cluster, tmp_path: Path
) -> None:
    impatient = pytest.MonkeyPatch()
    study = plant.study(tmp_path, ["beats"], resources=f"{{{SMALL.replace('1', '2', 1)}}}", seeds=3)
    look = _send(study, tmp_path / "runs")  # four CPUs: two run, one waits
    folders = [run.folder(look.runs) for run in study.runs()]

    def states() -> list[str]:
        scheduler = Scheduler(look.runs, refresh_s=1)
        return [s.state for s in run_states(study.runs(), look.runs, scheduler)]

    # Running for SLURM is not enough: without an answer of SLURM, a run is known by its heartbeat.
    until(lambda: sum(1 for folder in folders if any(RunFolder(folder).metrics())) == 2, states)
    until(lambda: sorted(states()) == ["queued", "running", "running"], states)
    controller = int((slurm.folder / "slurmctld.pid").read_text())
    limits: list[float] = []

    def ask(command: list[str], timeout_s: float = commands.QUERY_SECONDS) -> str:
        limits.append(timeout_s)
        return answer(command, timeout_s)

    answer = commands.ask
    os.kill(controller, signal.SIGSTOP)
    try:
        write_patience(slurm, 2.0)
        impatient.setattr(commands, "ask", ask)
        time.sleep(1.5)
        assert sorted(states()) == ["queued", "running", "running"]  # the last answer stands
        for cache in look.runs.glob(".squeue*"):
            cache.unlink()
        assert sorted(states()) == ["running", "running", "unknown"]
        assert dispatch.submit(study.runs(), look.runs, entry=standin.ENTRY).submitted == []
    finally:
        impatient.undo()
        os.kill(controller, signal.SIGCONT)
    for folder in folders:
        (folder / "enough").touch()
    assert limits and max(limits) == 2.0, "something asked with the patience of a submission"
    until(lambda: states() == ["completed"] * 3, states)
    for folder in folders:
        steps = [row["step"] for row in RunFolder(folder).metrics()]
        assert steps == sorted(set(steps)), "a run was started twice"


def test_a_deleted_folder_that_is_submitted_again_has_one_writer(
    slurm: Cluster, tmp_path: Path
) -> None:
    study = plant.study(tmp_path, ["beats"], resources=f"{{{SMALL}}}")
    look = _send(study, tmp_path / "runs")
    look.wait(lambda s: s["beats"].state == "running" and bool(s["beats"].epoch))
    folder = study.runs()[0].folder(look.runs)
    while folder.exists():  # it writes all the time
        shutil.rmtree(folder, ignore_errors=True)
    _send(study, look.runs)
    look.wait(lambda s: s["beats"].state == "running" and bool(s["beats"].epoch))
    time.sleep(3)
    (folder / "enough").touch()
    look.wait(lambda s: s["beats"].state == "completed")
    rows = RunFolder(folder).metrics()
    assert len({row["pid"] for row in rows}) == 1
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))


def _site(tmp_path: Path, name: str, text: str, *options: str) -> tuple[int, dict[str, str]]:
    """Exit code of `sdtps site check`, and what was found."""
    site = tmp_path / f"{name}.yaml"
    site.write_text(text)
    words = ["site", "check", "--site", str(site), "--runs-dir", str(tmp_path / "runs"), "--json"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = cli.main([*words, *options])
    rows = json.loads(out.getvalue())
    return code, {row["what"]: f"{row['works']} {row['found']}" for row in rows}


def test_a_site_is_checked_by_a_job(slurm: Cluster, tmp_path: Path) -> None:
    code, found = _site(tmp_path, "good", "setup: [export A=1]\nsbatch: {mem: 900}\n")
    assert code == 0, found
    expected = {"controller", "store", "sbatch", "python", "torch", "gpu", "store there", "array"}
    assert expected | {"requeue", "heartbeat"} <= set(found)
    assert all(text.startswith("True") for text in found.values())


@pytest.mark.parametrize(
    ("text", "options", "what", "says"),
    [
        ("python: /nope/python\n", (), "job", "/nope/python"),
        ("setup: ['echo broken >&2; false']\n", (), "job", "broken"),
        ("partition: nope\n", (), "sbatch", "resources.partition"),
        ("gpu_type: huge\n", (), "sbatch", "resources.gpus"),
        ("sbatch: {mem: 900}\n", ("--gpus", f"{GPU_TYPE}:1"), "gpu", "torch sees 0"),
    ],
)
def test_what_does_not_work_on_a_site_is_named(
    slurm: Cluster, tmp_path: Path, text: str, options: tuple[str, ...], what: str, says: str
) -> None:
    code, found = _site(tmp_path, "bad", text, *options)
    assert code == 1
    assert found[what].startswith("False") and says in found[what], found
