"""One attempt at one run, from its folder to one of its ends. What jobs on a cluster call."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdtps.config import Config, ProgramConfig, ReidConfig
from sdtps.run import provenance
from sdtps.run.folder import RunFolder, now
from sdtps.system.commandline import at_least, on_signals
from sdtps.system.errors import LockLost, RunError, SdtpsError

# SLURM sends SIGTERM before it kills, and SIGUSR2 where a job asks to be told ahead of its time limit.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


def execute(path: Path | str, *, max_steps: int | None = None) -> str:
    """Run, or go on with, the run in folder `path`.

    Args:
        max_steps: stop with a checkpoint after this many steps in all, as if interrupted. Another
            program (`task: command`) is asked to stop once it has logged so many.

    Returns:
        "completed", "diverged" or "requeued" (interrupted, checkpoint written: call again to go on).

    Raises:
        RunError: no seed in run.json. SdtpsError: bad configuration, data or weights.
        Anything a run can raise; status.json says `failed` first, with kind (oom, error) and reason.
    """
    folder = RunFolder(path)
    if not folder.config_file.is_file():
        raise RunError(f"{path}: no run folder (it has no config.yaml); submit.py makes them")
    if folder.result() is not None:
        return "completed"
    config = folder.config()
    run = folder.run()
    if not isinstance(run.get("seed"), int):
        raise RunError(f"{folder.run_file}: holds no seed; submit the study again to write it")

    attempt = len(run.get("attempts", [])) + 1
    is_program = isinstance(config, ProgramConfig)  # torch is not imported then
    train: Callable[..., str] = _train
    if is_program:
        from sdtps.training.program import peak_mib
        from sdtps.training.program import run as train
    else:
        from sdtps.system import distributed
        from sdtps.training.device import process_peak_mib as peak_mib

    writes = is_program or int(os.environ.get("RANK", "0")) == 0
    if writes:
        _begin_attempt(folder, attempt)
    try:
        with _stop_requested() as stop:
            outcome = train(folder, config, run["seed"], attempt, stop.is_set, max_steps)
        if writes and outcome != "completed":  # a completed run has said so before its last write
            folder.end_attempt(outcome, peak_mib())
    except LockLost:  # the folder belongs to another job by now
        raise
    except BaseException as error:
        if writes and folder.result() is None:
            _record_failure(folder, attempt, error)
            folder.end_attempt("failed", peak_mib())
        raise
    finally:
        if not is_program:
            distributed.stop()
    return outcome


def prepare(path: Path) -> None:
    """Import what the run in folder `path` needs and digest the code, before processes are forked.

    No GPU is asked for anything: CUDA cannot be used in a fork of a process that has used it.
    """
    provenance.source_digest()
    config = RunFolder(path).config()
    if isinstance(config, ProgramConfig):
        from sdtps.training import program  # noqa: F401

        return
    import torch._dynamo  # noqa: F401  # torch's optimisers import the compiler: a second a run

    from sdtps.training import loop  # noqa: F401

    _task_of(config)


def _train(
    folder: RunFolder,
    config: Config,
    seed: int,
    attempt: int,
    stop: Callable[[], bool],
    max_steps: int | None,
) -> str:
    from sdtps.system import distributed
    from sdtps.training.checkpoint import load_initial
    from sdtps.training.device import for_machine, prepare_torch, seed_everything
    from sdtps.training.loop import Loop

    device = prepare_torch(config)
    config, notes = for_machine(config, device)
    distributed.start(device)
    seed_everything(seed)  # the same initial weights in every process
    task = build_task(config, seed, device)
    task.record["amp"], task.record["compile"] = config.train.amp, config.train.compile
    task.record["notes"] = notes
    if config.train.init is not None:
        task.record["init"] = load_initial(task.model, config.train.init)
    seed_everything(seed, distributed.rank())
    task.record["environment"] = provenance.environment()  # again: now torch can name the GPU
    task.record["parameters"] = sum(p.numel() for p in task.model.parameters())
    return Loop(task, folder, config, seed=seed, attempt=attempt, stop=stop, stop_after=max_steps).run()


def build_task(config: Config, seed: int, device: Any) -> Any:
    """The `task.Task` of a configuration: its data is read (or generated) and its model made."""
    return _task_of(config)(config, seed, device)


def _task_of(config: Config) -> Callable[..., Any]:
    if isinstance(config, ReidConfig):
        from sdtps.training.reid import ReidTask

        return ReidTask
    from sdtps.training.retrieval import RetrievalTask

    return RetrievalTask


@contextmanager
def _stop_requested() -> Iterator[threading.Event]:
    """An event that the stop signals set; their earlier handlers come back afterwards."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Python delivers signals to the main thread only
        return
    with on_signals(STOP_SIGNALS, lambda *_: stop.set()):
        yield stop


def _begin_attempt(folder: RunFolder, attempt: int) -> None:
    code = provenance.code_version()
    diff = {"diff": text} if (text := code.pop("diff")) else {}
    slurm, environment = provenance.slurm(), provenance.environment()
    entry = {
        "attempt": attempt,
        "started": now(),
        "ended": None,
        "host": environment["host"],
        "job_id": slurm.get("job_id"),
        "pid": os.getpid(),
        "ended_as": None,
    }
    attempts = [*folder.run().get("attempts", []), entry]
    folder.update_run(code=code, environment=environment, slurm=slurm, attempts=attempts, **diff)
    before = (folder.status() or {}) if folder.checkpoint_file.exists() else {}
    reached = {key: before.get(key) or 0 for key in ("epoch", "step", "progress")}
    folder.write_status("running", attempt=attempt, **reached)


def _record_failure(folder: RunFolder, attempt: int, error: BaseException) -> None:
    """status.json and the traceback in train.log, before the exception goes on its way."""
    torch = sys.modules.get("torch")  # without it there is no such error
    oom = isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError))
    name = "" if isinstance(error, SdtpsError) else f"{type(error).__name__}: "  # ours say all
    reason = f"{name}{error}".strip()[:2000]
    with folder.log_file.open("a", encoding="utf-8") as stream:
        stream.write(f"{now()} failed\n{''.join(traceback.format_exception(error))}\n")
    folder.write_status("failed", attempt=attempt, kind="oom" if oom else "error", reason=reason)


EXIT_CODES = {"completed": 0, "diverged": 3, "requeued": 75}  # 75: temporary failure, try again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="runs/STUDY/VARIANT/seedK-HASH")
    parser.add_argument(
        "--max-steps", type=at_least(1), metavar="N", help="stop with a checkpoint after N steps"
    )


def command(arguments: argparse.Namespace) -> int:
    """The verb `run`. Exit code: 0 completed, 3 diverged, 75 stopped with a checkpoint."""
    outcome = execute(arguments.folder, max_steps=arguments.max_steps)
    print(f"{arguments.folder}: {outcome}")
    return EXIT_CODES[outcome]
