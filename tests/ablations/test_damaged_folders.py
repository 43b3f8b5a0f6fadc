"""Whatever lies in a run folder: each command ends with words of its own, never with a traceback."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ablations.cli as control
from ablations.launch import dispatch
from ablations.launch.plan import make_plan
from ablations.store import attempts as records
from ablations.store import submissions
from ablations.store.states import RunStatus, run_states
from sdtps.run.folder import RunFolder
from tests.ablations import plant
from tests.ablations.fakes import Fakes

ODD: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a broken link": lambda path: path.symlink_to("nowhere"),
}
GARBAGE: dict[str, bytes | Callable[[Path], None]] = {
    "empty": b"",
    "cut": b'{"state": "runn',
    "not text": b"\xff\xfe\x00\x80",
    "a number": b"3",
    "a list": b'[{"state": "running"}]',
    "wrong types": json.dumps(
        {
            **{k: ["x"] for k in ("state", "attempt", "epoch", "progress", "eta_s", "heartbeat")},
            **dict.fromkeys(("best", "final", "select_metric", "attempts", "code", "seed"), 3),
            **{k: {"a": None} for k in ("submission", "executor", "submitter", "time")},
        }
    ).encode(),
    "wrong values": json.dumps(
        {
            **{"state": "running", "epoch": "three", "progress": "half", "heartbeat": "now"},
            **{"best": {}, "select_metric": {}, "attempts": [3], "submission": "../..", "time": 1e400},
            **{"executor": "local", "kind": 3, "reason": None},
        }
    ).encode(),
    "deep": b"[" * 100_000,
    **ODD,
}
FILES = [
    *("result.json", "status.json", "run.json", "config.yaml", "lock.json", "metrics.jsonl"),
    *("checkpoint.pt", "train.log", "submitit", "submitit/attempts.txt", "submitit/job.log"),
]
COMMANDS = [
    *(["status"], ["status", "--json"], ["plan", "--retry", "failed"], ["watch", "--once"]),
    *(["cancel", "--yes"], ["submit", "--dry-run"], ["clean", "--unplanned"]),
    *(["submit", "--no-audit"], ["retry", "--failed", "--no-audit"], ["status"]),
    ["clean", "--state", "failed", "interrupted", "--yes"],
]


def _damage(path: Path, content: bytes | Callable[[Path], None]) -> None:
    if path.is_dir():
        for entry in path.iterdir():
            entry.unlink()
        path.rmdir()
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)


@pytest.fixture(autouse=True)
def _end_of_patience() -> Iterator[None]:
    """A command that waits for a pipe is a failure here, not a test session that never ends."""
    earlier = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("waited for five minutes"))
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, earlier)


@pytest.mark.parametrize("name", FILES)
def test_no_command_ends_in_a_traceback(
    tmp_path: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    each = len(GARBAGE) + 1  # of the queued, running and failed runs the last one stays whole
    study = plant.study(tmp_path, ["ok"], seeds=3 * each)
    runs = tmp_path / "runs"
    queued, running, failed = (study.runs()[k * each : (k + 1) * each] for k in range(3))
    dispatch.submit([*queued, *running], runs)
    for place, run in enumerate(running, start=each):
        records.write_start(run.folder(runs), fakes.arrays()[0]["name"], f"1_{place}", 0)
        RunFolder(run.folder(runs)).write_status("running", attempt=1)
    for run in failed:
        folder = RunFolder(run.folder(runs))
        folder.create(run.config, {"study": run.study, "variant": run.variant, "seed": run.seed})
        folder.write_status("failed", attempt=1, kind="error", reason="no")
    for some in (queued, running, failed):
        for run, content in zip(some, GARBAGE.values(), strict=False):
            _damage(run.folder(runs) / name, content)
    logs = [["logs", f"ok/seed{run.seed}-"] for run in (*queued[:-1], *running[:-1], *failed[:-1])]
    for words in [*COMMANDS[:7], *logs, *COMMANDS[7:]]:
        subject = [] if words[0] == "logs" else [str(study.path)]
        code = control.main([*words[:1], *subject, *words[1:], "--runs-dir", str(runs)])
        shown = capsys.readouterr()
        assert code in (0, 1, 2, 3, 4), words
        assert code != 2 or shown.err.strip(), words
        assert "Traceback" not in shown.out + shown.err
        if words[0] == "status":
            assert code != 2, shown.err


@pytest.mark.parametrize("what", [k for k in GARBAGE if k != "wrong values"])
def test_a_result_that_is_none_is_told_and_run_again_only_when_asked(
    tmp_path: Path, fakes: Fakes, what: str
) -> None:
    study = plant.study(tmp_path, ["ok"])
    runs = tmp_path / "runs"
    (run,) = study.runs()
    folder = RunFolder(run.folder(runs))
    folder.create(run.config, {"seed": 0})
    folder.write_status("completed", attempt=1)
    _damage(folder.result_file, GARBAGE[what])

    def look() -> RunStatus:
        return run_states([run], runs)[0]

    assert (look().state, look().kind) == ("failed", "result")
    assert "--retry failed" in look().detail
    assert make_plan(study, runs, [look()]).submitted == []
    (again,) = make_plan(study, runs, [look()], retry=["failed"]).submitted
    assert again.start == "over"
    dispatch.submit([run], runs, over=[again.folder])
    assert look().state == "queued"
    assert not folder.result_file.exists()


def _said(odd: str) -> str:
    return odd if odd == "a directory" else "not a regular file"


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_lock_is_told_as_what_it_is_and_hides_no_other_run(
    tmp_path: Path, fakes: Fakes, odd: str, capsys: pytest.CaptureFixture[str]
) -> None:
    study = plant.study(tmp_path, ["ok", "raise"])
    runs = tmp_path / "runs"
    _damage(study.runs()[0].folder(runs) / "lock.json", ODD[odd])
    bad, good = run_states(study.runs(), runs)
    why = f"lock.json: is {_said(odd)}"
    assert (bad.state, bad.kind, bad.detail) == ("failed", "unreadable", why)
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
    _damage(attempts, ODD[odd])
    RunFolder(run.folder(runs)).write_status("failed", attempt=1, reason="no")
    (status,) = run_states([run], runs)
    assert (status.state, status.detail) == ("failed", f"no; submitit/attempts.txt is {_said(odd)}")
    assert make_plan(study, runs, [status], retry=["failed"]).submitted
    dispatch.submit([run], runs, resume=[run.folder(runs)])
    assert not os.path.lexists(attempts)
    assert run_states([run], runs)[0].state == "queued"


def test_an_odd_folder_among_the_submissions_or_the_runs_is_left_alone(
    tmp_path: Path, fakes: Fakes
) -> None:
    study = plant.study(tmp_path, ["ok", "raise"])
    runs = tmp_path / "runs"
    for number, make in enumerate(ODD.values()):
        _damage(runs / study.name / f"_jobs/odd{number}", make)
    for path in (
        study.runs()[0].folder(runs),
        *(runs / f".squeue-{os.getuid()}.{end}" for end in ("json", "lock")),
    ):
        _damage(path, os.mkfifo)
    assert [s.state for s in run_states(study.runs(), runs)] == ["failed", "planned"]
    dispatch.submit(study.runs(), runs)
    assert [s.state for s in run_states(study.runs(), runs)] == ["failed", "queued"]


def test_old_temporary_files_go_from_completed_runs_too(tmp_path: Path, fakes: Fakes) -> None:
    study = plant.study(tmp_path, ["ok"])
    runs = tmp_path / "runs"
    (run,) = study.runs()
    folder = RunFolder(run.folder(runs))
    folder.create(run.config, {"seed": 0})
    folder.write_result({"attempt": 1})
    old, new = (folder.path / f".checkpoint.pt.{name}.tmp" for name in ("old", "new"))
    for file in (old, new):
        file.touch()
    long_ago = time.time() - 2 * submissions.SUBMITTING_SECONDS
    os.utime(old, (long_ago, long_ago))
    dispatch.submit([run], runs)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_torn_record_of_a_run_is_written_anew_at_submission(tmp_path: Path, fakes: Fakes) -> None:
    study = plant.study(tmp_path, ["ok"])
    runs = tmp_path / "runs"
    (run,) = study.runs()
    folder = RunFolder(run.folder(runs))
    for content, name in itertools.product((b"", b'{"seed":', b"\xff"), ("run.json", "config.yaml")):
        folder.create(run.config, {"seed": 0})
        (folder.path / name).write_bytes(content)
        folder.create(run.config, {"seed": 0})
        assert folder.run()["seed"] == 0
        assert folder.config() == run.config
