"""An array's sbatch file. submitit checks and formats sbatch's options.

An sbatch file is options, a few variables, then job.sh as it stands. A task gets one path and finds its
run by its array index, so that nothing is left to do once sbatch has answered: a submitter that is
killed then leaves no job waiting for a file that never comes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from ablations.slurm import endings, options
from ablations.slurm.arrays import Chunk
from ablations.study.schema import Resources
from sdtps.system.errors import SubmissionError

WORKER = "ablations.launch.worker"


def script(jobs: Path, chunk: Chunk, snapshot: Path, *, dependency: str | None = None) -> str:
    """The text of an array's sbatch file.

    Args:
        jobs: folder of the submission; its name is the jobs' name.
        snapshot: folder of the frozen code.
        dependency: as sbatch --dependency takes it.

    Raises:
        SubmissionError: the path holds characters that SLURM or Python's search path cannot take.
    """
    check_path(jobs)
    resources, count = chunk.resources, len(chunk.runs)
    parameters = options.parameters(
        resources, jobs, count=count, throttle=chunk.throttle, dependency=dependency
    )
    variables = {
        "JOBS": shlex.quote(str(jobs)),
        "SUBMISSION": shlex.quote(jobs.name),
        "SNAPSHOT": shlex.quote(str(snapshot)),
        "MODULE": WORKER,
        "PYTHON": f"({shlex.join(options.interpreter(resources))})",
        "SRUN_OPTIONS": f"({shlex.join(resources.srun)})",
        "TOGETHER": str(min(resources.runs_per_gpu, count)),
        "INTERRUPTED": str(endings.INTERRUPTED),
        "NOT_OURS": str(endings.NOT_OURS),
        "SETUP_FAILED": str(endings.SETUP_FAILED),
    }
    body = package_files("ablations.slurm").joinpath("job.sh").read_text(encoding="utf-8")
    setup = [f"{name}={value}" for name, value in variables.items()]
    return _sbatch_text(jobs, parameters, setup, body.partition("\n")[2])


def probe_script(jobs: Path, resources: Resources, snapshot: Path, module: str) -> str:
    """An sbatch file that runs `module` as a run of an array would, with its folder as argument."""
    parameters = options.parameters(resources, jobs)
    python = shlex.join(options.interpreter(resources))
    quoted = shlex.quote(str(jobs))
    code = shlex.quote(str(snapshot))
    body = [
        f"export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}} PYTHONUNBUFFERED=1",
        f"export SDTPS_SITE_GPUS={resources.gpu_count}",
        "set -o errexit",
        f". {quoted}/setup.sh",
        f"srun {shlex.join(resources.srun)} {python} -P -u -m {module} {quoted}",
    ]
    return _sbatch_text(jobs, parameters, [], "\n".join(body))


def command_script(jobs: Path, resources: Resources, command: str, after: str) -> str:
    """An sbatch file that runs a shell command once the jobs that `after` names have ended.

    It is sent from the folder in which the command is to run, with the environment of the sender.
    """
    one = resources.model_copy(update={"gpus": 0, "nodes": 1, "runs_per_gpu": 1})
    parameters = options.parameters(one, jobs, dependency=after)
    return _sbatch_text(jobs, parameters, [], f"bash -c {shlex.quote(command)}")


def setup_text(resources: Resources) -> str:
    """setup.sh: environment, then the study's shell lines. job.sh stops at the first that fails."""
    variables = [f"export {name}={shlex.quote(v)}" for name, v in resources.environment.items()]
    return "".join(f"{line.rstrip()}\n" for line in (*variables, *resources.setup))


def check_path(path: Path) -> None:
    """Refuse a run store whose jobs would all fail."""
    bad = [c for c in str(path) if c in "\\:" or not c.isprintable()]
    if bad:
        raise SubmissionError(
            f"{path}: SLURM's log names and Python's search path cannot hold {bad[0]!r}. "
            "Give another folder with --runs-dir."
        )


def _sbatch_text(folder: Path, parameters: Mapping[str, Any], setup: Sequence[str], body: str) -> str:
    """An sbatch file: submitit's options, then `setup` and `body`."""
    from submitit import SlurmExecutor

    class Formatter(SlurmExecutor):
        """Formats a file, on machines without SLURM too."""

        @classmethod
        def affinity(cls) -> int:
            return 1

        def text(self) -> str:
            return self._make_submission_file_text(body, folder.name)

    formatter = Formatter(folder)
    formatter.parameters = {**parameters, "setup": list(setup)}
    return formatter.text()
