"""Inside a job: whose run it is, what a signal means, and who starts it again."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import pytest

from ablations.launch import worker
from ablations.slurm import endings
from ablations.store import attempts as records
from ablations.store import locks
from ablations.store.locks import Lock
from ablations.store.submissions import Submission
from sdtps.run.folder import RunFolder
from sdtps.system.errors import DataError
from tests.ablations.fakes import Fakes

SENT: list[int] = []
OUTCOME = "requeued"


def entry(path: Path) -> str:
    """Gets the signals in SENT, then ends with OUTCOME."""
    for number in SENT:
        signal.signal(number, lambda *_: None)
        os.kill(os.getpid(), number)
    if OUTCOME == "bad data":
        raise DataError(f"{path}: no images")
    return OUTCOME


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fakes: Fakes) -> Submission:
    """Element 3 of array 77, in this process."""
    made = Submission(tmp_path / "s" / "_jobs" / "sdtps-s-1")
    made.begin(Lock.new("sdtps-s-1", "slurm"))
    folders = [tmp_path / "s" / "v" / f"seed{k}-x" for k in range(4)]
    for folder in folders:
        folder.mkdir(parents=True)
        locks.take(folder, made.lock_file)
    made.write_intent(folders, entry=f"{__name__}:entry", max_requeues=2)
    for key, value in {
        "SLURM_ARRAY_JOB_ID": "77",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "1",
    }.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv(worker.LOCK, "another")  # the worker sets it; undone afterwards
    for key in ("SUBMITIT_EXECUTOR", "SDTPS_SNAPSHOT"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr(worker, "_entry", lambda _: entry)
    yield made  # type: ignore[misc]
    signal.set_wakeup_fd(-1)
    SENT.clear()


def test_a_run_that_was_cancelled_before_its_job_began_does_not_start(
    job: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = job.run(3)
    lock = locks.read(folder)
    assert lock is not None
    locks.rewrite(folder, lock, dataclasses.replace(lock, cancelled=True))
    assert _run(job, monkeypatch, [], "completed") == endings.NOT_OURS
    assert not records.read(folder, job.name).began


def _run(job: Submission, monkeypatch: pytest.MonkeyPatch, sent: list[int], outcome: str) -> int:
    SENT[:] = sent
    monkeypatch.setitem(globals(), "OUTCOME", outcome)
    return worker.main([str(job.folder)])


@pytest.mark.parametrize(
    ("sent", "outcome", "restarts", "code", "requeued"),
    [
        (signal.SIGUSR2, "requeued", 1, endings.INTERRUPTED, True),  # near the time limit
        (signal.SIGTERM, "requeued", 1, endings.INTERRUPTED, False),  # taken away, and brought back
        (signal.SIGUSR2, "completed", 1, 0, False),
        (signal.SIGUSR2, "requeued", 2, endings.GAVE_UP, False),  # the cap is ours
        (None, "completed", 3, endings.TOO_OFTEN, False),
    ],
)
def test_only_this_element_is_requeued_and_only_near_the_time_limit(
    job: Submission,
    fakes: Fakes,
    monkeypatch: pytest.MonkeyPatch,
    sent: int | None,
    outcome: str,
    restarts: int,
    code: int,
    requeued: bool,
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    assert _run(job, monkeypatch, [sent] if sent else [], outcome) == code
    assert [c["argv"] for c in fakes.calls("scontrol")] == [["requeue", "77_3"]] * requeued


def test_a_busy_controller_is_asked_again(
    job: Submission, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.time, "sleep", lambda _: None)
    fakes.answer("scontrol", {"exit": 1, "stderr": "Socket timed out"}, {"exit": 1}, None)
    assert _run(job, monkeypatch, [signal.SIGUSR2], "requeued") == endings.INTERRUPTED
    assert len(fakes.calls("scontrol")) == 3


def test_a_job_whose_run_was_locked_by_a_later_submission_does_nothing(
    job: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = job.run(3)
    held = locks.read(folder)
    assert held is not None
    locks.rewrite(folder, held, Lock.new("sdtps-s-2", "slurm"))
    assert _run(job, monkeypatch, [], "completed") == endings.NOT_OURS
    assert not RunFolder(folder).status_file.exists()


def test_a_failure_before_training_is_written_where_status_looks(
    job: Submission, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(job, monkeypatch, [], "bad data") == 2
    status = RunFolder(job.run(3)).status()
    assert status is not None
    assert (status["state"], status["kind"]) == ("failed", "error")
    assert "no images" in status["reason"]
    assert "Traceback" not in capsys.readouterr().err


def test_a_job_that_would_import_other_code_than_was_frozen_for_it_refuses(
    job: Submission, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SDTPS_SNAPSHOT", str(tmp_path / "snapshot"))
    with pytest.raises(RuntimeError, match="not below the snapshot"):
        _run(job, monkeypatch, [], "completed")
