"""sbatch: a job array is queued, or refused in the scheduler's own words, or nobody knows."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ablations.slurm.commands import environment
from ablations.study.schema import Resources

SECONDS = 180  # a busy controller may take its MessageTimeout several times

# After these words of sbatch nobody knows whether the controller took the job.
_UNCLEAR = re.compile(
    r"timed out|zero bytes|connection (reset|refused by peer|closed)|unexpected (message|eof)|"
    r"transport endpoint|communication|broken pipe|interrupted system call",
    re.IGNORECASE,
)
# What in the manifest to change, by what sbatch complains about. The first that matches is named.
_KEYS = (
    ("partition", "partition"),
    ("qos", "qos"),
    ("account", "account"),
    ("constraint|feature", "constraint"),
    ("gres|gpu|tres", "gpus"),
    ("memory", "mem_gb"),
    ("time limit", "timeout_min"),
    ("node count", "nodes"),
    ("cpu", "cpus"),
    ("array", "max_parallel"),
    ("node configuration", "gpus, resources.cpus, resources.mem_gb or resources.nodes"),
    ("unrecognized option|invalid option", "sbatch"),
)

# sbatch's ways to say that this user has, or this array would make, too many jobs at once.
_LIMITS = re.compile(
    r"MaxSubmit|AssocMax\w*Limit|QOSMax\w*(Submit|Job)\w*Limit|job submit limit|MaxJobCount|"
    r"Resource temporarily unavailable|too many jobs",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Answer:
    """sbatch's: exactly one of the three is set."""

    job_id: str | None = None
    refused: str | None = None
    unclear: str | None = None


def submit(script: Path, resources: Resources, working_directory: Path) -> Answer:
    """Ask sbatch to queue `script`."""
    command = ["sbatch", "--parsable", f"--chdir={working_directory}", str(script)]
    try:
        done = subprocess.run(
            command,
            env=environment(resources),
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(unclear=f"sbatch did not answer within {SECONDS} s")
    except OSError as error:
        return Answer(refused=f"sbatch cannot be run: {error.strerror}")
    words = (done.stderr.strip() or done.stdout.strip())[-2000:]
    # Only a line that is nothing but an id counts: a site's banner may say "job 12" as well.
    ids = re.findall(r"^(\d+)(?:;[\w.-]+)?$", done.stdout, re.MULTILINE)
    if done.returncode == 0 and len(ids) == 1:
        return Answer(job_id=ids[0])
    if done.returncode == 0 or ids or _UNCLEAR.search(words) or done.returncode < 0:
        return Answer(unclear=words or f"sbatch gave no job id (exit {done.returncode})")
    return Answer(refused=words or f"sbatch exited with {done.returncode} and said nothing")


def key_to_change(words: str) -> str | None:
    """The manifest's key behind sbatch's complaint, such as `resources.partition`."""
    for pattern, key in _KEYS:
        if re.search(pattern, words, re.IGNORECASE):
            return f"resources.{key}"
    return None


def is_limit(words: str) -> bool:
    """sbatch refused the number of jobs, not the jobs."""
    return _LIMITS.search(words) is not None
