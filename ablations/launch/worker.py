"""What runs inside a job: finds its run, calls the run's entry point, and arranges what comes after it.

    python -m ablations.launch.worker runs/STUDY/_jobs/NAME [PLACE]

PLACE is the run's line in runs.txt, by default the array index. The entry point is `module:function`
(sdtps.training.attempt:execute). It gets the run folder's path and says how it ended. Exit codes are in
ablations/slurm/endings.py; 0 is an end of the run's own.

With resources.runs_per_gpu one job starts several runs on one GPU: each gets a process, a log and
records of its own, so that one which fails ends nothing but itself. Signals are passed on, and after a
time limit the job is requeued once, when all its runs have written their checkpoints; those that have
ended by then are not started again.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ablations.slurm import commands as slurm
from ablations.slurm import endings
from ablations.store import attempts as records
from ablations.store import locks
from ablations.store.submissions import Submission
from sdtps.run.folder import RunFolder
from sdtps.system.commandline import on_signals
from sdtps.system.errors import SdtpsError
from sdtps.system.files import share

PACKED = "SDTPS_PACKED"  # set for the runs that share a job
LOCK = "SDTPS_LOCK"  # the submission whose lock a run folder must hold to be written to
REQUEUE_TRIES = 6  # with growing pauses, for a controller that is busy; about a minute in all
POLL_SECONDS = 0.2
LOCK_SECONDS = 5.0  # between looks at whether a run has been cancelled
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Job:
    """What the scheduler, or the local queue, says about this process."""

    id: str  # A_i of an array element; a process id on local slots
    restart: int
    rank: int
    tasks: int
    local: bool
    packed: bool = False  # one of several runs of this job, whose parent process speaks for it

    @classmethod
    def here(cls) -> Job:
        env = os.environ
        if env.get("SUBMITIT_EXECUTOR") == "local":
            return cls(
                id=env["SUBMITIT_LOCAL_JOB_ID"],
                restart=int(env.get("SDTPS_RESTART", "0")),
                rank=int(env.get("SUBMITIT_LOCAL_GLOBALID", "0")),
                tasks=int(env.get("SUBMITIT_LOCAL_NTASKS", "1")),
                local=True,
            )
        return cls(
            id=f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}",
            restart=int(env.get("SLURM_RESTART_COUNT", "0")),
            rank=int(env.get("SLURM_PROCID", "0")),
            tasks=int(env.get("SLURM_NTASKS", "1")),
            local=False,
            packed=PACKED in env,
        )


def main(words: list[str] | None = None) -> int:
    """Run one array element. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ablations.launch.worker", description=__doc__)
    parser.add_argument("submission", type=Path)
    element = os.environ.get("SLURM_ARRAY_TASK_ID")
    parser.add_argument("place", type=int, nargs="?", default=element)
    arguments = parser.parse_args(words)
    submission = Submission(arguments.submission)
    share(submission.folder)
    job = Job.here()
    if not job.local and not job.packed and submission.runs_per_job > 1:
        return _several(submission, job)
    folder = submission.run(arguments.place)
    if not locks.holds(folder, submission.name):
        lock = locks.read(folder)
        mine = lock is not None and lock.submission == submission.name
        gone = "cancelled" if mine else f"not locked by {submission.name} any more"
        print(f"{folder} is {gone}; nothing done", flush=True)
        return endings.NOT_OURS
    os.environ[LOCK] = submission.name
    if job.local:
        return _recorded(folder, submission, job)
    if job.packed:
        _begin(folder, submission, job)
    return _run(folder, submission, job)


# -- one run ------------------------------------------------------------------------------------


def _recorded(folder: Path, submission: Submission, job: Job) -> int:
    """On local slots: what the batch script does on a cluster."""
    if gpus := os.environ.get("SDTPS_SLOT_GPUS"):
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    if job.rank:
        _own_log(folder, job)
        return _run(folder, submission, job)
    _begin(folder, submission, job)
    code = 1
    try:
        code = _run(folder, submission, job)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else (0 if error.code is None else 1)
        raise
    finally:
        records.write_end(folder, submission.name, job.id, job.restart, code, terminated=False)
    return code


def _begin(folder: Path, submission: Submission, job: Job) -> None:
    """A process with one run to itself writes down that it starts, and writes to the run's own log."""
    _own_log(folder, job)
    (folder / "status.json").unlink(missing_ok=True)
    records.write_start(folder, submission.name, job.id, job.restart)


def _own_log(folder: Path, job: Job) -> None:
    """Send this process's output to the run's log, instead of a file for each process id."""
    log = records.log_file(folder)
    if log.is_symlink():  # to the output of an earlier job
        log.unlink()
    redirect(log)
    early_log(folder, job.id, job.rank).unlink(missing_ok=True)


def redirect(log: Path) -> None:
    """This process's output into `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o664)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)


def early_log(folder: Path, job: str, rank: int) -> Path:
    """Where a process on a local slot writes before it knows that the run is its own."""
    return records.log_file(folder).with_name(f"{job}_{rank}_log.out")


def _run(folder: Path, submission: Submission, job: Job) -> int:
    if job.rank == 0:
        records.write_began(folder, submission.name, job.id, job.restart)
    cap = int(submission.intent.get("max_requeues", 10))
    if job.restart > cap:
        times = f"{job.restart} time{'s' * (job.restart > 1)}"
        _say(job, f"started again {times}, more than resources.max_requeues = {cap}; giving up")
        return endings.TOO_OFTEN
    for name in _RANKS:  # the shell's, and not this job's
        os.environ.pop(name, None)
    if job.tasks > 1:
        _join_tasks()
    _check_snapshot()
    signals = _Signals()
    steps = submission.intent.get("max_steps")
    try:
        entry = _entry(submission.intent["entry"])
        outcome = entry(folder) if steps is None else entry(folder, max_steps=int(steps))
    except Exception as error:
        if isinstance(error, SdtpsError):
            print(error, file=sys.stderr, flush=True)
        else:
            traceback.print_exc()
            sys.stderr.flush()
        if not locks.holds(folder, submission.name):
            return endings.NOT_OURS
        if job.rank == 0:
            _record_failure(folder, error)
        return 2 if isinstance(error, SdtpsError) else 1
    received = signals.received()
    if outcome != "requeued" or (steps is not None and not received):
        _say(job, f"{folder}: {outcome}")
        return 1 if steps is not None and outcome == "diverged" else 0
    return _after_interruption(job, cap, received)


def _record_failure(folder: Path, error: Exception) -> None:
    """Where the trainer did not come so far as to record it, such as an import that fails."""
    run = RunFolder(folder)
    if (run.status() or {}).get("state") != "failed":
        kind = "oom" if isinstance(error, MemoryError) else "error"
        reason = f"{type(error).__name__}: {error}"[:2000]
        attempt = len(run.run().get("attempts", [])) or 1
        run.write_status("failed", attempt=attempt, kind=kind, reason=reason)


def _after_interruption(job: Job, cap: int, received: set[int]) -> int:
    """A checkpoint is written. Who starts the run again?

    SIGTERM means that the scheduler takes the job away (preemption, cancellation, shutdown) and decides
    itself whether it comes back. SIGUSR2 means that the time is nearly up: then we ask, for this
    element only.
    """
    if signal.SIGUSR2 not in received or job.local:
        return endings.INTERRUPTED
    if job.restart >= cap:
        _say(job, f"time limit reached, and resources.max_requeues = {cap} is used up; giving up")
        return endings.GAVE_UP
    if job.rank == 0 and not job.packed:
        _requeue(job.id)
    return endings.INTERRUPTED


def _requeue(job_id: str) -> None:
    pause = 1.0
    for _ in range(REQUEUE_TRIES):
        refused = slurm.requeue(job_id)
        if refused is None:
            print(f"requeued {job_id}", flush=True)
            return
        print(f"scontrol requeue {job_id}: {refused}", flush=True)
        time.sleep(pause)
        pause *= 2


class _Signals:
    """Which signals have come in, whoever handles them: Python also writes their numbers to a pipe."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def received(self) -> set[int]:
        try:
            return set(os.read(self._read, 4096))
        except BlockingIOError:
            return set()


def _join_tasks() -> None:
    """torch's variables (RANK, WORLD_SIZE, MASTER_ADDR ...) from the scheduler's."""
    from submitit.helpers import TorchDistributedEnvironment

    TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
    if int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) == 1:
        # On one node no name needs to be resolved, and SLURM's name for it may not be the network's.
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    else:
        os.environ["MASTER_ADDR"] = _address(os.environ["MASTER_ADDR"])


def _address(node: str) -> str:
    """Where a node is reached: by its name, else by the address that SLURM has of it."""
    try:
        socket.gethostbyname(node)
    except OSError:
        with contextlib.suppress(slurm.NoAnswer):
            found = re.search(r"NodeAddr=(\S+)", slurm.ask(["scontrol", "show", "node", node]))
            return found[1] if found else node
    return node


def _check_snapshot() -> None:
    """A job must import the code frozen for it, not what lies in the working directory by now."""
    import sdtps

    wanted = os.environ.get("SDTPS_SNAPSHOT")
    found = Path(sdtps.__file__).resolve()
    if wanted and Path(wanted).resolve() not in found.parents:
        raise RuntimeError(f"imported {found}, which is not below the snapshot {wanted}")


def _entry(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    entry: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return entry


def _say(job: Job, text: str) -> None:
    if job.rank == 0:
        print(text, flush=True)


# -- several runs in one job -----------------------------------------------------------------------


@dataclass
class _Child:
    """One run and its process."""

    folder: Path
    process: subprocess.Popen[bytes]
    cancelled: bool = False


@dataclass
class _PassedOn:
    """Signals: passed on to every process, and remembered."""

    children: list[_Child] = field(default_factory=list)
    received: set[int] = field(default_factory=set)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received.add(number)
        for child in self.children:
            if child.process.poll() is None:
                child.process.send_signal(number)


def _several(submission: Submission, job: Job) -> int:
    """Work through one array element. Returns the exit code: 0, whatever became of the runs."""
    element = int(os.environ["SLURM_ARRAY_TASK_ID"])
    signals = _PassedOn()
    with on_signals((signal.SIGTERM, signal.SIGUSR2), signals):
        for k, folder in enumerate(submission.members(element)):
            ended = records.ended_by_itself(folder, submission.name)
            if locks.holds(folder, submission.name) and not ended:
                place = element * submission.runs_per_job + k
                signals.children.append(_Child(folder, _start(submission, place)))
        for number in list(signals.received):  # came while some were being started
            signals(number, None)
        again = _wait(signals, submission, job)
    if again:
        _requeue(job.id)
    return 0


def _start(submission: Submission, place: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-u", "-m", "ablations.launch.worker", str(submission.folder)]
    return subprocess.Popen(
        [*command, str(place)],
        env={**os.environ, PACKED: "1"},
        start_new_session=True,
        # Some schedulers signal all processes of a job: until the run has a handler, this ends it.
        preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
    )


def _wait(signals: _PassedOn, submission: Submission, job: Job) -> bool:
    """Until the last run has ended; True where the element is to be started again."""
    again = False
    running = list(signals.children)
    looked = time.monotonic()
    while running:
        for child in list(running):
            code = child.process.poll()
            if code is None:
                continue
            running.remove(child)
            shell_code = code if code >= 0 else 128 - code  # as a shell has a signal's end
            terminated = child.cancelled or signal.SIGTERM in signals.received
            records.write_end(
                child.folder, submission.name, job.id, job.restart, shell_code, terminated=terminated
            )
            print(f"{child.folder}: exit {shell_code}", flush=True)
            again |= shell_code == endings.INTERRUPTED and not terminated
        if time.monotonic() - looked > LOCK_SECONDS:
            looked = time.monotonic()
            for child in running:
                if not child.cancelled and not locks.holds(child.folder, submission.name):
                    child.cancelled = True
                    child.process.terminate()
        time.sleep(POLL_SECONDS)
    return again


if __name__ == "__main__":
    sys.exit(main())
