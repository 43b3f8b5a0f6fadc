"""Processes of a local queue: one that imports what the runs need, and a fork of it for each run.

Importing torch and this project takes seconds of a core, and so does a run of the quick study. So the
queue starts one process (`serve`), which imports once and then forks for each run. A fork is a process
of its own: it is killed, and ends, alone. `Processes` is the queue's side; the two exchange JSON lines.

The imports are not shared where runs use GPUs, because CUDA does not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ablations.launch import worker
from ablations.store.submissions import Submission

POLL_SECONDS = 0.05
_PASSED_ON = (signal.SIGTERM, signal.SIGUSR2)


# -- the queue's side -------------------------------------------------------------------------------


class LocalProcess:
    """One run, in as many processes as it has tasks."""

    def __init__(self, number: int, server: Processes) -> None:
        self.id = str(os.getpid())  # until it has started
        self.running = True
        self._number = number
        self._server = server

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to each of its processes."""
        self._server.ask({"run": self._number, "signal": int(number)})


class Processes:
    """Starts runs of a submission on this machine.

    Args:
        command: the interpreter's words.
        variables: environment of the runs, beside this process's own.
    """

    def __init__(
        self, submission: Submission, command: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        self._words = [*command, "-P", "-u", "-m", __name__, str(submission.folder)]
        self._environment = {**os.environ, **variables}
        self._server: subprocess.Popen[bytes] | None = None
        self._started: dict[int, LocalProcess] = {}
        self._unread = b""

    def start(
        self,
        place: int,
        variables: Mapping[str, str],
        *,
        timeout_s: int,
        signal_delay_s: int,
        tasks: int = 1,
        shared_imports: bool = True,
    ) -> LocalProcess:
        """Start the run on line `place` of the submission's runs.txt.

        Args:
            timeout_s: after so many seconds the run is killed; SIGUSR2 comes `signal_delay_s` before.
            shared_imports: import before forking what the run needs.
        """
        number = len(self._started)
        process = self._started[number] = LocalProcess(number, self)
        if self._server is None or self._server.poll() is not None:
            self._read()
            self._begin()
        self.ask(
            {
                "run": number,
                "place": place,
                "variables": dict(variables),
                "timeout_s": timeout_s,
                "warn_s": timeout_s - signal_delay_s,
                "tasks": tasks,
                "shared_imports": shared_imports,
            }
        )
        self.poll()
        return process

    def poll(self) -> None:
        """Find out which runs have started and ended."""
        self._read()
        if self._server is None or self._server.poll() is not None:
            self._read()
            for process in self._started.values():
                process.running = False

    def close(self) -> None:
        """No more runs will be started; those that run go on."""
        if self._server is not None and self._server.stdin is not None:
            with contextlib.suppress(OSError):
                self._server.stdin.close()
            if not any(process.running for process in self._started.values()):
                self._server.wait()

    def ask(self, request: Mapping[str, Any]) -> None:
        if self._server is not None and self._server.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended, which `poll` finds out
                self._server.stdin.write(json.dumps(request).encode() + b"\n")
                self._server.stdin.flush()

    def _begin(self) -> None:
        # A terminal's Ctrl-C is not for them: the queue says what they are to do.
        earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._server = subprocess.Popen(
                self._words, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except OSError as error:
            print(f"{self._words[0]}: {error.strerror or error}", file=sys.stderr)
            self._server = None
            return
        finally:
            signal.signal(signal.SIGINT, earlier)
        assert self._server.stdout is not None
        os.set_blocking(self._server.stdout.fileno(), False)
        self._unread = b""

    def _read(self) -> None:
        if self._server is None or self._server.stdout is None:
            return
        while True:
            try:
                piece = os.read(self._server.stdout.fileno(), 65536)
            except OSError:  # nothing to read now
                break
            if not piece:
                break
            self._unread += piece
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            told = json.loads(line)
            process = self._started[told["run"]]
            if "started" in told:
                process.id = str(told["started"])
            else:
                process.running = False


# -- the process that forks -------------------------------------------------------------------------


@dataclass
class _Run:
    """A run's processes that have not ended yet."""

    processes: set[int]
    warn_at: float
    kill_at: float
    warned: bool = False

    def signal(self, number: int) -> None:
        for process in self.processes:  # none is reaped between two looks, so that each id is its own
            os.kill(process, number)


@dataclass
class _Server:
    submission: Submission
    answers: IO[bytes]
    runs: dict[int, _Run] = field(default_factory=dict)
    imported: bool = False
    received: list[int] = field(default_factory=list)  # signals, to be passed on

    def loop(self) -> None:
        """Until standard input ends and the last run has."""
        unread, open_ = b"", True
        while open_ or self.runs:
            if open_ and select.select([0], [], [], POLL_SECONDS)[0]:
                piece = os.read(0, 65536)
                open_ = bool(piece)
                *lines, unread = (unread + piece).split(b"\n")
                for line in lines:
                    self.take(json.loads(line))
            elif not open_:
                time.sleep(POLL_SECONDS)
            self.look()

    def take(self, request: dict[str, Any]) -> None:
        number = request["run"]
        if "place" in request:
            self.start(number, request)
        elif number in self.runs:
            self.runs[number].signal(request["signal"])

    def start(self, number: int, request: dict[str, Any]) -> None:
        if request["shared_imports"] and not self.imported:
            self.imported = True
            import_ahead(self.submission, request["place"])
        begun = time.monotonic()
        run = _Run(set(), begun + request["warn_s"], begun + request["timeout_s"])
        self.runs[number] = run
        first = 0
        for rank in range(request["tasks"]):
            process = _fork(self.submission, request, rank, first)
            run.processes.add(process)
            first = first or process
        self.say({"run": number, "started": first})

    def look(self) -> None:
        """Pass signals on, reap what has ended, keep the time limits."""
        while self.received:
            number = self.received.pop(0)
            for run in self.runs.values():
                run.signal(number)
        now = time.monotonic()
        for number, run in list(self.runs.items()):
            for process in list(run.processes):
                if os.waitpid(process, os.WNOHANG)[0]:
                    run.processes.remove(process)
            if not run.processes:
                del self.runs[number]
                self.say({"run": number, "ended": True})
            elif now > run.kill_at:
                run.signal(signal.SIGKILL)
            elif now > run.warn_at and not run.warned:
                run.warned = True
                run.signal(signal.SIGUSR2)

    def say(self, answer: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the queue was killed; the runs go on
            self.answers.write(json.dumps(answer).encode() + b"\n")
            self.answers.flush()


def import_ahead(submission: Submission, place: int) -> None:
    """Import what this run needs, where its entry point's module has a function `prepare`."""
    with contextlib.suppress(Exception):  # the run itself meets it again, and says so in its own log
        module = importlib.import_module(submission.intent["entry"].partition(":")[0])
        prepare = getattr(module, "prepare", None)
        if prepare is not None:
            prepare(submission.run(place))
    gc.collect()
    gc.freeze()  # so that the forks' collector leaves the shared pages alone


def _fork(submission: Submission, request: dict[str, Any], rank: int, first: int) -> int:
    """The process id of a fork that does a run's task `rank`; `first` is that of task 0."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    process = os.fork()
    if process:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        return process
    code = 1
    try:
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        job = str(first or os.getpid())
        os.environ.update(request["variables"])
        os.environ.update(
            SUBMITIT_EXECUTOR="local",
            SUBMITIT_LOCAL_JOB_ID=job,
            SUBMITIT_LOCAL_NTASKS=str(request["tasks"]),
            SUBMITIT_LOCAL_JOB_NUM_NODES="1",
            SUBMITIT_LOCAL_NODEID="0",
            SUBMITIT_LOCAL_GLOBALID=str(rank),
            SUBMITIT_LOCAL_LOCALID=str(rank),
        )
        place = request["place"]
        _own_streams(worker.early_log(submission.run(place), job, rank))
        code = worker.main([str(submission.folder), str(place)])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _own_streams(log: Path) -> None:
    """Nothing to read, and output into `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o664)
    for handle, number in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(handle, number)
    os.close(nothing)
    os.close(written)


def serve(folder: str) -> None:
    """Fork a run for each request on standard input; answers go to standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what imports print does not end up among the answers
    server = _Server(Submission(Path(folder)), answers)
    for number in _PASSED_ON:
        signal.signal(number, lambda received, _: server.received.append(received))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a terminal that closes: the queue says what to do
    server.loop()


if __name__ == "__main__":
    serve(sys.argv[1])
