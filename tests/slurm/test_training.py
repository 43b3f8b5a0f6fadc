"""Real training under a real SLURM: preempted, beside another program, on two nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ablations import cli
from ablations.launch import dispatch
from ablations.store.states import RunStatus
from ablations.study.manifest import load_study
from ablations.study.model import Study
from sdtps.run.folder import RunFolder
from tests.slurm.cluster import Cluster, until
from tests.slurm.conftest import running
from tests.slurm.test_states import Look

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = """\
study: {name}
task: reid
base: {base}
overrides:
  data:
    generate: {{train_pids: 4, test_pids: 4, cameras: 2, images_per_camera: 2, seed: 0}}
    batch_size: 8
    instances: 2
  train: {{epochs: {epochs}, eval_every: {epochs}, log_every: 1}}
seeds: [0]
baseline: topk
varies: [sdtps]
resources: {{partition: gpu, gpus: {gpus}, nodes: {nodes}, cpus: 1, mem_gb: 2.4, timeout_min: 10}}
metrics: {{mAP: {{direction: up}}}}
variants: {{topk: {{}}}}
"""


def _study(folder: Path, *, name: str = "training", epochs: int, gpus: int, nodes: int = 1) -> Study:
    path = folder / f"{name}.yaml"
    base = ROOT / "ablations" / "base" / "quick.yaml"
    path.write_text(MANIFEST.format(name=name, base=base, epochs=epochs, gpus=gpus, nodes=nodes))
    return load_study(path)


def _wait(study: Study, runs: Path, *states: str) -> RunStatus:
    return Look(study, runs).wait(lambda s: s["topk"].state in states)["topk"]


def _losses(study: Study, runs: Path) -> tuple[list[float], float]:
    """Of a submitted run that trains to its end: the loss of each step, and the last mAP."""
    found = _wait(study, runs, "completed", "failed", "diverged")
    assert found.state == "completed", (found.reason, found.log_tail)
    folder = RunFolder(study.runs()[0].folder(runs))
    losses = [row["loss"] for row in folder.metrics() if row["kind"] == "train"]
    return losses, json.loads(folder.result_file.read_text())["final"]["mAP"]


def test_a_preempted_run_s_curve_goes_on_without_doubled_or_lost_steps(
    slurm: Cluster, tmp_path: Path
) -> None:
    study, runs = _study(tmp_path, epochs=60, gpus=0), tmp_path / "runs"
    dispatch.submit(study.runs(), runs)
    folder = RunFolder(study.runs()[0].folder(runs))
    job = str(_wait(study, runs, "running").job_id)
    until(lambda: len(folder.metrics()) >= 2)
    slurm.run("scancel", "--signal=STOP", job)  # until SLURM preempts it, which sends CONT too
    slurm.preempt()
    found = _wait(study, runs, "requeued", "completed")
    assert found.state == "requeued", "the run was too short to be preempted"
    before = {row["step"] for row in folder.metrics() if row["kind"] == "train"}
    slurm.start_now(str(found.job_id))
    _wait(study, runs, "completed")
    # The result is written before the attempt's end.
    until(lambda: folder.run()["attempts"][-1]["ended_as"] is not None)
    assert [a["ended_as"] for a in folder.run()["attempts"]] == ["requeued", "completed"]
    rows = [row for row in folder.metrics() if row["kind"] == "train"]
    steps = [row["step"] for row in rows]
    assert steps == sorted(set(steps)), "a step was logged twice or out of order"
    assert before <= set(steps)
    result = folder.result()
    assert result is not None
    assert steps == list(range(1, result["steps"] + 1))


MIXED = """\
study: mixed
task: reid
base: {base}
overrides:
  data:
    generate: {{train_pids: 4, test_pids: 4, cameras: 2, images_per_camera: 2, seed: 0}}
    batch_size: 4
    instances: 2
  train: {{epochs: 1}}
seeds: [0]
baseline: ours
varies: [command]
resources: {{partition: gpu, cpus: 1, mem_gb: 1.8, timeout_min: 10}}
metrics: {{mAP: {{direction: up}}}}
tables: [{{name: mixed_main, kind: main, metrics: [mAP], title: Ours beside another program}}]
variants:
  stopped: {{command: "{{python}} p.py stopped {{run}} {{seed}}"}}
  theirs: {{command: "{{python}} p.py theirs {{run}} {{seed}}"}}
  fails: {{command: "{{python}} p.py fails {{run}} {{seed}}"}}
  killed: {{command: "{{python}} p.py killed {{run}} {{seed}}"}}
  ours: {{}}
"""
PROGRAM = """\
import os, pathlib, signal, sys, time
from sdtps.log import log
word, saved = sys.argv[1], pathlib.Path(sys.argv[2]) / "saved"
first = int(saved.read_text()) if saved.exists() else 0
signal.signal(signal.SIGTERM, lambda *_: (saved.write_text(str(step)), sys.exit(75)))
for step in range(first + 1, 21):
    log(epoch=1, step=step, loss=1 / step)
    if step == 10 and word == "fails":
        sys.exit("no such option")
    if step == 10 and word == "killed":
        os.kill(os.getpid(), 9)
    if step == 10 and word == "stopped":
        time.sleep(2000)
log("eval", epoch=1, step=20, mAP=0.625)
"""


def test_ours_and_another_program_in_one_study_with_a_requeue_a_failure_and_a_kill(
    slurm: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, runs = tmp_path / "mixed.yaml", tmp_path / "runs"
    manifest.write_text(MIXED.format(base=ROOT / "ablations" / "base" / "quick.yaml"))
    (tmp_path / "p.py").write_text(PROGRAM)
    study = load_study(manifest)
    dispatch.submit(study.runs(), runs)
    look = Look(study, runs)
    folders = {run.variant: RunFolder(run.folder(runs)) for run in study.runs()}
    until(lambda: len(folders["stopped"].metrics()) == 10, lambda: look()["stopped"].log_tail)
    job = str(look()["stopped"].job_id)
    assert slurm.run("scontrol", "requeue", job).returncode == 0
    look.wait(lambda s: s["stopped"].state == "requeued")
    assert (folders["stopped"].path / "saved").read_text() == "10"
    slurm.start_now(job)
    found = look.wait(lambda s: not any(one.active for one in s.values()))
    told = {name: (one.state, one.kind) for name, one in found.items()}
    assert told == {
        **dict.fromkeys(("stopped", "theirs", "ours"), ("completed", None)),
        **dict.fromkeys(("fails", "killed"), ("failed", "error")),
    }
    assert "exit code 1" in found["fails"].detail and "no such option" in found["fails"].detail
    assert "SIGKILL" in found["killed"].detail
    assert found["stopped"].attempt == 2
    for name in ("stopped", "theirs"):
        rows = [row["step"] for row in folders[name].metrics() if row["kind"] == "train"]
        assert rows == list(range(1, 21)), name
    assert cli.main(["tables", str(manifest), "--runs-dir", str(runs), "--form", "csv"]) == 0
    printed = capsys.readouterr().out
    print(printed)
    assert "theirs,62.5" in printed and "fails,failed" in printed


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster of two nodes on this machine, as this process's own."""
    with running(name="two", nodes=2) as cluster:
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, cluster.environment()[name])
        yield cluster


def test_two_nodes_train_what_one_process_trains(two_nodes: Cluster, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    studies = [_study(tmp_path, name=f"nodes{n}", epochs=2, gpus=1, nodes=n) for n in (1, 2)]
    for study in studies:
        dispatch.submit(study.runs(), runs)
    (one, one_map), (two, two_map) = (_losses(study, runs) for study in studies)
    assert two == pytest.approx(one, rel=1e-3)
    assert two_map == pytest.approx(one_map, abs=0.05)
