"""Arrays are computed once, whoever asks first, and a broken file says what to do."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest

from sdtps.data.cache import mapped_once
from sdtps.system.errors import DataError


def ask(folder: Path, results: multiprocessing.Queue) -> None:
    def write(file: Path) -> None:
        with (folder / "computed").open("a") as stream:
            stream.write("x")
        time.sleep(0.3)
        with file.open("wb") as stream:
            np.save(stream, np.arange(3.0))

    results.put(mapped_once(folder / "k.npy", (3,), write).tolist())


def test_jobs_that_start_together_compute_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    jobs = [context.Process(target=ask, args=(tmp_path, results)) for _ in range(3)]
    for job in jobs:
        job.start()
    assert [results.get(timeout=300) for _ in jobs] == [[0.0, 1.0, 2.0]] * 3
    for job in jobs:
        job.join()
    assert (tmp_path / "computed").read_text() == "x"


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "k.npy").write_bytes(b"broken")
    np.save(tmp_path / "other.npy", np.zeros((2, 3, 5)))
    for name, told in (("k", "cannot be read"), ("other", r".*shape is \(2, 3, 5\), expected")):
        with pytest.raises(DataError, match=rf"{name}\.npy: {told}.*delete it"):
            mapped_once(tmp_path / f"{name}.npy", (1,), lambda file: None)
