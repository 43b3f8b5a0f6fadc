"""Every SLURM command that this project calls: sbatch, squeue, sacct, scancel, scontrol.

No answer is no information: a job is not lost because a command failed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ablations.study.schema import Resources
from sdtps.system.errors import SubmissionError

QUERY_SECONDS = 45.0
SUBMIT_SECONDS = 180  # a busy controller may take its MessageTimeout several times
SLOW_SECONDS = 4.0  # after which people are told what is waited for
DEFAULT_MAX_ARRAY_SIZE = 1001
_IDS_A_CALL = 200  # well below the longest command line

WAITING = frozenset(
    {
        *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"),
        "SPECIAL_EXIT",
    }
)
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
    }
)

# JobHeldAdmin, JobHeldUser, `job requeued in held state`, `launch failed requeued held` ...
_HELD = re.compile(r"JobHeld|(\b|_)held(\b|_)|special.exit", re.IGNORECASE)
# The last start is still being cleared away, and then the job is held: released now, it is lost.
_NOT_YET_HELD = frozenset({"REQUEUE_HOLD"})


@dataclass(frozen=True)
class JobInfo:
    """A job, or one element of a job array, as the scheduler sees it.

    Attributes:
        state: the scheduler's word without what follows it ("CANCELLED by 1000" is CANCELLED).
        code, signal: how the batch script ended.
        missed: the newest answer no longer named it.
    """

    id: str
    name: str
    state: str
    reason: str = ""
    restarts: int = 0
    node: str = ""
    code: int = 0
    signal: int = 0
    missed: bool = False

    @property
    def waiting(self) -> bool:
        return self.state in WAITING

    @property
    def held(self) -> bool:
        """It waits until somebody releases it: its restart failed, or it was held by hand."""
        if not self.waiting or self.state in _NOT_YET_HELD:
            return False
        return self.state == "RESV_DEL_HOLD" or _HELD.search(self.reason) is not None

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def environment(resources: Resources | None = None) -> dict[str, str]:
    """This process's environment without any variable that changes what SLURM's commands do.

    SQUEUE_PARTITION would filter our questions, SBATCH_WAIT block, SLURM_CLUSTERS ask elsewhere; and a
    surrounding job would pass its own settings on. SLURM_CONF stays: it says which cluster. For sbatch,
    defaults of account, partition, QOS and reservation stay where the study leaves them open.
    """
    kept = {"SLURM_CONF"}
    if resources is not None and "SLURM_JOB_ID" not in os.environ:  # inside a job they are that job's
        wanted = {"ACCOUNT": resources.account, "PARTITION": resources.partition, "QOS": resources.qos}
        kept |= {f"SBATCH_{key}" for key, value in wanted.items() if value is None}
        kept |= {"SBATCH_RESERVATION"}
    prefixes = (
        *("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "SQUEUE_", "SACCT_", "SCANCEL_"),
        *("SINFO_", "SCONTROL_", "SUBMITIT_", "PMI_", "PMIX_"),
    )
    names = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    return {
        key: value
        for key, value in os.environ.items()
        if key in kept or not (key.startswith(prefixes) or key in names)
    }


class NoAnswer(Exception):
    """The scheduler did not answer. This says nothing about any job."""


# -- which cluster ------------------------------------------------------------------------------


def configured() -> bool:
    """Whether SLURM is set up here: an sbatch, and a cluster that it knows of.

    A controller that does not answer still is a cluster (its runs must not start on this machine);
    client programs without any configuration are none.
    """
    if shutil.which("sbatch") is None:
        return False
    try:
        ask(["scontrol", "ping"])
    except NoAnswer as answer:
        return "configuration source" not in str(answer)
    return True


def max_array_size() -> int:
    """MaxArraySize of this cluster: array indices stay below it. SLURM's default without an answer."""
    found = _setting("MaxArraySize")
    return max(2, int(found)) if found.isdigit() else DEFAULT_MAX_ARRAY_SIZE


def cluster_name() -> str:
    """ClusterName of the cluster that commands here speak to; empty where it is unknown."""
    return _name_in_file(os.environ.get("SLURM_CONF", "")) or _setting("ClusterName")


def _elsewhere(cluster: str) -> list[str]:
    """The option that asks another cluster than the usual one."""
    return [] if cluster in ("", cluster_name()) else [f"--clusters={cluster}"]


@lru_cache(maxsize=4)
def _name_in_file(conf: str) -> str:
    for place in filter(None, (conf, "/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")):
        with contextlib.suppress(OSError):
            text = Path(place).read_text(errors="replace")
            if match := re.search(r"^\s*ClusterName\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE):
                return match[1]
    return ""


def _setting(name: str) -> str:
    """Of `scontrol show config`, asked until it answers once; empty where it does not."""
    try:
        return _config(os.environ.get("SLURM_CONF"), os.environ.get("PATH")).get(name, "")
    except NoAnswer:
        return ""


@lru_cache(maxsize=4)
def _config(conf: str | None, path: str | None) -> dict[str, str]:
    """The answer of one cluster: another SLURM_CONF or PATH may be another cluster."""
    text = ask(["scontrol", "show", "config"])
    return dict(re.findall(r"^(\w+)\s*=\s*(\S+)", text, re.MULTILINE))


# -- questions ----------------------------------------------------------------------------------

# What squeue and sacct call the fields of a job, in the order in which they are asked for.
_SQUEUE = ("JobArrayID", "State", "exit_code", "NodeList", "Name", "RestartCnt", "Reason")
_SACCT = ("JobID", "State", "ExitCode", "NodeList", "JobName")
_ELEMENT = re.compile(r"\d+(_\d+)?")


def squeue(
    jobs: Collection[str] = (),
    *,
    name: str | None = None,
    cluster: str = "",
    timeout_s: float = QUERY_SECONDS,
) -> dict[str, JobInfo]:
    """Jobs that the scheduler still remembers (ended ones for MinJobAge), of any user, by id.

    Args:
        jobs: ids of whole arrays; name: instead, the jobs of this name.
        cluster: which; empty: the one that commands here speak to.

    Raises:
        NoAnswer: squeue failed or timed out.
    """
    base = ["squeue", "--noheader", "--array", "--states=all"]
    base += [*_elsewhere(cluster), "--Format=" + ",".join(f"{field}:|" for field in _SQUEUE)]
    if name is not None:
        return _jobs(ask([*base, f"--name={name}"], timeout_s), len(_SQUEUE))
    found: dict[str, JobInfo] = {}
    for part in _parts(jobs):
        try:
            found |= _jobs(ask([*base, f"--jobs={','.join(part)}"], timeout_s), len(_SQUEUE))
        except NoAnswer as answer:
            if "Invalid job id" not in str(answer):  # said of a single job that is forgotten
                raise
    return found


def sacct(
    jobs: Collection[str], *, cluster: str = "", timeout_s: float = QUERY_SECONDS
) -> dict[str, JobInfo]:
    """What accounting remembers of `jobs` (ids of whole arrays or elements), by element.

    Raises:
        NoAnswer: no accounting here, or it does not answer.
    """
    command = ["sacct", "-X", "-n", "-P", "-a", "-j", ",".join(sorted(jobs)), "-o", ",".join(_SACCT)]
    command += _elsewhere(cluster)
    return _jobs(ask(command, timeout_s), len(_SACCT))


def _jobs(text: str, fields: int) -> dict[str, JobInfo]:
    """The rows of squeue or sacct, by job."""
    jobs = {}
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) < fields or not _ELEMENT.fullmatch(words[0]):
            continue  # a banner, or a job that is no array element we could own
        job, state, status, node, name, restarts, reason = (*words[:fields], "", "")[:7]
        code, colon, ended_by = status.partition(":")  # sacct's CODE:SIGNAL
        raw = _number(status)  # squeue's, as wait(2) has it: CODE x 256 + SIGNAL
        jobs[job] = JobInfo(
            id=job,
            name=name,
            state=state.split(" ")[0].rstrip("+").upper(),  # `CANCELLED by 1000` and `RUNNING+`
            reason="" if reason == "None" else reason,
            restarts=_number(restarts),
            node=node,
            code=_number(code) if colon else raw >> 8,
            signal=_number(ended_by) if colon else raw & 0x7F,
        )
    return jobs


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _parts(ids: Iterable[str]) -> Iterator[list[str]]:
    """The ids that are ids of jobs, in groups that one command line holds."""
    whole = sorted(job for job in ids if _ELEMENT.fullmatch(job))
    for start in range(0, len(whole), _IDS_A_CALL):
        yield whole[start : start + _IDS_A_CALL]


LOOKUP_PAUSES: Sequence[float] = (0, 3, 6, 12)


def find_array(name: str, cluster: str = "") -> str | None:
    """The id of the array called `name`, asked repeatedly: a controller's first answer may be empty.

    Returns:
        None where every answer was that there is no such job.

    Raises:
        NoAnswer: at least one question, the last one among them, was not answered.
    """
    failure: NoAnswer | None = None
    for pause in LOOKUP_PAUSES:
        time.sleep(pause)
        try:
            jobs = squeue(name=name, cluster=cluster)
        except NoAnswer as error:
            failure = error
            continue
        failure = None
        ids = {job.id.partition("_")[0] for job in jobs.values() if job.name == name}
        if ids:
            return min(ids, key=int)
    if failure is not None:
        raise failure
    return None


# -- changes ------------------------------------------------------------------------------------


def cancel(elements: Iterable[str], cluster: str = "") -> dict[str, str]:
    """scancel exactly these array elements; those that it refused, each with its words.

    scancel without ids but with a filter would take every job of the user, so it is never called so.
    """
    refused: dict[str, str] = {}
    for part in _parts(elements):
        try:
            ask(["scancel", *_elsewhere(cluster), *part])
        except NoAnswer as error:
            named = set(re.findall(r"\b\d+(?:_\d+)?\b", str(error)))
            refused |= dict.fromkeys([e for e in part if e in named] or part, str(error))
    return refused


def release(elements: Iterable[str]) -> list[str]:
    """Let held jobs start; what scontrol says of those that it does not release."""
    told = (_refusal(["scontrol", "release", ",".join(part)]) for part in _parts(elements))
    return [text for text in told if text is not None]


def requeue(job_id: str) -> str | None:
    """`scontrol requeue A_i` (the array's id would requeue every element); what it says if not."""
    return _refusal(["scontrol", "requeue", job_id])


def _refusal(command: list[str]) -> str | None:
    """What the command says if it fails."""
    try:
        ask(command)
    except NoAnswer as error:
        return str(error)
    return None


# -- sbatch -------------------------------------------------------------------------------------


class Refused(SubmissionError):
    """sbatch does not take the jobs: its words, and what to change."""


class TooMany(Refused):
    """The cluster does not take so many jobs of this user at once."""


# After these words of sbatch it is unclear whether the controller took the job.
_UNCLEAR = re.compile(
    r"timed out|zero bytes|connection (reset|refused by peer|closed)|unexpected (message|eof)|"
    r"transport endpoint|communication|broken pipe|interrupted system call",
    re.IGNORECASE,
)
# What in the study to change, by what sbatch complains about. The first that matches is named.
_KEYS = (
    ("invalid account", "account, or resources.partition (the account may not use it)"),
    (r"wall|timelimit|time limit[^s]", "timeout_min"),
    (r"(QOS|Assoc|Grp)\w*Cpu", "cpus"),
    (r"(QOS|Assoc|Grp)\w*Mem|memory", "mem_gb"),
    (r"(QOS|Assoc|Grp)\w*[gt]res|gres|gpu", "gpus"),
    (r"(QOS|Assoc|Grp)\w*Node|node count", "nodes"),
    ("node configuration", "gpus, resources.cpus, resources.mem_gb or resources.nodes"),
    ("partition", "partition"),
    ("qos", "qos"),
    ("account", "account"),
    ("constraint|feature", "constraint"),
    ("cpu", "cpus"),
    ("array", "max_parallel"),
    ("unrecognized option|invalid option", "sbatch"),
)
# sbatch's ways to say that this user has, or this array would make, too many jobs at once. Its general
# sentence ("job submit limit, user's size and/or time limits") stands under every refusal by a QOS.
_LIMITS = re.compile(
    r"(QOS|Assoc)(Max|Grp)Submit\w*|MaxJobCount|MaxSubmitJobs|"
    r"Resource temporarily unavailable|too many jobs",
    re.IGNORECASE,
)


def sbatch(script: Path, resources: Resources) -> tuple[str, str]:
    """Queue `script`, to run in this working directory.

    Returns:
        The job's id, and the cluster that sbatch named beside it (`17;cluster`); empty: the usual one.

    Raises:
        Refused: nothing was queued.
        NoAnswer: it is unclear whether it was.
    """
    command = ["sbatch", "--parsable", f"--chdir={Path.cwd()}", str(script)]
    try:
        done = _run(command, SUBMIT_SECONDS, resources)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"sbatch did not answer within {SUBMIT_SECONDS} s") from None
    except OSError as error:
        raise _refused(f"sbatch cannot be run: {error.strerror}") from None
    words = (done.stderr.strip() or done.stdout.strip())[-2000:]
    # Only a line that is nothing but an id counts: a site's banner may say "job 12" as well.
    ids = re.findall(r"^(\d+)(?:;([\w.-]+))?$", done.stdout, re.MULTILINE)
    if done.returncode == 0 and len(ids) == 1:
        job, cluster = ids[0]
        return job, cluster
    words = words or f"sbatch gave no job id (exit {done.returncode})"
    if done.returncode == 0 or ids or _UNCLEAR.search(words) or done.returncode < 0:
        raise NoAnswer(words)
    raise _refused(words)


def _refused(words: str) -> Refused:
    keys = (key for pattern, key in _KEYS if re.search(pattern, words, re.IGNORECASE))
    too_many = _LIMITS.search(words) is not None
    key = None if too_many else next(keys, None)
    hint = f"Change resources.{key} in the study or in the site file." if key else "Nothing was queued."
    quoted = "\n".join(f"  {line}" for line in words.splitlines())
    return (TooMany if too_many else Refused)(f"sbatch refused the array:\n{quoted}\n  {hint}")


def ask(command: list[str], timeout_s: float = QUERY_SECONDS) -> str:
    """What a command prints. Raises NoAnswer where it fails or takes longer."""
    try:
        done = _run(command, timeout_s)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} did not answer within {timeout_s:.0f} s") from None
    except OSError as error:
        raise NoAnswer(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        raise NoAnswer(f"{command[0]}: {(done.stderr or done.stdout).strip()[-20_000:]}")
    return done.stdout


def _run(
    command: list[str], timeout_s: float, resources: Resources | None = None
) -> subprocess.CompletedProcess[str]:
    text = f"Waiting for {command[0]}: SLURM has not answered yet."
    slow = threading.Timer(SLOW_SECONDS, print, [text], {"file": sys.stderr, "flush": True})
    slow.start()
    try:
        return subprocess.run(
            command,
            env=environment(resources),
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    finally:
        slow.cancel()
