"""What a plan asks for against what the cluster's partitions have: told before anything is queued."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from ablations.launch.plan import Plan
from ablations.slurm import commands as slurm
from ablations.study.schema import Resources
from sdtps.errors import did_you_mean

_ASK = ("sinfo", "-h", "-o", "%P|%l|%c|%m|%G|%D|%a")
_TIMEOUT_SECONDS = 20
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


def misfits(resources: Resources, nodes: list[Nodes], runs: int) -> list[str]:
    """Each thing that no node of the partition has, with the manifest's key; empty where it fits.

    Args:
        runs: of the array; fewer than resources.runs_per_gpu ask for less.
    """
    if not nodes:
        return []
    name = resources.partition
    wanted = set(name.split(",")) if name else None
    mine = [n for n in nodes if (n.partition in wanted if wanted else n.default)]
    if not mine:
        if wanted is None:
            return ["resources.partition: this cluster has no default partition; name one"]
        known = {n.partition for n in nodes}
        missing = sorted(wanted - known)
        return [f"resources.partition: no partition '{m}'. {did_you_mean(m, known)}" for m in missing]
    where = f"partition {name or mine[0].partition}"
    if not any(n.up for n in mine):
        return [f"resources.partition: {where} is down"]
    problems = []
    limits = [n.timeout_min for n in mine]
    if None not in limits and resources.timeout_min > max(m for m in limits if m is not None):
        most = max(m for m in limits if m is not None)
        problems.append(
            f"resources.timeout_min: {resources.timeout_min} is over the limit of {where}, {most}"
        )
    shared = min(resources.runs_per_gpu, runs)
    tasks = max(1, resources.gpu_count) * shared  # a task or several runs for each GPU
    each = "runs on one GPU" if shared > 1 else "GPUs"
    for key, asked, have in (
        ("cpus", resources.cpus * tasks, [n.cpus for n in mine]),
        ("mem_gb", (resources.mem_gb or 0) * shared, [n.mem_gb for n in mine]),
        ("gpus", resources.gpu_count, [n.gpus for n in mine]),
        ("nodes", resources.nodes, [sum(n.count for n in mine)]),
    ):
        known_values = [h for h in have if h is not None]
        if len(known_values) == len(have) and asked > max(known_values):
            times = ""
            if key == "cpus" and tasks > 1:
                times = f" ({resources.cpus} for each of {tasks} {each})"
            elif key == "mem_gb" and shared > 1:
                times = f" ({resources.mem_gb:g} for each of {shared} {each})"
            problems.append(
                f"resources.{key}: {asked:g}{times} is more than {where} has, {max(known_values):g}"
            )
    return problems


def check(plan: Plan) -> list[str]:
    """Warnings about runs that would wait for ever; none where SLURM is absent or does not answer."""
    if not plan.arrays or shutil.which("sinfo") is None:
        return []
    try:
        done = subprocess.run(
            _ASK,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            env=slurm.environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    nodes = nodes_of(done.stdout)
    texts = [text for array in plan.arrays for text in misfits(array.resources, nodes, len(array.runs))]
    return list(dict.fromkeys(texts))
