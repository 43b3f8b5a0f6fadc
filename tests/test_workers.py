"""`pytest -n` gives a process whole files: what a file's tests share is made once."""

from __future__ import annotations

import os

import pytest


@pytest.mark.parametrize("number", range(6))
def test_the_tests_of_a_file_share_a_process(
    number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return  # one process runs all tests
    first = tmp_path_factory.getbasetemp().parent / "worker-of-this-file"
    if not first.exists():
        first.write_text(worker, encoding="utf-8")
    assert first.read_text(encoding="utf-8") == worker
