"""Seeds in rounds under a real SLURM: open variants get the next seeds, decided ones do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.cli import main
from tests.ablations.test_rounds import completed, submit, write
from tests.slurm.cluster import Cluster, until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]


def test_a_submission_trains_the_next_look_of_open_variants(slurm: Cluster, tmp_path: Path) -> None:
    path = write(tmp_path)
    assert submit(tmp_path) == 0  # the first look, on local slots
    path.write_text(path.read_text().replace("timeout_min: 2", "timeout_min: 2, mem_gb: 0.3"))
    words = ["submit", str(path), "--runs-dir", str(tmp_path / "runs"), "--executor", "slurm"]
    assert main(words) == 0
    until(lambda: completed(tmp_path) == {"base": 6, "far": 3, "near": 6}, lambda: completed(tmp_path))
