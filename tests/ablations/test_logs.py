from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import pytest

from ablations.store import attempts, locks
from ablations.store.locks import Lock
from ablations.store.submissions import Submission
from ablations.view.logs import follow, read
from sdtps.run.folder import RunFolder


def test_all_logs_of_a_run_are_read_the_trainers_first(tmp_path: Path) -> None:
    assert "no log yet" in next(read(tmp_path))
    (tmp_path / "submitit").mkdir()
    (tmp_path / "submitit" / "1_0.log").write_bytes(b"srun: error\xff\n")
    (tmp_path / "train.log").write_text("epoch 1\n")
    texts = list(read(tmp_path))
    assert texts[0].endswith("train.log")
    assert texts[1:] == ["epoch 1", f"==> {tmp_path / 'submitit' / '1_0.log'}", "srun: error\ufffd"]


def test_following_shows_every_line_once_and_stops_with_the_run(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("one\ntw")
    steps = iter(["o\nthree\n", "last without end"])

    def sleep(_: float) -> None:
        text = next(steps)
        with log.open("a") as stream:
            stream.write(text)
        if "last" in text:
            (tmp_path / "result.json").write_text('{"attempt": 1}')

    assert list(follow(tmp_path, sleep=sleep)) == ["one", "two", "three", "last without end"]


@pytest.mark.parametrize("beat", [None, 10_000])
def test_following_ends_with_a_killed_run_and_says_how(tmp_path: Path, beat: float | None) -> None:
    """Killed with a record of it, or silent for long."""
    folder = tmp_path / "s/v/seed0-x"
    work = Submission(tmp_path / "s/_jobs/n")
    work.begin(Lock.new("n", "slurm"))
    folder.mkdir(parents=True)
    locks.take(folder, work.lock_file)
    work.write_intent([folder])
    work.write_receipt("7")
    attempts.write_start(folder, "n", "7_0", 0)
    RunFolder(folder).write_status("running", attempt=1)
    (folder / "train.log").write_text("one\n")

    def sleep(_: float) -> None:
        assert beat is None, "the run is silent already"
        attempts.write_end(folder, "n", "7_0", 0, attempts.KILLED, terminated=False)

    if beat is not None:
        status = {"state": "running", "attempt": 1, "heartbeat": time.time() - beat}
        (folder / "status.json").write_text(json.dumps(status))
    first, last = follow(folder, sleep=sleep)
    assert first == "one"
    assert ("failed: killed" if beat is None else "unknown: no heartbeat") in last


def test_a_log_is_read_line_by_line(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with log.open("wb") as stream:
        stream.write(b"x" * 99 + b"\n")
        stream.truncate(100_000_100)  # holes, not blocks of a disk
    lines = read(tmp_path)
    tracemalloc.start()
    assert next(lines).endswith("train.log")
    assert next(lines) == "x" * 99
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
