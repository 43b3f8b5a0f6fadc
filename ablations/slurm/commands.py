"""What this project asks of SLURM besides sbatch: squeue, sacct, scancel, scontrol.

Each has its ways to fail; one that does not answer says nothing about any job.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ablations.study.schema import Resources

QUERY_SECONDS = 45
DEFAULT_MAX_ARRAY_SIZE = 1001

WAITING = frozenset(
    {
        *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"),
        "SPECIAL_EXIT",
        "PREEMPTED",  # squeue shows it while a preempted job is on its way back
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
# Its last start is still being cleared away, and then it will be held: released now, it is lost.
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
    """This process's environment without what a surrounding job would pass on to a new one.

    SLURM_CONF stays: it says which cluster. Of sbatch's own defaults (SBATCH_..., which beat the
    options written in the script) those stay that the manifest leaves open.
    """
    open_defaults = set()
    if resources is not None:
        wanted = {"ACCOUNT": resources.account, "PARTITION": resources.partition, "QOS": resources.qos}
        open_defaults = {f"SBATCH_{key}" for key, value in wanted.items() if value is None}
        open_defaults |= {"SBATCH_RESERVATION", "SBATCH_CLUSTERS"}
    if "SLURM_JOB_ID" in os.environ:  # inside a job they are that job's
        open_defaults = set()
    kept = {"SLURM_CONF", *open_defaults}
    prefixes = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SUBMITIT_", "PMI_", "PMIX_")
    names = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    return {
        key: value
        for key, value in os.environ.items()
        if key in kept or not (key.startswith(prefixes) or key in names)
    }


# -- questions ----------------------------------------------------------------------------------


class NoAnswer(Exception):
    """The scheduler did not answer. This says nothing about any job."""


_FIELDS = ("JobArrayID", "State", "RestartCnt", "exit_code", "NodeList", "Reason", "Name")


def configured() -> bool:
    """Whether SLURM is set up here: an sbatch, and a cluster that it knows of.

    A controller that does not answer still is a cluster (its runs must not start on this machine);
    client programs without any configuration are none.
    """
    if shutil.which("sbatch") is None:
        return False
    try:
        _ask(["scontrol", "ping"])
    except NoAnswer as answer:
        return "configuration source" not in str(answer)
    return True


def squeue(name: str | None = None) -> dict[str, JobInfo]:
    """Every job of this user that the scheduler still remembers (ended ones for MinJobAge), by id.

    Args:
        name: only jobs of this name.

    Raises:
        NoAnswer: squeue failed or timed out.
    """
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}"]
    command += [f"--name={name}"] if name else []
    command += ["--Format=" + ",".join(f"{field}:|" for field in _FIELDS)]
    jobs = {}
    for line in _ask(command).splitlines():
        parts = line.strip().split("|")
        if len(parts) < len(_FIELDS) or not re.fullmatch(r"\d+(_\d+)?", parts[0]):
            continue  # a banner, or a job that is no array element we could own
        job, state, restarts, status, node, reason, job_name = parts[: len(_FIELDS)]
        raw = int(status) if status.isdigit() else 0  # as wait(2) has it: code x 256 + signal
        jobs[job] = JobInfo(
            id=job,
            name=job_name,
            state=_word(state),
            reason="" if reason == "None" else reason,
            restarts=int(restarts) if restarts.isdigit() else 0,
            node=node,
            code=raw >> 8,
            signal=raw & 0x7F,
        )
    return jobs


def sacct(jobs: Collection[str]) -> dict[str, JobInfo]:
    """What accounting remembers of `jobs` (ids of whole arrays or elements), by element.

    Raises:
        NoAnswer: no accounting here, or it does not answer.
    """
    command = ["sacct", "-X", "-n", "-P", "-j", ",".join(sorted(jobs))]
    command += ["-o", "JobID,State,ExitCode,NodeList,JobName"]
    found = {}
    for line in _ask(command).splitlines():
        parts = line.strip().split("|")
        if len(parts) < 5 or not re.fullmatch(r"\d+(_\d+)?", parts[0]):
            continue
        job, state, exits, node, name = parts[:5]
        code, _, signal = exits.partition(":")
        found[job] = JobInfo(
            id=job,
            name=name,
            state=_word(state),
            node=node,
            code=int(code) if code.isdigit() else 0,
            signal=int(signal) if signal.isdigit() else 0,
        )
    return found


LOOKUP_PAUSES: Sequence[float] = (0, 3, 6, 12)


def find_array(name: str) -> str | None:
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
            jobs = squeue(name)
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


def max_array_size() -> int:
    """MaxArraySize of this cluster: array indices stay below it. SLURM's default if nobody answers."""
    try:
        match = re.search(
            r"^MaxArraySize\s*=\s*(\d+)", _ask(["scontrol", "show", "config"]), re.MULTILINE
        )
    except NoAnswer:
        match = None
    return max(2, int(match[1])) if match else DEFAULT_MAX_ARRAY_SIZE


def cancel(elements: Iterable[str], *, say: Callable[[str], None] = print) -> bool:
    """scancel exactly these array elements; False where it failed. Nothing to cancel asks nothing.

    scancel without ids but with a filter would take every job of the user, so it is never called so.
    """
    ids = [e for e in elements if re.fullmatch(r"\d+(_\d+)?", e)]
    done = True
    for start in range(0, len(ids), 200):  # well below the longest command line
        try:
            _ask(["scancel", *ids[start : start + 200]])
        except NoAnswer as error:
            say(str(error))
            done = False
    return done


def release(elements: Iterable[str]) -> list[str]:
    """Let held jobs start; what scontrol says of those that it does not release."""
    ids = [e for e in elements if re.fullmatch(r"\d+(_\d+)?", e)]
    problems = []
    for start in range(0, len(ids), 200):
        try:
            _ask(["scontrol", "release", ",".join(ids[start : start + 200])])
        except NoAnswer as error:
            problems.append(str(error))
    return problems


def _ask(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            env=environment(),
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=QUERY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} did not answer within {QUERY_SECONDS} s") from None
    except OSError as error:
        raise NoAnswer(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        raise NoAnswer(f"{command[0]}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def _word(state: str) -> str:
    """`CANCELLED by 1000` and `RUNNING+` as one word."""
    return state.split(" ")[0].rstrip("+").upper()
