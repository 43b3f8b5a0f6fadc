"""Seeds in rounds under a real SLURM: open variants get the next seeds, decided ones do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ablations.test_rounds import completed, decided, sdtps, write
from tests.slurm.cluster import Cluster, until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]


def test_each_submission_trains_the_next_look_of_open_variants(slurm: Cluster, tmp_path: Path) -> None:
    path = write(tmp_path)
    text = path.read_text().replace("timeout_min: 2", "timeout_min: 2, partition: gpu, mem_gb: 0.3")
    path.write_text(text)

    def submit_and_wait(expected: dict[str, int]) -> None:
        done = sdtps(tmp_path, "ablations", "submit", "--executor", "slurm")
        assert done.returncode == 0, done.stderr
        until(lambda: completed(tmp_path) == expected, lambda: completed(tmp_path))

    submit_and_wait({"base": 3, "far": 3, "near": 3})
    assert decided(tmp_path)["seeds_of"] == {"base": 6, "far": 3, "near": 6}
    submit_and_wait({"base": 6, "far": 3, "near": 6})
    assert decided(tmp_path)["seeds_of"] == {"base": 6, "far": 3, "near": 6}
    last = sdtps(tmp_path, "ablations", "submit", "--executor", "slurm")
    assert "Nothing to submit" in last.stdout
