"""Real training under a real SLURM: preempted and gone on with, and on two processes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ablations.launch import dispatch
from ablations.slurm.queue import Scheduler
from ablations.store.life import RunStatus, run_states
from ablations.study.manifest import load_study
from ablations.study.model import Study
from sdtps.run.folder import RunFolder
from tests.slurm.cluster import Cluster, missing, until

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


def _look(study: Study, runs: Path) -> RunStatus:
    return run_states(study.runs(), runs, Scheduler(runs, refresh_s=1))[0]


def _wait(study: Study, runs: Path, *states: str) -> RunStatus:
    found = _look(study, runs)

    def there() -> bool:
        nonlocal found
        found = _look(study, runs)
        return found.state in states

    until(there, lambda: (found.state, found.reason, found.log_tail))
    return found


def test_a_preempted_run_s_curve_goes_on_without_doubled_or_lost_steps(
    slurm: Cluster, tmp_path: Path
) -> None:
    study, runs = _study(tmp_path, epochs=150, gpus=0), tmp_path / "runs"
    dispatch.submit(study, study.runs(), runs)
    folder = RunFolder(study.runs()[0].folder(runs))
    _wait(study, runs, "running")
    until(lambda: len(folder.metrics()) >= 10, lambda: _look(study, runs).log_tail)
    slurm.run(
        *("sbatch", "--partition=urgent", "--cpus-per-task=2", "--mem=100M", "--output=/dev/null"),
        *("--wrap", "sleep 1"),
    )
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


def test_two_processes_under_one_job_train_what_one_trains(slurm: Cluster, tmp_path: Path) -> None:
    results = []
    for processes in (1, 2):
        study = _study(tmp_path, name=f"processes{processes}", epochs=2, gpus=processes)
        runs = tmp_path / "runs"
        dispatch.submit(study, study.runs(), runs)
        found = _wait(study, runs, "completed", "failed", "diverged")
        assert found.state == "completed", (found.reason, found.log_tail)
        folder = RunFolder(study.runs()[0].folder(runs))
        rows = [row["loss"] for row in folder.metrics() if row["kind"] == "train"]
        results.append((rows, json.loads(folder.result_file.read_text())["final"]["mAP"]))
    (one, one_map), (two, two_map) = results
    assert len(one) == len(two)
    assert two == pytest.approx(one, rel=1e-3)
    assert two_map == pytest.approx(one_map, abs=0.05)


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster of two nodes on this machine, as this process's own."""
    if reason := missing():
        pytest.skip(f"no SLURM here: {reason}")
    folder = Path(tempfile.mkdtemp(prefix="sdtps-two-", dir="/tmp"))
    cluster = Cluster(folder, name="two", nodes=2)
    try:
        cluster.start()
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, cluster.environment()[name])
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_two_nodes_train_what_one_process_trains(two_nodes: Cluster, tmp_path: Path) -> None:
    results = []
    for nodes in (1, 2):
        study = _study(tmp_path, name=f"nodes{nodes}", epochs=2, gpus=1, nodes=nodes)
        runs = tmp_path / "runs"
        dispatch.submit(study, study.runs(), runs)
        found = _wait(study, runs, "completed", "failed", "diverged")
        assert found.state == "completed", (found.reason, found.log_tail)
        folder = RunFolder(study.runs()[0].folder(runs))
        results.append([row["loss"] for row in folder.metrics() if row["kind"] == "train"])
    assert results[1] == pytest.approx(results[0], rel=1e-3)
