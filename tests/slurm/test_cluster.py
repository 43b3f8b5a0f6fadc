"""The SLURM of the tests behaves as the promises that are tested on it assume."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, until

pytestmark = pytest.mark.slurm


def test_a_job_sees_the_one_gpu_it_asked_for(slurm: Cluster, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = slurm.run(
        *("sbatch", "--parsable", "--gpus-per-node=1", "--mem=50M", f"--output={log}"),
        *("--wrap", 'echo "gpus=$CUDA_VISIBLE_DEVICES"'),
    )
    assert done.returncode == 0, done.stderr
    until(lambda: log.exists() and "gpus=" in log.read_text())
    assert log.read_text().strip() in {"gpus=0", "gpus=1"}


def test_accounting_is_off_or_on_as_asked(slurm: Cluster, accounting_cluster: Cluster) -> None:
    assert "disabled" in slurm.run("sacct").stderr
    assert accounting_cluster.run("sacct").returncode == 0
