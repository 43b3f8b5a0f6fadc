"""What a study's resources mean to SLURM: sbatch options, tasks, GPUs, and what nodes have."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.slurm import commands as slurm
from ablations.study.schema import Resources
from sdtps.system.errors import did_you_mean

# A job gets its signal so many seconds before its time limit: enough to write a checkpoint.
SIGNAL_SECONDS = 90


def signal_delay(timeout_min: int) -> int:
    """Seconds before the time limit at which a job is told to write its checkpoint."""
    return min(SIGNAL_SECONDS, timeout_min * 60 // 4)


def gpus_of_node(resources: Resources) -> int:
    """GPUs of one node, also where only resources.sbatch asks for them."""
    if resources.gpu_count:
        return resources.gpu_count
    given = {key: str(value) for key, value in _sbatch_options(resources).items()}
    parts = [part for part in given.get("gres", "").split(",") if re.match(r"gpu\b", part)]
    for key in ("gpus-per-node", "gpus", "gpus-per-task"):
        parts += given[key].split(",") if key in given else []
    counts = [re.split("[:=]", part)[-1] for part in parts]
    return sum(int(count) if count.isdigit() else 1 for count in counts)


def _sbatch_options(resources: Resources) -> dict[str, Any]:
    """resources.sbatch under sbatch's own names; an option without a value is there or not."""
    given = {key.lstrip("-").replace("_", "-"): value for key, value in resources.sbatch.items()}
    return {key: value for key, value in given.items() if value is not False}


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
    extra = _sbatch_options(resources)
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
        "array_parallelism": max(1, (throttle or count) // together),
        "map_count": -(-count // resources.runs_per_gpu),
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


# -- what the partitions have ------------------------------------------------------------------------

_SINFO_SECONDS = 20
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)")


@dataclass(frozen=True)
class Nodes:
    """One line of sinfo: nodes of a partition that are alike. None: no limit, or not known."""

    partition: str
    default: bool
    timeout_min: int | None
    cpus: int | None
    mem_gb: float | None
    gpus: int
    count: int
    up: bool


def nodes_of(text: str) -> list[Nodes]:
    """What sinfo printed; lines that are something else (a site's banner) are left out."""
    found = []
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) != 7 or not parts[5].isdigit():
            continue
        name, limit, cpus, memory, gres, count, available = parts
        megabytes = _number(memory)
        found.append(
            Nodes(
                partition=name.rstrip("*"),
                default=name.endswith("*"),
                timeout_min=_minutes(limit),
                cpus=_number(cpus),
                mem_gb=None if megabytes is None else megabytes / 1024,
                gpus=sum(int(n) for n in re.findall(r"gpu(?::[^:,(]+)?:(\d+)", gres)),
                count=int(count),
                up=available == "up",
            )
        )
    return found


def _number(text: str) -> int | None:
    """`8+` (8 or more, differing between nodes) counts as 8."""
    digits = text.rstrip("+")
    return int(digits) if digits.isdigit() else None


def _minutes(text: str) -> int | None:
    match = _TIME.fullmatch(text)
    if match is None:  # infinite, n/a
        return None
    days, hours, minutes = (int(match[k] or 0) for k in ("days", "hours", "minutes"))
    return (days * 24 + hours) * 60 + minutes


def misfits(resources: Resources, nodes: Sequence[Nodes], runs: int) -> list[str]:
    """Each thing that no node of the partition has, with the study's key; empty where it fits.

    Args:
        runs: of the array; fewer than resources.runs_per_gpu ask for less.
    """
    if not nodes:
        return []
    name = resources.partition or ",".join({n.partition for n in nodes if n.default})
    if not name:
        return ["resources.partition: this cluster has no default partition; name one"]
    mine = [n for n in nodes if n.partition in name.split(",")]
    if not mine:
        known = {n.partition for n in nodes}
        missing = sorted(set(name.split(",")))
        return [f"resources.partition: no partition '{m}'. {did_you_mean(m, known)}" for m in missing]
    if not any(n.up for n in mine):
        return [f"resources.partition: partition {name} is down"]
    problems = []
    gpus, shared = resources.gpu_count, min(resources.runs_per_gpu, runs)
    rows: tuple[tuple[str, float, int, list[Any]], ...] = (
        ("timeout_min", resources.timeout_min, 1, [n.timeout_min for n in mine]),
        # One task or run a GPU, or several, each with its CPUs.
        ("cpus", resources.cpus, max(1, gpus) * shared, [n.cpus for n in mine]),
        ("mem_gb", resources.mem_gb or 0, shared, [n.mem_gb for n in mine]),
        ("gpus", gpus, 1, [n.gpus for n in mine]),
        ("nodes", resources.nodes, 1, [sum(n.count for n in mine)]),
    )
    for key, each, times, limits in rows:
        if None not in limits and each * times > max(limits):
            product = f" ({each:g} for each of {times})" if times > 1 else ""
            problems.append(
                f"resources.{key}: {each * times:g}{product} is more than partition {name} gives, "
                f"{max(limits):g}"
            )
    return problems


def known_nodes(nodes: dict[str, int]) -> dict[str, int]:
    """Those of `nodes` that SLURM knows by this name; none where they are half of all nodes or more."""
    names = set(_sinfo("-N", "-o", "%N").split()) if nodes else set()
    known = {node: failed for node, failed in nodes.items() if node in names}
    return known if 2 * len(known) < len(names) else {}


def check(arrays: Iterable[tuple[Resources, int]]) -> list[str]:
    """Warnings about (resources, runs) that would wait for ever; none without an answer."""
    arrays = list(arrays)
    nodes = nodes_of(_sinfo("-o", "%P|%l|%c|%m|%G|%D|%a")) if arrays else []
    texts = [text for resources, runs in arrays for text in misfits(resources, nodes, runs)]
    return list(dict.fromkeys(texts))


def _sinfo(*words: str) -> str:
    """What sinfo prints; nothing without an answer."""
    try:
        return slurm.ask(["sinfo", "-h", *words], _SINFO_SECONDS)
    except slurm.NoAnswer:
        return ""
