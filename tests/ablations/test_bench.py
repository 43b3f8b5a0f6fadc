"""The benchmark times two ways that agree, and says on what."""

from __future__ import annotations

import pytest

from benchmarks.dispatch import bench


def test_each_result_has_both_ways_in_one_process() -> None:
    results = {result["bench"]: result for result in bench(40, 20, 20)}
    assert list(results) == ["status", "plan", "expand"]
    assert results["status"]["folders"] == 40
    for timed in (results["status"]["compared"], results["plan"]["compared"], results["expand"]):
        assert timed["repeats"] >= 3
        ratio = timed["seconds"]["reference"] / timed["seconds"]["ours"]
        # Both are rounded. Which is faster is for the benchmark to say: a busy machine tells anything.
        assert timed["speedup"] == pytest.approx(ratio, rel=0.2, abs=0.1)
