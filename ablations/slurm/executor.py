"""The one file that touches submitit: it formats sbatch options and starts local processes.

Both functions use submitit's internals, so that requirements.lock pins the version they were tried with
(docs/decisions says what submitit does here, and why arrays, claims and requeue are ours).
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from submitit.local.local import LocalJob

TRIED_WITH = "1.5.4"  # of submitit


def sbatch_text(folder: Path, parameters: Mapping[str, Any], setup: Sequence[str], body: str) -> str:
    """An sbatch file: submitit's options, then `setup` and `body`."""
    from submitit.slurm.slurm import _make_sbatch_string

    return str(_make_sbatch_string(body, folder, setup=list(setup), **parameters))


class LocalProcess:
    """A command on this machine with a time limit, told by SIGUSR2 before it is reached.

    submitit runs a controller process for each; it passes SIGTERM on and kills at the limit.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        variables: Mapping[str, str],
        *,
        timeout_min: int,
        signal_delay_s: int,
        tasks: int,
    ) -> None:
        from submitit import LocalExecutor

        executor = LocalExecutor(folder=folder)
        executor.update_parameters(
            timeout_min=timeout_min,
            signal_delay_s=signal_delay_s,
            tasks_per_node=tasks,
            stderr_to_stdout=True,
        )
        with _environment(variables), _no_keyboard_interrupt():
            self._job: LocalJob[object] = executor._submit_command(shlex.join(command))
        self.id = str(self._job.job_id)

    @property
    def running(self) -> bool:
        process = self._job._process
        return process is not None and process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self._job._process is not None:
            self._job._process.send_signal(number)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """`variables` in this process's environment, which submitit passes on, while it starts a job."""
    earlier = {key: os.environ.get(key) for key in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for key, value in earlier.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextmanager
def _no_keyboard_interrupt() -> Iterator[None]:
    """Processes started here do not see the terminal's Ctrl-C: the queue tells them what to do."""
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)
