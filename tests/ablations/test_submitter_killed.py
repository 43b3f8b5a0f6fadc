"""A submitter killed before any of its writes: the next sends what is missing, and nothing twice."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ablations.launch import dispatch
from ablations.store import snapshot
from ablations.store.life import run_states
from ablations.study.model import Study
from tests.ablations import plant
from tests.ablations.fakes import Fakes

# Audit events (see sys.audit) before which a process can die and leave something half done.
WRITES = {"os.link", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "subprocess.Popen"}
POINTS_AT_LEAST = 20  # writes of one submission of two runs; fewer means that this test sees too little
POINTS_AT_MOST = 200


def _submit_until(study: Study, runs: Path, point: int) -> bool:
    """Submit in a process that is killed before its write number `point`; False: it lived."""
    child = os.fork()
    if child == 0:
        seen = 0

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            written = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
            if event in WRITES or written:
                if seen == point:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1

        code = 1
        try:
            sys.addaudithook(audit)
            dispatch.submit(study, study.runs(), runs)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the submission itself failed"
    return os.WIFSIGNALED(status)


def test_killed_before_any_write_the_next_submission_repairs_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = plant.study(tmp_path, ["ok", "raise"])
    code = tmp_path / "code"
    for package in snapshot.PACKAGES:
        (code / package).mkdir(parents=True)
        (code / package / "__init__.py").touch()
    monkeypatch.setattr(snapshot, "ROOT", code)  # one write for each file of it
    for point in range(POINTS_AT_MOST):
        fakes = Fakes(tmp_path / f"fakes{point}")
        fakes.install(monkeypatch)
        runs = tmp_path / f"runs{point}"
        runs.mkdir()
        killed = _submit_until(study, runs, point)
        report = dispatch.submit(study, study.runs(), runs)
        counted = Counter(fakes.submitted_runs())
        where = f"killed before write {point}"
        assert sorted(counted) == sorted(str(r.folder(runs)) for r in study.runs()), where
        assert set(counted.values()) == {1}, f"{where}: a run was queued twice"
        (runs / f".squeue-{os.getuid()}.json").unlink(missing_ok=True)
        assert [s.state for s in run_states(study.runs(), runs)] == ["queued", "queued"], where
        strays = [p for r in study.runs() for p in r.folder(runs).glob(".*")]
        assert not strays, f"{where}: temporary files are left"
        if not killed:
            assert report.submitted == []
            break
    else:
        raise AssertionError("the submission never came to its end")
    assert point >= POINTS_AT_LEAST
