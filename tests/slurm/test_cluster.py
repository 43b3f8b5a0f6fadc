"""The SLURM of the tests behaves as the promises that are tested on it assume."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm


def _wait_for(path: Path, text: str, seconds: float = 60) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and text in (content := path.read_text()):
            return content
        time.sleep(0.1)
    raise AssertionError(
        f"{path} never said {text!r}: {path.read_text() if path.exists() else 'absent'}"
    )


def test_a_job_sees_the_one_gpu_it_asked_for(slurm: Cluster, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = slurm.run(
        *("sbatch", "--parsable", "--gpus-per-node=1", "--mem=50M", f"--output={log}"),
        *("--wrap", 'echo "gpus=$CUDA_VISIBLE_DEVICES"'),
    )
    assert done.returncode == 0, done.stderr
    content = _wait_for(log, "gpus=")
    assert content.strip() in {"gpus=0", "gpus=1"}


def test_accounting_is_off_or_on_as_asked(slurm: Cluster, accounting_cluster: Cluster) -> None:
    assert "disabled" in slurm.run("sacct").stderr
    assert accounting_cluster.run("sacct").returncode == 0
