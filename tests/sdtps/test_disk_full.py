"""A disk that fills up during a write leaves the old file whole, and no part of the new one."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sdtps.data.cache import mapped_once, new_map
from sdtps.run.folder import RunFolder
from sdtps.system.errors import DataError
from sdtps.training import checkpoint

LIMIT = 64 * 1024  # bytes a file may have before "the disk is full"


def _when_full(work: Callable[[], None]) -> bool:
    """Do `work` in a process whose files cannot grow beyond LIMIT; whether it failed with OSError."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
            work()
            code = 0
        except OSError:
            code = 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, 1), status
    return os.WEXITSTATUS(status) == 1


def _weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((256, 256), value)}  # 256 KiB


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    assert _when_full(lambda: checkpoint.save(path, _weights(1.0)))
    assert list(tmp_path.iterdir()) == []
    checkpoint.save(path, _weights(1.0))
    assert _when_full(lambda: checkpoint.save(path, _weights(2.0)))
    kept = checkpoint.load(path)
    assert kept is not None and torch.equal(kept["w"], _weights(1.0)["w"])
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_result_that_does_not_fit_does_not_make_the_run_completed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert _when_full(lambda: folder.write_result({"attempt": 1, "notes": "x" * 2 * LIMIT}))
    assert folder.result() is None
    assert list(tmp_path.iterdir()) == []


def test_a_metrics_row_that_does_not_fit_costs_only_itself(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    rows = [{"attempt": 1, "kind": "train", "epoch": 1, "step": step} for step in range(1, 7)]
    for row in rows[:5]:
        folder.append_metrics(row)
    assert _when_full(lambda: folder.append_metrics({"kind": "event", "note": "x" * 2 * LIMIT}))
    folder.append_metrics(rows[5])
    assert folder.metrics() == rows
    assert len(folder.metrics_file.read_bytes().splitlines()) == 7  # the torn one, too


def test_a_map_takes_its_room_before_it_is_filled(tmp_path: Path) -> None:
    new_map(tmp_path / "rows.npy", np.dtype(np.uint8), (1 << 20,))
    state = (tmp_path / "rows.npy").stat()
    assert state.st_blocks * 512 >= state.st_size > 1 << 20, "a sparse file ends a job by SIGBUS"


def test_a_cache_that_does_not_fit_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    def write(file: Path) -> None:
        file.write_bytes(b"part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\).*SDTPS_CACHE"):
        mapped_once(tmp_path / "rows.npy", (4,), write)
    assert [p.name for p in tmp_path.iterdir()] == [".rows.npy.lock"]
