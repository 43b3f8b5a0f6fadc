"""Several runs in one job on one GPU: `resources.runs_per_gpu`.

    python -m ablations.slurm.pack runs/STUDY/_jobs/NAME

Each run of the array element gets a process, a log and records of its own, so that one which fails ends
nothing but itself. Signals are passed on, and after a time limit the element is requeued once, when all
its runs have written their checkpoints; those that have ended by then are not started again.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from ablations.slurm.worker import PACKED, Job, requeue
from ablations.store import attempts as records
from ablations.store import claims
from ablations.store.submissions import Submission

POLL_SECONDS = 0.2
CLAIM_SECONDS = 5.0  # between looks at whether a run has been cancelled


@dataclass
class _Run:
    """One run and its process."""

    folder: Path
    process: subprocess.Popen[bytes]
    cancelled: bool = False


@dataclass
class _Signals:
    """Passed on to every process, and remembered."""

    runs: list[_Run] = field(default_factory=list)
    received: set[int] = field(default_factory=set)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received.add(number)
        for run in self.runs:
            if run.process.poll() is None:
                run.process.send_signal(number)


def main(words: list[str] | None = None) -> int:
    """Work through one array element. Returns the exit code: 0, whatever became of the runs."""
    parser = argparse.ArgumentParser(prog="python -m ablations.slurm.pack", description=__doc__)
    parser.add_argument("submission", type=Path)
    submission = Submission(parser.parse_args(words).submission)
    job = Job.here()
    element = int(os.environ["SLURM_ARRAY_TASK_ID"])
    with _passed_on() as signals:
        for folder in submission.members(element):
            if _wanted(folder, submission) and not records.ended_by_itself(folder, submission.name):
                signals.runs.append(_Run(folder, _start(submission, folder)))
        for number in list(signals.received):  # came while some were being started
            signals(number, None)
        again = _wait(signals, submission, job)
    if again:
        requeue(job.id)
    return 0


def _start(submission: Submission, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-u", "-m", "ablations.slurm.worker", str(submission.folder)]
    return subprocess.Popen(
        [*command, str(submission.runs[str(folder)])],
        env={**os.environ, PACKED: "1"},
        start_new_session=True,  # the scheduler signals process groups: each signal comes once, from us
    )


def _wait(signals: _Signals, submission: Submission, job: Job) -> bool:
    """Until the last run has ended; True where the element is to be started again."""
    again = False
    running = list(signals.runs)
    looked = time.monotonic()
    while running:
        for run in list(running):
            code = run.process.poll()
            if code is None:
                continue
            running.remove(run)
            shell_code = code if code >= 0 else 128 - code  # as a shell has a signal's end
            terminated = run.cancelled or signal.SIGTERM in signals.received
            records.write_end(
                run.folder, submission.name, job.id, job.restart, shell_code, terminated=terminated
            )
            print(f"{run.folder}: exit {shell_code}", flush=True)
            again |= shell_code == records.INTERRUPTED and not terminated
        if time.monotonic() - looked > CLAIM_SECONDS:
            looked = time.monotonic()
            for run in running:
                if not run.cancelled and not _wanted(run.folder, submission):
                    run.cancelled = True
                    run.process.terminate()
        time.sleep(POLL_SECONDS)
    return again


def _wanted(folder: Path, submission: Submission) -> bool:
    """The run still is this submission's, and nobody has cancelled it."""
    claim = claims.read(folder)
    return claim is not None and claim.submission == submission.name and not claim.cancelled


@contextmanager
def _passed_on() -> Iterator[_Signals]:
    signals = _Signals()
    numbers = (signal.SIGTERM, signal.SIGUSR2)
    earlier = {number: signal.signal(number, signals) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
