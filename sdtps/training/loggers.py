"""Rows of metrics.jsonl for other people's tools while the run goes on: `train.loggers: [mlflow]`.

Each tool runs in a process of its own that follows metrics.jsonl. One that fails ends with a line in
train.log; one that hangs is killed when the run ends. Neither costs the run a step or a number. A tool
is a class with `log` and `close` in the table `LOGGERS`, and its name in `LoggerName`
(`sdtps/config/common.py`).

    python -m sdtps.training.loggers NAME RUN FIRST_BYTE   until standard input is closed or says so
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from filelock import FileLock

from sdtps.config import resolved
from sdtps.run.folder import RunFolder, row_of
from sdtps.run.locations import CHECKOUT
from sdtps.system.files import digest

CLOSE_SECONDS = 20.0  # that the end of a run waits for all loggers together
POLL_SECONDS = 1.0
_NOT_A_CURVE = frozenset({"attempt", "epoch", "step", "time"})


class Logger(Protocol):
    """What a tool must do."""

    def log(self, row: Mapping[str, Any]) -> None:
        """One row of metrics.jsonl."""

    def close(self) -> None:
        """Write what is left."""


class TensorBoard:
    """Event files in the run's folder tensorboard/; `train/loss`, `eval/mAP`, ... by step."""

    def __init__(self, folder: RunFolder) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.event, self.summary = Event, Summary
        self.writer = EventFileWriter(str(folder.path / "tensorboard"), flush_secs=10)

    def log(self, row: Mapping[str, Any]) -> None:
        values = [self.summary.Value(tag=k, simple_value=v) for k, v in curves(row).items()]
        at = {"step": row.get("step"), "wall_time": row.get("time") or time.time()}
        if values:
            self.writer.add_event(self.event(summary=self.summary(value=values), **at))

    def close(self) -> None:
        self.writer.close()


class MLflow:
    """One MLflow run for all attempts of a run, on the server that MLFLOW_TRACKING_URI names.

    Without that variable it goes into files, runs/STUDY/_mlflow, one store for the study.
    """

    def __init__(self, folder: RunFolder) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else it wants a database
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self.metric = Metric
        study, variant, seed = _names(folder)
        files = folder.path.absolute().parents[1] / "_mlflow"
        server = os.environ.get("MLFLOW_TRACKING_URI") or files.as_uri()
        self.client = MlflowClient(tracking_uri=server)
        with FileLock(files.with_name(".mlflow.lock"), timeout=60):  # runs of a study begin together
            existing = self.client.get_experiment_by_name(study)
            experiment = existing.experiment_id if existing else self.client.create_experiment(study)
        name = f"{study}/{variant}/{folder.path.name}"
        known = self.client.search_runs([experiment], f"tags.sdtps = '{name}'", max_results=1)
        if known:
            self.run = known[0].info.run_id
            self.client.update_run(self.run, status="RUNNING")
        else:
            tags = {"sdtps": name, "study": study, "variant": variant, "seed": seed}
            made = self.client.create_run(experiment, tags=tags, run_name=f"{variant}/seed{seed}")
            self.run = made.info.run_id

    def log(self, row: Mapping[str, Any]) -> None:
        at = int(1000 * (row.get("time") or time.time()))
        values = [
            self.metric(re.sub(r"[^\w\-. :/]", "_", name), value, at, int(row["step"]))
            for name, value in curves(row).items()
        ]
        if values:
            self.client.log_batch(self.run, values)

    def close(self) -> None:
        self.client.set_terminated(self.run)


class WeightsAndBiases:
    """One W&B run for all attempts; project: the study, group: the variant.

    Offline, in the run's folder wandb/ (`wandb sync` uploads it), unless WANDB_MODE or WANDB_API_KEY
    is set: a compute node often reaches nothing, and a run must not wait for it.
    """

    def __init__(self, folder: RunFolder) -> None:
        import wandb

        study, variant, seed = _names(folder)
        online = "WANDB_API_KEY" in os.environ
        # One for all attempts; a run that starts over has a first attempt of its own.
        first = (folder.run().get("attempts") or [{}])[0].get("started")
        self.run = wandb.init(
            id=digest(f"{folder.path.resolve()} {first}".encode())[:16],
            resume="allow",
            project=study,
            group=variant,
            name=f"{variant}/seed{seed}",
            dir=str(folder.path),
            config=resolved(folder.config()),
            mode=os.environ.get("WANDB_MODE") or ("online" if online else "offline"),  # type: ignore[arg-type]
            settings=wandb.Settings(console="off", silent=True, save_code=False),
        )

    def log(self, row: Mapping[str, Any]) -> None:
        if values := curves(row):
            self.run.log(values, step=int(row["step"]))

    def close(self) -> None:
        self.run.finish()


LOGGERS: dict[str, Callable[[RunFolder], Logger]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def curves(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a train or eval row by KIND/NAME; nothing of an event."""
    if row.get("kind") not in ("train", "eval") or not isinstance(row.get("step"), int):
        return {}
    return {
        f"{row['kind']}/{name}": float(value)
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in _NOT_A_CURVE and math.isfinite(value)
    }


def _names(folder: RunFolder) -> tuple[str, str, str]:
    """Study, variant and seed."""
    record = folder.run()
    study, variant, seed = (str(record.get(key, "")) for key in ("study", "variant", "seed"))
    return study or "runs", variant or folder.path.parent.name, seed


# -- in the run ------------------------------------------------------------------------------------


class Loggers:
    """All loggers of a run, each in its process."""

    def __init__(self, names: Iterable[str], folder: RunFolder, say: Callable[[str], None]) -> None:
        file = folder.metrics_file
        first = file.stat().st_size if file.exists() else 0
        self._say = say
        self._running: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        for name in dict.fromkeys(names):
            output = tempfile.TemporaryFile()  # noqa: SIM115  what it prints
            process = start_module(
                *(__name__, name, str(folder.path), str(first)),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that what it starts ends with it
            )
            self._running[name] = process, output

    def check(self) -> None:
        """Say which of them have failed; cheap."""
        for name, (process, _) in list(self._running.items()):
            if process.poll() is not None:
                self._end(name, 0.0)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """End all of them; what one has not written after `seconds` is lost."""
        for process, _ in self._running.values():
            with contextlib.suppress(OSError):  # it has ended before
                assert process.stdin is not None
                process.stdin.write(b"end\n")
                process.stdin.close()
        deadline = time.monotonic() + seconds
        for name in list(self._running):
            self._end(name, max(0.0, deadline - time.monotonic()))

    def _end(self, name: str, seconds: float) -> None:
        process, output = self._running.pop(name)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._say(f"logger {name}: hangs; what it had not written is lost")
            return
        if process.returncode != 0:
            output.seek(0)
            last = output.read().decode(errors="replace").strip().rpartition("\n")[2]
            self._say(f"logger {name}: switched off: {last or 'it was killed'}")


def start_module(module: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    """A module of the code that the run imports, as a process; options as of Popen."""
    path = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen([sys.executable, "-P", "-m", module, *words], env=environment, **options)


# -- in the logger's process -----------------------------------------------------------------------


def follow(logger: Logger, file: Path, first: int) -> None:
    """Pass on the rows of `file` from byte `first`, until standard input ends or says anything."""
    ended, rest = False, b""
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], POLL_SECONDS)[0])
        if not file.exists():
            continue
        with file.open("rb") as stream:
            stream.seek(first)
            new = stream.read()
        first += len(new)
        *lines, rest = (rest + new).split(b"\n")
        for line in lines:
            if (row := row_of(line)) is not None:
                logger.log(row)
    logger.close()


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the run decides when it ends
    name, path, first = sys.argv[1:]
    folder = RunFolder(path)
    try:
        follow(LOGGERS[name](folder), folder.metrics_file, int(first))
    except Exception as error:  # whatever a tool raises, the run goes on
        print(f"\n{type(error).__name__}: {' '.join(str(error).split())}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
