"""What a study's resources mean to SLURM: sbatch options, tasks, GPUs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from ablations.study.schema import Resources

# A job gets its signal so many seconds before its time limit: enough to write a checkpoint.
SIGNAL_SECONDS = 90


def signal_delay(timeout_min: int) -> int:
    """Seconds before the time limit at which a job is told to write its checkpoint."""
    return min(SIGNAL_SECONDS, timeout_min * 60 // 4)


def tasks_per_node(resources: Resources) -> int:
    """One task drives one GPU; without GPUs one task a node."""
    return max(1, resources.gpu_count)


def interpreter(resources: Resources) -> list[str]:
    """The interpreter's words, such as `apptainer exec --nv image.sif python`."""
    return shlex.split(resources.python) if resources.python else [sys.executable]


def parameters(
    resources: Resources,
    jobs: Path,
    *,
    count: int = 1,
    throttle: int | None = None,
    dependency: str | None = None,
) -> dict[str, Any]:
    """submitit's parameters for an array of `count` runs, at most `throttle` at once.

    Args:
        jobs: folder of the submission: its name is the jobs' name, and their logs are in it.
    """
    extra = resources.sbatch_options
    if dependency is not None and dependency.startswith("afterok"):
        extra["kill-on-invalid-dep"] = "yes"  # else what waits for a failed job waits for ever
    together = min(resources.runs_per_gpu, count)
    given = {
        "job_name": jobs.name,
        "partition": resources.partition,
        "time": resources.timeout_min,
        "nodes": resources.nodes,
        "ntasks_per_node": tasks_per_node(resources),
        "cpus_per_task": resources.cpus * together,
        "gpus_per_node": None if resources.gres else resources.gpus or None,
        "gres": f"gpu:{resources.gpus}" if resources.gres and resources.gpus else None,
        "mem": None if resources.mem_gb is None else f"{round(resources.mem_gb * together * 1024)}M",
        "account": resources.account,
        "qos": resources.qos,
        "constraint": resources.constraint,
        "exclude": resources.exclude,
        "mail_user": resources.mail,
        "mail_type": resources.mail_type if resources.mail else None,
        "dependency": dependency,
        "signal_delay_s": signal_delay(resources.timeout_min),
        "array_parallelism": max(1, throttle // together) if throttle else -(-count // together),
        "map_count": -(-count // together),
        "stderr_to_stdout": True,
        "use_srun": False,  # job.sh calls it, so that its output joins the script's in one log
        "additional_parameters": {
            "output": f"{str(jobs).replace('%', '%%')}/%A_%a.log",
            # A site may default to NONE: then a job finds no environment, and srun no path.
            "export": "ALL",
            "requeue": True,
            **extra,
        },
    }
    # submitit's own wckey would be refused where wckeys are checked.
    return {**{key: value for key, value in given.items() if value is not None}, "wckey": None}
