"""Exactly one submission holds a run, whoever asks and whenever anybody dies."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from ablations.store import claims
from ablations.store.claims import TORN_SECONDS, Claim, Process
from ablations.store.submissions import Submission


def _submission(folder: Path, name: str) -> Submission:
    made = Submission(folder / "_jobs" / name)
    made.begin(Claim.new(name, "slurm"))
    return made


def _run(folder: Path, name: str = "run") -> Path:
    path = folder / name
    path.mkdir()
    return path


def test_a_second_submission_does_not_get_a_claimed_run(tmp_path: Path) -> None:
    run = _run(tmp_path)
    assert claims.take(run, _submission(tmp_path, "a").claim_file)
    assert not claims.take(run, _submission(tmp_path, "b").claim_file)
    held = claims.read(run)
    assert held is not None
    assert held.submission == "a"


def _compete(folder: Path, name: str, start: float, won: multiprocessing.SimpleQueue[str]) -> None:
    source = _submission(folder, name).claim_file
    held = Claim("old", "slurm", None, 0.0)
    time.sleep(max(0.0, start - time.time()))
    for run in sorted(folder.glob("run*")):
        if claims.replace(run, held, source):
            won.put(run.name)


def test_an_ended_claim_is_taken_over_by_exactly_one_of_six(tmp_path: Path) -> None:
    old = _submission(tmp_path, "old").claim_file
    runs = [_run(tmp_path, f"run{k:02}") for k in range(40)]
    assert all(claims.take(run, old) for run in runs)
    context = multiprocessing.get_context("fork")
    won: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    start = time.time() + 0.3
    racers = [context.Process(target=_compete, args=(tmp_path, f"s{k}", start, won)) for k in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    names = []
    while not won.empty():
        names.append(won.get())
    assert sorted(names) == [run.name for run in runs]


def test_a_released_run_is_free_and_a_stranger_cannot_release_it(tmp_path: Path) -> None:
    run = _run(tmp_path)
    claims.take(run, _submission(tmp_path, "a").claim_file)
    held = claims.read(run)
    assert held is not None
    assert not claims.release(run, dataclasses.replace(held, submission="b"))
    assert claims.release(run, held)
    assert claims.read(run) is None


def test_marking_one_run_cancelled_leaves_the_others_of_its_submission(tmp_path: Path) -> None:
    source = _submission(tmp_path, "a").claim_file
    first, second = _run(tmp_path, "first"), _run(tmp_path, "second")
    claims.take(first, source)
    claims.take(second, source)
    held = claims.read(first)
    assert held is not None
    assert claims.rewrite(first, held, dataclasses.replace(held, cancelled=True))
    marked, other = claims.read(first), claims.read(second)
    assert marked is not None
    assert other is not None
    assert (marked.cancelled, other.cancelled) == (True, False)


def test_a_torn_claim_is_left_alone_while_young_and_dead_when_old(tmp_path: Path) -> None:
    run = _run(tmp_path)
    (run / "claim.json").touch()
    young = claims.read(run)
    assert young is not None
    assert young.time > 0
    old = time.time() - TORN_SECONDS - 1
    os.utime(run / "claim.json", (old, old))
    dead = claims.read(run)
    assert dead is not None
    assert dead.time == 0


def test_a_claim_works_where_hard_links_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    run = _run(tmp_path)
    assert claims.take(run, _submission(tmp_path, "a").claim_file)
    assert not claims.take(run, _submission(tmp_path, "b").claim_file)
    held = claims.read(run)
    assert held is not None
    assert held.submission == "a"


def test_a_process_id_that_is_used_again_is_another_process() -> None:
    me = Process.this()
    assert me.alive() is True
    assert dataclasses.replace(me, started=me.started - 1).alive() is False
    assert dataclasses.replace(me, boot="an earlier boot").alive() is False
    assert dataclasses.replace(me, host="elsewhere").alive() is None
    assert Process.read(json.loads(json.dumps(me.json()))) == me
