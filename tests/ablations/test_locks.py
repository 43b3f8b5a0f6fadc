"""Exactly one submission holds a run, whoever asks and whenever anybody dies."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from pathlib import Path

import pytest

from ablations.store import locks
from ablations.store.locks import TORN_SECONDS, Lock, Process
from ablations.store.submissions import Submission
from tests.ablations.copies import ends, fork


def _submission(folder: Path, name: str) -> Submission:
    made = Submission(folder / "_jobs" / name)
    made.begin(Lock.new(name, "slurm"))
    return made


def _run(folder: Path, name: str = "run") -> Path:
    path = folder / name
    path.mkdir()
    return path


def _compete(folder: Path, name: str, start: float) -> None:
    source = _submission(folder, name).lock_file
    held = Lock("old", "slurm", None, 0.0)
    time.sleep(max(0.0, start - time.time()))
    for run in sorted(folder.glob("run*")):
        if locks.take(run, source, held):
            with (folder / "won.txt").open("a") as won:
                won.write(f"{run.name}\n")


def test_an_ended_lock_is_taken_over_by_exactly_one_of_six(tmp_path: Path) -> None:
    old = _submission(tmp_path, "old").lock_file
    runs = [_run(tmp_path, f"run{k:02}") for k in range(40)]
    assert all(locks.take(run, old) for run in runs)
    start = time.time() + 0.3
    ends(*[fork(lambda k=k: _compete(tmp_path, f"s{k}", start)) for k in range(6)])  # type: ignore[misc]
    assert sorted((tmp_path / "won.txt").read_text().split()) == [run.name for run in runs]


def test_a_released_run_is_free_and_a_stranger_cannot_release_it(tmp_path: Path) -> None:
    run = _run(tmp_path)
    locks.take(run, _submission(tmp_path, "a").lock_file)
    held = locks.read(run)
    assert held is not None
    assert not locks.release(run, dataclasses.replace(held, submission="b"))
    assert locks.release(run, held)
    assert locks.read(run) is None


def test_marking_one_run_cancelled_leaves_the_others_of_its_submission(tmp_path: Path) -> None:
    source = _submission(tmp_path, "a").lock_file
    first, second = _run(tmp_path, "first"), _run(tmp_path, "second")
    locks.take(first, source)
    locks.take(second, source)
    held = locks.read(first)
    assert held is not None
    assert locks.rewrite(first, held, dataclasses.replace(held, cancelled=True))
    marked, other = locks.read(first), locks.read(second)
    assert marked is not None
    assert other is not None
    assert (marked.cancelled, other.cancelled) == (True, False)


def test_a_torn_lock_is_left_alone_while_young_and_dead_when_old(tmp_path: Path) -> None:
    run = _run(tmp_path)
    (run / "lock.json").touch()
    young = locks.read(run)
    assert young is not None
    assert young.time > 0
    old = time.time() - TORN_SECONDS - 1
    os.utime(run / "lock.json", (old, old))
    dead = locks.read(run)
    assert dead is not None
    assert dead.time == 0


@pytest.mark.parametrize("links", [True, False])
def test_a_second_submission_does_not_get_a_locked_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    run = _run(tmp_path)
    assert locks.take(run, _submission(tmp_path, "a").lock_file)
    assert not locks.take(run, _submission(tmp_path, "b").lock_file)
    held = locks.read(run)
    assert held is not None
    assert held.submission == "a"


def test_a_process_id_that_is_used_again_is_another_process() -> None:
    me = Process.this()
    assert me.alive() is True
    assert dataclasses.replace(me, started=me.started - 1).alive() is False
    assert dataclasses.replace(me, boot="an earlier boot").alive() is False
    assert dataclasses.replace(me, host="elsewhere").alive() is None


def test_a_lock_that_is_written_while_one_looks_is_no_odd_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, look = _run(tmp_path), os.stat
    source = _submission(tmp_path, "a").lock_file

    def late(path: Path, **how: bool) -> os.stat_result:
        """What was found before the lock was there, where one looks behind links."""
        missing = path == run / "lock.json" and how.get("follow_symlinks", True)
        if missing and not os.path.lexists(path):
            os.link(source, path)
            raise FileNotFoundError(errno.ENOENT, "", path)
        return look(path, **how)

    monkeypatch.setattr(os, "stat", late)
    assert locks.read(run) is None
