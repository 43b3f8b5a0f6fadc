"""submitit/attempts.txt: when a run's jobs began and how they ended, without asking a scheduler.

One line an event, written by the batch script (by the worker itself on local slots), so that the end of
a process that could not speak for itself is known:

    start SUBMISSION JOB RESTART HOST PID BOOT STARTED TIME
    began SUBMISSION JOB RESTART TIME                        Python runs, and has found its run
    end   SUBMISSION JOB RESTART CODE SIGNAL TIME            CODE as the shell has it; SIGNAL TERM or -
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ablations.slurm.endings import INTERRUPTED
from ablations.store.locks import Process
from sdtps.run.folder import RunFolder
from sdtps.system.files import read_bytes

ATTEMPTS = "attempts.txt"
RECORDS = (  # what a job writes to in its run folder
    *("status.json", "run.json", "config.yaml", "metrics.jsonl", "checkpoint.pt", "train.log"),
    *("best.safetensors", "last.safetensors", "evaluations.jsonl", f"submitit/{ATTEMPTS}"),
)
KILLED = 137  # as the shell has SIGKILL
LOG = "job.log"  # the job's output; on a cluster a link to the scheduler's file


@dataclass(frozen=True)
class Start:
    job: str
    restart: int
    process: Process
    time: float


@dataclass(frozen=True)
class End:
    job: str
    restart: int
    code: int
    terminated: bool
    time: float


@dataclass(frozen=True)
class Attempts:
    """The events of one submission of a run, oldest first."""

    starts: tuple[Start, ...] = ()
    ends: tuple[End, ...] = ()
    began: frozenset[tuple[str, int]] = frozenset()  # (job, restart) of those in which Python ran
    kills: int = 0  # ends by SIGKILL without a SIGTERM before, over all submissions

    @property
    def python_ran(self) -> bool:
        """In the job that started last."""
        start = self.last_start
        return start is not None and (start.job, start.restart) in self.began

    @property
    def last_start(self) -> Start | None:
        return self.starts[-1] if self.starts else None

    @property
    def last_end(self) -> End | None:
        """How the last start ended; None while it runs, or where the end was not recorded."""
        start = self.last_start
        if start is None:
            return None
        ends = [e for e in self.ends if (e.job, e.restart) == (start.job, start.restart)]
        return ends[-1] if ends else None


def attempts_file(folder: Path) -> Path:
    return folder / f"submitit/{ATTEMPTS}"


def log_file(folder: Path) -> Path:
    return folder / f"submitit/{LOG}"


def read(folder: Path, submission: str) -> Attempts:
    """What is recorded of `submission` in `folder`; torn lines are left out."""
    text = (read_bytes(attempts_file(folder)) or b"").decode(errors="replace")
    starts: list[Start] = []
    ends: list[End] = []
    began: set[tuple[str, int]] = set()
    kills = 0
    for line in text.splitlines():
        words = line.split(" ")
        try:
            match words:
                case ["start", name, job, restart, host, pid, boot, ticks, seconds] if (
                    name == submission
                ):
                    process = Process(host, int(pid), "" if boot == "-" else boot, int(ticks))
                    starts.append(Start(job, int(restart), process, float(seconds)))
                case ["began", name, job, restart, _] if name == submission:
                    began.add((job, int(restart)))
                case ["end", name, job, restart, code, signal, seconds]:
                    end = End(job, int(restart), int(code), signal == "TERM", float(seconds))
                    kills += end.code == KILLED and not end.terminated
                    if name == submission:
                        ends.append(end)
        except ValueError:
            continue
    return Attempts(tuple(starts), tuple(ends), frozenset(began), kills)


def ended_by_itself(folder: Path, submission: str) -> bool:
    """The run ended without a signal, in a way that a restart of its job would not resume.

    An exit of 0 is one only with a result or a divergence: srun says 0 of a run whose node went down.
    """
    run = RunFolder(folder)
    if run.result() is not None or (run.status() or {}).get("state") == "diverged":
        return True
    end = read(folder, submission).last_end
    return end is not None and end.code not in (0, INTERRUPTED) and not end.terminated


def write_start(folder: Path, submission: str, job: str, restart: int) -> None:
    """This process begins the run."""
    me = Process.this()
    _append(folder, "start", submission, job, restart, me.host, me.pid, me.boot or "-", me.started)


def write_began(folder: Path, submission: str, job: str, restart: int) -> None:
    """Python runs."""
    _append(folder, "began", submission, job, restart)


def write_end(
    folder: Path, submission: str, job: str, restart: int, code: int, *, terminated: bool
) -> None:
    """The run's process ended, or was found dead."""
    _append(folder, "end", submission, job, restart, code, "TERM" if terminated else "-")


def _append(folder: Path, *words: object) -> None:
    line = " ".join(map(str, (*words, f"{time.time():.0f}")))
    file = attempts_file(folder)
    file.parent.mkdir(exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o664)
    try:
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # its writer was killed
        os.write(handle, f"{chr(10) * torn}{line}\n".encode())
    except OSError as error:
        error.filename = str(file)  # writing knows no name
        raise
    finally:
        os.close(handle)
