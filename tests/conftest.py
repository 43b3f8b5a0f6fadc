"""What all tests share: small thread counts, and no silent skipping in continuous integration."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

# One thread per process: sizes are tiny, and results must not depend on the machine's core count.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Markers whose tests can run wherever the Makefile could set up the machine. `gpu` is not among them.
ALWAYS_RUN_IN_CI = ("slurm", "latex", "browser")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, a skipped test that this machine can run is a failed one."""
    report = yield
    if not report.skipped or os.environ.get("CI") != "true" or hasattr(report, "wasxfail"):
        return report
    marks = [mark for mark in ALWAYS_RUN_IN_CI if item.get_closest_marker(mark)]
    if item.get_closest_marker("real_data") and os.environ.get("SDTPS_REAL_DATA"):
        marks.append("real_data")
    if marks:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"marked {', '.join(marks)} and skipped, which CI does not allow: {reason}"
    return report
