"""One attempt at a run that is any program (`task: command`): started, watched, and its end recorded.

The program is told its run by the environment (`sdtps.log`) and writes rows into metrics.jsonl, or its
own log is imported again and again while it runs (`log` in its configuration). Exit code 0 with an
evaluation row is completed, 3 is diverged, 75 is stopped with a checkpoint of its own. A request to
stop reaches the program as one SIGTERM, and what ends by it is run again with the same command line.
SIGUSR2, by which SLURM announces a time limit, is for this process alone. No torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sdtps.config.mapping import MappingError, load, shipped
from sdtps.config.program import ProgramConfig
from sdtps.log import ATTEMPT, RUN, SEED
from sdtps.run.folder import HEARTBEAT_SECONDS, RunFolder, best_of, is_finite, now, row_of
from sdtps.run.queries import FILE as QUERIES
from sdtps.run.queries import read_queries
from sdtps.system.errors import RunError, did_you_mean
from sdtps.system.files import digest, read_bytes
from sdtps.training.loggers import Loggers, start_module

DIVERGED, TEMPORARY = 3, 75  # exit codes by which a program says more than that it failed
POLL_SECONDS = 0.1
TRIAL_SECONDS = 0.5  # between two looks at how far a program is that is only tried
IMPORT_SECONDS = 30.0  # between two imports of a program's log
_TAIL = 2_000  # characters of a failed program's output that become the reason
_LATEST = 65_536  # bytes at the end of metrics.jsonl that a heartbeat reads
SIGNAL_SECONDS = 1.0  # within which a signal to all processes of a job has reached each of them
# The command line comes between these two. The shell waits for the command that runs at a SIGTERM,
# starts no other, and ends with the command's own exit code: 143 where commands were left.
_BEFORE = (
    "set -o pipefail; stopped=; trap '' USR2; trap stopped=1 TERM; "
    """trap '[ -z "$stopped" ] || [ "$BASH_COMMAND" = "exit \\$?" ] || exit 143' DEBUG; """
)
_AFTER = "\nexit $?\n"


def run(
    folder: RunFolder,
    config: ProgramConfig,
    seed: int,
    attempt: int,
    stop: Callable[[], bool],
    max_steps: int | None = None,
) -> str:
    """Start the program and wait for its end.

    Args:
        stop: asked again and again; once true the program gets SIGTERM, and as long as it needs.
        max_steps: it gets SIGTERM too when it has logged this step.

    Returns:
        "completed", "diverged" or "requeued" (the same command goes on).

    Raises:
        RunError: it failed; the text holds the end of what it printed, or what is wrong with its
            queries.json.
    """
    path = folder.path.resolve()
    line = config.line(seed=seed, run=str(path))
    environment = {
        **os.environ,
        **config.environment,
        RUN: str(path),
        SEED: str(seed),
        ATTEMPT: str(attempt),
    }
    pause = HEARTBEAT_SECONDS if max_steps is None else TRIAL_SECONDS

    def beat() -> bool:
        """Tell how far it is; whether that is far enough."""
        loggers.check()
        if log_import:
            log_import.look()
        # The last rows: a heartbeat must not read all of a long run.
        lines = (read_bytes(folder.metrics_file, last=_LATEST) or b"").split(b"\n")
        latest = _latest([row for line in lines if (row := row_of(line)) is not None])
        folder.write_status("running", attempt=attempt, **latest)
        return max_steps is not None and latest.get("step", 0) >= max_steps

    log_import = _LogImport(folder, config, attempt) if config.log else None
    mapping = config.log.mapping if config.log else None
    folder.update_run(program=_files(line, mapping, config.directory))
    earlier = folder.metrics()
    began, rows_before = time.monotonic(), len(earlier)
    with folder.log_file.open("ab") as log:
        log.write(f"{now()} attempt {attempt}: {line}\n".encode())
        log.flush()
        start = log.tell()
        process = subprocess.Popen(
            ["bash", "-c", f"{_BEFORE}{line}{_AFTER}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=config.directory,
            env=environment,
            start_new_session=True,  # so that what it starts gets its signals too
        )
        loggers = Loggers(config.loggers, folder, lambda text: _say(folder, text))
        try:
            rows_when_stopped = _wait(process, stop, beat, pause, lambda: len(folder.metrics()))
        except BaseException:
            _signal(process, signal.SIGKILL)
            process.wait()
            raise
        else:
            unread = log_import.finish() if log_import else ""
        finally:
            loggers.close()
    rows = folder.metrics()[rows_before:]
    code = process.returncode
    last = _latest(rows)
    if log_import is None:
        _say_where_it_began(folder, earlier, rows, attempt)
    stopped = rows_when_stopped is not None
    # Exit code 0 after SIGTERM is the end of the run only if it evaluated after that.
    finished = stopped and _last(folder.metrics()[rows_when_stopped:], "eval")
    if code == TEMPORARY or (stopped and (code != 0 or not finished)):
        reason = f"stopped by SIGTERM ({_ending(code)}); what it did not save is lost"
        if code == TEMPORARY:
            reason = "stopped; it says that it saved its state (exit code 75)"
        folder.write_status("requeued", attempt=attempt, reason=reason, **last)
        return "requeued"
    if code == DIVERGED or (code != 0 and "loss" in (_last(rows, "train").get("nonfinite") or {})):
        reason = "the program says so (exit code 3)" if code == DIVERGED else "the loss is not finite"
        folder.write_status("diverged", attempt=attempt, reason=reason, **last)
        return "diverged"
    if code != 0:
        missing = ": a program that the command line names was not found" if code == 127 else ""
        text = f"the program failed ({_ending(code)}{missing})"
        raise RunError(f"{text}:\n{_tail(folder.log_file, start)}")
    if unread:
        raise RunError(f"the program completed, but its log cannot be imported: {unread}")
    result = _result(folder, config, log_import.about if log_import else {})
    if result is None:
        raise RunError(
            "the program ended without an evaluation row in metrics.jsonl, so there is no result: log "
            'one with sdtps.log (`log("eval", epoch=1, step=1, accuracy=0.9)`)'
        )
    if (queries := path / QUERIES).exists():
        folder.write_queries(read_queries(queries, result["final"]))
    folder.write_status("completed", attempt=attempt, progress=1.0, **last)
    folder.end_attempt("completed", peak_mib())
    folder.write_result({"attempt": attempt, **result, "train_seconds": time.monotonic() - began})
    return "completed"


def peak_mib() -> float:
    """The most memory that one of the ended programs of this process took, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def _files(line: str, mapping: str | None, directory: str | None) -> dict[str, str]:
    """Digest of each file that the command line names, and of the mapping: which program it was."""
    words, digests = [mapping] if mapping else [], {}
    with contextlib.suppress(ValueError):  # an open quote
        words += shlex.split(line)
    for word in words:
        file = Path(directory or ".") / word
        with contextlib.suppress(OSError):  # such as an argument that is too long for a file's name
            if file.suffix and file.is_file() and file.name != "config.yaml":
                digests[word] = digest(file.read_bytes())
    return digests


def _wait(
    process: subprocess.Popen[bytes],
    stop: Callable[[], bool],
    beat: Callable[[], bool],
    pause: float,
    rows: Callable[[], int],
) -> int | None:
    """Until the program has ended, with a beat every `pause` seconds.

    Returns:
        How many rows there were when it was to stop; None where it ended by itself.
    """
    due, enough = 0.0, False
    stopped: int | None = None
    with _Witness(process.pid) as witness:
        while process.poll() is None:
            if time.monotonic() >= due:
                due = time.monotonic() + pause
                enough = beat()
            if stopped is None and (enough or stop()):
                stopped = rows()
                if enough or not witness.has_ended():
                    _signal(process, signal.SIGTERM)
            time.sleep(POLL_SECONDS)
    late = time.monotonic() + SIGNAL_SECONDS
    while stopped is None and process.returncode != 0 and time.monotonic() < late:
        time.sleep(POLL_SECONDS)  # the signal that ended the program may reach this process later
        stopped = rows() if stop() else None
    return stopped


class _Witness:
    """A process beside the program, which shows whether SIGTERM was sent to all processes of the job.

    Some schedulers signal every process of a job (SLURM with cgroups), others only one. If SIGTERM ends
    this one, the program got one, too. Where the job itself is killed, it kills the program.
    """

    def __init__(self, program: int) -> None:
        """program: its process group."""
        self._process = subprocess.Popen(
            ["bash", "-c", "trap '' USR2; read -r _ || kill -KILL -- -$0", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> _Witness:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # it may have ended
            self._process.communicate(b"the program has ended\n")

    def has_ended(self) -> bool:
        """Whether SIGTERM came, or comes within a moment."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(SIGNAL_SECONDS) == -signal.SIGTERM
        return False


def _ending(code: int) -> str:
    if code > 128 and code - 128 in {int(number) for number in signal.Signals}:
        code = 128 - code  # as a shell has a signal's end
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _say_where_it_began(
    folder: RunFolder, earlier: list[dict[str, Any]], rows: list[dict[str, Any]], attempt: int
) -> None:
    """In train.log and in the job's log: a later attempt that began where the first one did."""
    first, second = (
        min((row["step"] for row in some if isinstance(row.get("step"), int)), default=None)
        for some in (earlier, rows)
    )
    if first is not None and second is not None and second <= first:
        text = f"attempt {attempt} started again from the beginning: nothing was saved to resume from"
        _say(folder, text)
        print(text, flush=True)


class _LogImport:
    """Copies the rows of the program's log into metrics.jsonl, by `sdtps import` as a process."""

    def __init__(self, folder: RunFolder, config: ProgramConfig, attempt: int) -> None:
        log = config.log
        assert log is not None
        self._folder, self._attempt = folder, attempt
        here = Path(config.directory or ".").resolve()
        as_ = log.format
        if log.mapping:
            try:
                load(log.mapping, here)
            except MappingError as error:
                raise RunError(f"log.mapping: {error}\nnothing was started") from None
            as_ = log.mapping if log.mapping in shipped() else str(here / log.mapping)
        self.about: dict[str, Any] = {}  # the split of each metric, and what selects
        options = {"--as": as_, "--split": log.split, "--unit": log.unit}
        given = [word for name, value in options.items() if value for word in (name, str(value))]
        file = here / log.file.replace("{run}", str(folder.path.resolve()))
        self._words = ("import", str(file), "--rows", *given)
        self._thread = ThreadPoolExecutor(1)
        self._import: Future[tuple[bytes, bytes, int]] | None = None
        self._due = time.monotonic() + IMPORT_SECONDS

    def look(self) -> None:
        """Start an import where one is due, and take over what an earlier one has read. Never waits."""
        if self._import is None and time.monotonic() >= self._due:
            self._import = self._thread.submit(self._read)
        elif self._import is not None and self._import.done():
            self._take(self._import)

    def finish(self) -> str:
        """Import the whole log; returns why it could not be read, or nothing."""
        if self._import is not None:
            self._take(self._import)
        return self._take(self._thread.submit(self._read))

    def _read(self) -> tuple[bytes, bytes, int]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = start_module("analysis", *self._words, stdin=subprocess.DEVNULL, **pipes)
        return (*process.communicate(), process.returncode)

    def _take(self, reading: Future[tuple[bytes, bytes, int]]) -> str:
        printed, errors, code = reading.result()
        self._import, self._due = None, time.monotonic() + IMPORT_SECONDS
        if code != 0:  # while the program runs, its log may not be there yet
            return errors.decode(errors="replace").strip()
        self.about, *rows = [json.loads(line) for line in printed.splitlines()]
        self._folder.replace_metrics(self._attempt, rows)
        return ""


def _say(folder: RunFolder, text: str) -> None:
    """A line in train.log, among what the program prints."""
    with folder.log_file.open("a", encoding="utf-8") as log:
        log.write(f"{now()} {text}\n")


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _latest(rows: list[dict[str, Any]]) -> dict[str, int]:
    """epoch and step as last logged."""
    last = rows[-1] if rows else {}
    return {key: last[key] for key in ("epoch", "step") if isinstance(last.get(key), int)}


def _last(rows: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next((row for row in reversed(rows) if row.get("kind") == kind), {})


def _result(folder: RunFolder, config: ProgramConfig, about: dict[str, Any]) -> dict[str, Any] | None:
    """What result.json holds: the last evaluation, and the selected one where anything selects.

    Args:
        about: of an imported log, the `splits` of its metrics, and `select` such as "acc max".
    """
    rows = [row for row in folder.resolved_metrics() if row.get("kind") == "eval"]
    if not rows:
        return None
    select = about.get("select")
    if config.select is not None:
        select = f"{config.select} {'max' if config.select_direction == 'up' else 'min'}"
    metric = select.split()[0] if select else ""
    best = best_of(rows, select) if select else None
    if select and best is None:
        held = dict.fromkeys(name for row in rows for name in row if is_finite(row[name]))
        near = did_you_mean(metric, held.keys() - {"attempt", "epoch", "step"})
        raise RunError(f"select: no evaluation row holds '{metric}'. {near}")
    chosen = best or {}
    bare = [{k: v for k, v in r.items() if k not in ("kind", "attempt")} for r in (chosen, rows[-1])]
    steps = [row["step"] for row in folder.resolved_metrics() if isinstance(row.get("step"), int)]
    return {
        "best": bare[0],
        "final": bare[1],
        "select_metric": metric,
        # A program may say it in its rows: log("eval", split="val", ...).
        "selected_on": (about.get("splits") or {}).get(metric) or chosen.get("split", "eval")
        if best
        else None,
        "steps": max(steps, default=0),
    }


def _tail(file: Path, start: int) -> str:
    """The end of what the program printed."""
    with file.open("rb") as stream:
        stream.seek(max(start, stream.seek(0, os.SEEK_END) - _TAIL))
        return stream.read().decode(errors="replace").strip() or "(it printed nothing)"
