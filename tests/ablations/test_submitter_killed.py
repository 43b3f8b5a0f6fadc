"""A submitter killed before any of its writes: the next sends what is missing, and nothing twice."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ablations.launch import dispatch
from ablations.slurm import executor
from ablations.store.states import run_states
from ablations.study.model import Study
from tests.ablations import plant
from tests.ablations.copies import Copies, in_process
from tests.ablations.fakes import Fakes

# Audit events (see sys.audit) before which a process can die and leave something half done.
WRITES = {"os.link", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "subprocess.Popen"}
STATES_AT_LEAST = 20  # that a submission of two runs can leave; fewer: this test sees too little


def _submit(study: Study, runs: Path, copies: Copies) -> None:
    """Submit in a process of its own; a copy is taken before each write, and at its end."""

    def work() -> None:
        seen, here = 0, threading.local()

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            written = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
            if (event in WRITES or written) and not getattr(here, "busy", False):
                here.busy = True
                copies.take(seen)
                seen += 1
                here.busy = False

        sys.addaudithook(audit)
        dispatch.submit(study.runs(), runs)
        here.busy = True
        copies.take(seen)

    in_process(work)


def test_killed_before_any_write_the_next_submission_repairs_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = plant.study(tmp_path, ["ok", "raise"])
    monkeypatch.setattr(executor, "WRITERS", 1)  # one write at a time
    runs = tmp_path / "all" / "runs"
    runs.mkdir(parents=True)
    fakes = Fakes(tmp_path / "all" / "fakes")  # what the scheduler knows belongs to a copy
    fakes.install(monkeypatch)
    copies = Copies(tmp_path / "all", tmp_path / "states")
    _submit(study, runs, copies)
    left = sorted(copies.to.iterdir())
    assert len(left) > STATES_AT_LEAST
    for copy in left:
        where = copies.put_back(copy)
        report = dispatch.submit(study.runs(), runs)
        counted = Counter(fakes.submitted_runs())
        assert sorted(counted) == sorted(str(r.folder(runs)) for r in study.runs()), where
        assert set(counted.values()) == {1}, f"{where}: a run was queued twice"
        (runs / f".squeue-{os.getuid()}.json").unlink(missing_ok=True)
        assert [s.state for s in run_states(study.runs(), runs)] == ["queued", "queued"], where
        strays = [p for r in study.runs() for p in r.folder(runs).glob(".*")]
        assert not strays, f"{where}: temporary files are left"
    assert report.submitted == []  # the last copy is of a whole submission
