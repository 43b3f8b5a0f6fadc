"""Arrays are computed once, whoever asks first, and a broken file says what to do."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from sdtps.data.cache import Ragged, cache_key, mapped_once, padded
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


def test_a_computation_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(file: Path) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        mapped_once(tmp_path / "k.npy", (1,), fail)
    assert not [p for p in tmp_path.iterdir() if p.suffix != ".lock"]
    assert mapped_once(tmp_path / "k.npy", (1,), lambda file: np.save(file.open("wb"), np.ones(1)))[0]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "k.npy").write_bytes(b"broken")
    np.save(tmp_path / "other.npy", np.zeros((2, 3, 5)))
    for name, told in (("k", "cannot be read"), ("other", r".*shape is \(2, 3, 5\), expected")):
        with pytest.raises(DataError, match=rf"{name}\.npy: {told}.*delete it"):
            mapped_once(tmp_path / f"{name}.npy", (1,), lambda file: None)


def test_the_key_changes_with_every_part() -> None:
    keys = {cache_key(a=1, b=2), cache_key(a=1, b=3), cache_key(a=2, b=2), cache_key(a=1)}
    assert len(keys) == 4


def test_ragged_rows_come_back_padded() -> None:
    rows = [np.full((n, 2), float(n)) for n in (1, 3, 2)]
    ragged = Ragged(np.concatenate(rows), np.array([1, 3, 2]))
    values, lengths = padded([ragged.row(2), ragged.row(0)])
    assert lengths.tolist() == [2, 1]
    assert values.tolist() == [[[2.0, 2.0], [2.0, 2.0]], [[1.0, 1.0], [0.0, 0.0]]]
    assert values.dtype == torch.float64
