"""Several runs in one job on one GPU: each ends for itself, and the job comes back for the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.launch import dispatch
from ablations.store import attempts as records
from ablations.store import cancel, locks
from tests.ablations import plant, standin
from tests.slurm.cluster import Cluster
from tests.slurm.test_states import Look

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]

PACKED = "partition: gpu, gpus: 1, cpus: 1, mem_gb: 0.2, runs_per_gpu: 2"


def test_runs_of_one_job_end_for_themselves_and_only_what_was_stopped_starts_again(
    slurm: Cluster, tmp_path: Path
) -> None:
    study = plant.study(
        tmp_path,
        ["polite", "raise", "show", "killed", "ok"],
        resources=f"{{{PACKED}, timeout_min: 1, max_requeues: 3}}",
    )
    look = Look(study, tmp_path / "runs")
    report = dispatch.submit(study.runs(), look.runs, entry=standin.ENTRY)
    assert len(report.jobs) == 1
    jobs = {s.run.variant: s.job_id for s in look().values()}
    first = report.jobs[0]
    assert [jobs[v] for v in study.variants] == [f"{first}_{e}" for e in (0, 0, 1, 1, 2)]
    look.wait(lambda s: s["polite"].state == "running" and s["polite"].epoch == 1)
    slurm.end_soon(f"{first}_0", 45)
    found = look.wait(lambda s: s["polite"].state == "requeued" and not s["ok"].active)
    assert (found["raise"].state, found["raise"].kind) == ("failed", "error")
    assert (found["killed"].state, found["killed"].kind) == ("failed", "killed")
    assert (found["show"].state, found["ok"].state) == ("completed", "completed")
    folders = {run.variant: run.folder(look.runs) for run in study.runs()}
    assert "ValueError: the loss" in found["raise"].log_tail
    assert "attempt 1" in found["polite"].log_tail and "ValueError" not in found["polite"].log_tail
    shown = (folders["show"] / "shown.json").read_text()
    assert '"OMP_NUM_THREADS": "1"' in shown and '"CUDA_VISIBLE_DEVICES"' in shown

    slurm.start_now(f"{first}_0")
    found = look.wait(lambda s: s["polite"].state == "completed")
    assert found["polite"].attempt == 2
    name = locks.read(folders["raise"]).submission  # type: ignore[union-attr]
    assert len(records.read(folders["polite"], name).starts) == 2
    assert len(records.read(folders["raise"], name).starts) == 1, "it had ended by itself"
    assert (found["raise"].state, found["raise"].kind) == ("failed", "error")
    files = [p for folder in folders.values() for p in folder.rglob("*") if p.is_file()]
    assert len(files) / len(folders) < 12


def test_cancelling_one_of_two_leaves_the_other(slurm: Cluster, tmp_path: Path) -> None:
    study = plant.study(tmp_path, ["polite", "polite-b"], resources=f"{{{PACKED}, timeout_min: 10}}")
    look = Look(study, tmp_path / "runs")
    report = dispatch.submit(study.runs(), look.runs, entry=standin.ENTRY)
    found = look.wait(lambda s: all(r.state == "running" and r.epoch == 1 for r in s.values()))
    cancel.cancel([found["polite"]], look.runs)
    found = look.wait(lambda s: s["polite"].state == "cancelled")
    assert found["polite-b"].state == "running"
    cancel.cancel([found["polite-b"]], look.runs)
    found = look.wait(lambda s: s["polite-b"].state == "cancelled")
    assert found["polite"].state == "cancelled"
    assert f"{report.jobs[0]}_0" not in slurm.run("squeue", "-h", "-t", "running", "-r").stdout
