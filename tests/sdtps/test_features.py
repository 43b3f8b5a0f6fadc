"""Features are computed once, whoever asks first, and a broken file says what to do."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest
import torch

from sdtps.data.features import Ragged, cached, feature_key
from sdtps.errors import DataError


def ask(folder: Path, results: multiprocessing.Queue) -> None:
    def compute() -> dict[str, torch.Tensor]:
        with (folder / "computed").open("a") as stream:
            stream.write("x")
        time.sleep(0.3)
        return {"values": torch.arange(3.0)}

    results.put(cached(folder, "k", compute)["values"].tolist())


def test_jobs_that_start_together_compute_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    jobs = [context.Process(target=ask, args=(tmp_path, results)) for _ in range(3)]
    for job in jobs:
        job.start()
    assert [results.get(timeout=60) for _ in jobs] == [[0.0, 1.0, 2.0]] * 3
    for job in jobs:
        job.join()
    assert (tmp_path / "computed").read_text() == "x"


def test_a_computation_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> dict[str, torch.Tensor]:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cached(tmp_path, "k", fail)
    assert not list(tmp_path.glob("features-*"))
    assert cached(tmp_path, "k", lambda: {"values": torch.ones(1)})["values"].item() == 1


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "features-k.safetensors").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"features-k\.safetensors: cannot be read.*delete it"):
        cached(tmp_path, "k", dict)


def test_the_key_changes_with_every_part() -> None:
    keys = {feature_key(a=1, b=2), feature_key(a=1, b=3), feature_key(a=2, b=2), feature_key(a=1)}
    assert len(keys) == 4


def test_ragged_rows_come_back_padded() -> None:
    rows = [torch.full((n, 2), float(n)) for n in (1, 3, 2)]
    values, lengths = Ragged.of(rows).padded([2, 0])
    assert lengths.tolist() == [2, 1]
    assert values.tolist() == [[[2.0, 2.0], [2.0, 2.0]], [[1.0, 1.0], [0.0, 0.0]]]
