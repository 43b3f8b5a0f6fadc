"""Pipes, directories and broken links in place of a run's files: no command blocks or fails."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ablations.cli as control
from ablations.launch import dispatch
from ablations.launch.plan import make_plan
from ablations.store import attempts as records
from ablations.store.life import run_states
from sdtps.run.folder import RunFolder
from tests.ablations import plant
from tests.ablations.fakes import Fakes

SECONDS = 300  # much more than a busy machine needs, less than a test may take


ODD: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a broken link": lambda path: path.symlink_to("nowhere"),
}
FILES = [
    *("status.json", "run.json", "config.yaml", "lock.json", "metrics.jsonl", "train.log"),
    *("submitit/attempts.txt", "submitit/job.log"),
]
COMMANDS = (["status"], ["plan"], ["watch", "--once"], ["cancel", "--yes"], ["clean"])
SENDING = (["submit", "--no-audit"], ["retry", "--failed", "--cancelled", "--no-audit"], ["status"])


@pytest.fixture(autouse=True)
def _end_of_patience() -> Iterator[None]:
    """A command that waits is a failure here, not a test session that never ends."""

    def give_up(number: int, frame: object) -> None:
        raise AssertionError(f"waited for {SECONDS} s")

    earlier = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, earlier)


def _said(odd: str) -> str:
    return odd if odd == "a directory" else "not a regular file"


def _put(path: Path, make: Callable[[Path], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    make(path)


@pytest.mark.parametrize("name", FILES)
def test_no_command_waits_or_ends_in_a_traceback(
    tmp_path: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    cases = list(itertools.product([False, True], ODD.values()))  # has it begun; what is odd
    study = plant.study(tmp_path, ["ok"], seeds=len(cases))
    runs = tmp_path / "runs"
    dispatch.submit(study.runs(), runs)
    jobs = fakes.arrays()[0]["name"]
    for place, (run, (began, make)) in enumerate(zip(study.runs(), cases, strict=True)):
        folder = run.folder(runs)
        if began:
            records.write_start(folder, jobs, f"1_{place}", 0)
            RunFolder(folder).write_status("running", attempt=1)
        _put(folder / name, make)
    logs = [["logs", f"ok/seed{seed}-"] for seed in study.seeds]
    for words in [*COMMANDS, *logs, *SENDING]:
        subject = [] if words[0] == "logs" else [str(study.path)]
        code = control.main([*words[:1], *subject, *words[1:], "--runs-dir", str(runs)])
        shown = capsys.readouterr()
        assert code in (0, 1, 3, 4), (words, shown.err)


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_lock_is_told_as_what_it_is_and_hides_no_other_run(
    tmp_path: Path, fakes: Fakes, odd: str, capsys: pytest.CaptureFixture[str]
) -> None:
    study = plant.study(tmp_path, ["ok", "raise"])
    runs = tmp_path / "runs"
    _put(study.runs()[0].folder(runs) / "lock.json", ODD[odd])
    bad, good = run_states(study.runs(), runs)
    assert (bad.state, bad.kind, bad.detail) == (
        "failed",
        "unreadable",
        f"lock.json: is {_said(odd)}",
    )
    assert good.state == "planned"
    for words in (["submit"], ["retry", "--failed"], ["retry", "ok/seed0"]):
        command = [words[0], str(study.path), *words[1:], "--no-audit", "--runs-dir", str(runs)]
        assert control.main(command) == 0
        assert "repair or delete it" in capsys.readouterr().out
    assert [s.state for s in run_states(study.runs(), runs)] == ["failed", "queued"]
    assert control.main(["status", str(study.path), "--runs-dir", str(runs)]) == 3
    assert "Run them again" not in capsys.readouterr().out  # it would not


@pytest.mark.parametrize("odd", ODD)
def test_a_record_that_is_none_is_noted_and_gone_before_a_job_would_wait_for_it(
    tmp_path: Path, fakes: Fakes, odd: str
) -> None:
    study = plant.study(tmp_path, ["ok"])
    runs = tmp_path / "runs"
    (run,) = study.runs()
    attempts = records.attempts_file(run.folder(runs))
    RunFolder(run.folder(runs)).create(run.config, {"seed": 0})
    _put(attempts, ODD[odd])
    RunFolder(run.folder(runs)).write_status("failed", attempt=1, reason="no")
    (status,) = run_states([run], runs)
    assert (status.state, status.detail) == ("failed", f"no; submitit/attempts.txt is {_said(odd)}")
    assert make_plan(study, runs, [status], retry=["failed"]).submitted
    dispatch.submit([run], runs, replace=[run.folder(runs)])
    assert not os.path.lexists(attempts)
    assert run_states([run], runs)[0].state == "queued"


def test_an_odd_folder_among_the_submissions_or_the_runs_is_left_alone(
    tmp_path: Path, fakes: Fakes
) -> None:
    study = plant.study(tmp_path, ["ok", "raise"])
    runs = tmp_path / "runs"
    jobs = runs / study.name / "_jobs"
    for number, make in enumerate(ODD.values()):
        _put(jobs / f"odd{number}", make)
    folder = study.runs()[0].folder(runs)
    _put(folder, os.mkfifo)
    os.mkfifo(runs / f".squeue-{os.getuid()}.json")
    os.mkfifo(runs / f".squeue-{os.getuid()}.lock")
    states = run_states(study.runs(), runs)
    assert [s.state for s in states] == ["failed", "planned"]
    dispatch.submit(study.runs(), runs)
    assert [s.state for s in run_states(study.runs(), runs)] == ["failed", "queued"]
