"""What all tests share: few threads, temporary files in memory, no silent skipping in CI."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from multiprocessing.util import Finalize
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A machine that runs other things, too, takes long now and then: no test fails for that.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# One thread per process: sizes are tiny, and results must not depend on the machine's core count.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Markers whose tests can run wherever the Makefile could set up the machine. `gpu` is not among them.
ALWAYS_RUN_IN_CI = ("slurm", "latex", "browser", "loggers", "triton")

# Tests write and remove some ten thousand small files; a disk that is told of every removal takes
# longer for that than the tests do. Where there is room, temporary files lie in memory.
MEMORY = Path("/dev/shm")
MEMORY_NEEDED = 4 * 2**30  # bytes


def pytest_configure(config: pytest.Config) -> None:
    """Files whole to processes, and temporary folders into memory unless told where to put them."""
    if config.getoption("dist", "no") == "load":  # `pytest -n`; a fixture for a file is made once
        config.option.dist = "loadfile"
    told = config.getoption("basetemp", None) or "TMPDIR" in os.environ
    if told or not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < MEMORY_NEEDED:
        return
    folder = tempfile.mkdtemp(prefix="sdtps-tests-", dir=MEMORY)
    Path(folder).chmod(0o1777)  # as /tmp is: MariaDB runs as a user of its own
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None  # asked for again, it is read from the environment
    # At the end, after multiprocessing has removed its own folder in it.
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=-200)


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
