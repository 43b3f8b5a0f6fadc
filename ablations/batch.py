"""The sbatch script of a job array, written through submitit.

submitit names, checks and formats every option; what is run differs from its habit. It would pickle the
function of each task and rename the pickles after sbatch has answered: a submitter killed in between
leaves jobs that wait for files that never come, a refused one leaves the files. Here a task gets one
path and finds its run by its array index, so that nothing is left to do once sbatch has answered.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from ablations import records
from ablations.spec import Resources
from ablations.submissions import Submission
from sdtps.errors import SubmissionError

# Told this long before the time limit: enough for a checkpoint. Short jobs get a quarter of their time.
SIGNAL_SECONDS = 90


def signal_delay(timeout_min: int) -> int:
    """Seconds before the time limit at which a job is told to write its checkpoint."""
    return min(SIGNAL_SECONDS, timeout_min * 60 // 4)


def tasks_per_node(resources: Resources) -> int:
    """One task drives one GPU; without GPUs one task a node."""
    return max(1, resources.gpus)


def script(
    submission: Submission,
    resources: Resources,
    count: int,
    throttle: int | None,
    snapshot: Path,
    *,
    dependency: str | None = None,
) -> str:
    """The text of the sbatch file for `count` runs, at most `throttle` at once.

    Raises:
        SubmissionError: `resources.sbatch` holds an option that this project sets itself.
    """
    import submitit

    class Executor(submitit.SlurmExecutor):
        """Renders only: a plan is made on machines without SLURM too."""

        @classmethod
        def affinity(cls) -> int:
            return 2

    executor = Executor(folder=submission.folder)
    executor.update_parameters(
        **_parameters(submission, resources, count, throttle, snapshot, dependency)
    )
    executor.parameters["map_count"] = count
    python = shlex.quote(resources.python or sys.executable)
    # -P: the working directory, which may hold newer code, is not imported from.
    worker = f"{python} -P -u -m ablations.worker {shlex.quote(str(submission.folder))}"
    # One process that fails ends the others, which would wait for it in a collective operation.
    command = f"srun --unbuffered --kill-on-bad-exit=1 {worker}"
    return str(executor._make_submission_file_text(command, submission.name))


# Options that decide which job is which; everything else may be given under resources.sbatch.
OURS = frozenset({"array", "job-name", "output", "error", "open-mode", "requeue", "no-requeue", "wrap"})


def _parameters(
    submission: Submission,
    resources: Resources,
    count: int,
    throttle: int | None,
    snapshot: Path,
    dependency: str | None,
) -> dict[str, Any]:
    extra = {key.lstrip("-").replace("_", "-"): value for key, value in resources.sbatch.items()}
    if taken := sorted(OURS & set(extra)):
        raise SubmissionError(
            f"resources.sbatch: {', '.join(taken)} cannot be set; each array's name, logs"
            " and requeueing are ours"
        )
    tasks = tasks_per_node(resources)
    parameters: dict[str, Any] = {
        "job_name": submission.name,
        "partition": resources.partition,
        "time": resources.timeout_min,
        "nodes": resources.nodes,
        "ntasks_per_node": tasks,
        "cpus_per_task": resources.cpus,
        "gpus_per_node": resources.gpus or None,
        "mem": None if resources.mem_gb is None else f"{round(resources.mem_gb * 1024)}M",
        "account": resources.account,
        "qos": resources.qos,
        "constraint": resources.constraint,
        "exclude": resources.exclude,
        "dependency": dependency,
        "signal_delay_s": signal_delay(resources.timeout_min),
        "array_parallelism": throttle or count,
        "stderr_to_stdout": True,
        "use_srun": False,  # it is in the command, so that its output joins the script's in one log
        "setup": _setup(submission, resources, snapshot),
        "teardown": _teardown(),
        "additional_parameters": {
            "output": f"{submission.folder}/%A_%a.log",
            # A site may default to NONE, and then a job finds neither its environment nor srun its
            # path.
            "export": "ALL",
            "requeue": True,
            **extra,
        },
    }
    given = {key: value for key, value in parameters.items() if value is not None}
    return {**given, "wckey": None}  # submitit's own would be refused where wckeys are checked


def _setup(submission: Submission, resources: Resources, snapshot: Path) -> list[str]:
    """Shell lines before the run: which run it is, that it still is ours, and that it began."""
    quoted = shlex.quote
    index = '"$((SLURM_ARRAY_TASK_ID + 1))p"'
    mark = '"$SUBMISSION ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID ${SLURM_RESTART_COUNT:-0}"'
    lines = [
        f"JOBS={quoted(str(submission.folder))}",
        f"SUBMISSION={quoted(submission.name)}",
        f'RUN=$(sed -n {index} "$JOBS/{submission.runs_file.name}")',
        # A run folder deleted meanwhile, or claimed by a later submission, is left alone.
        'grep -qsF "\\"$SUBMISSION\\"" "$RUN/claim.json" ||'
        f' {{ echo "$RUN: not claimed by $SUBMISSION any more"; exit {records.NOT_OURS}; }}',
        f"MARK={mark}",
        f"ATTEMPTS=$RUN/submitit/{records.ATTEMPTS}",
        'mkdir -p "$RUN/submitit"',
        "LOG=$JOBS/${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.log",
        f'ln -sfn "$LOG" "$RUN/submitit/{records.LOG}"',
        # What an earlier job of this run said last would be taken for this one's.
        'rm -f "$RUN/status.json"',
        "BOOT=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo -)",
        # A line that a full disk cut short would swallow this one.
        '[ -z "$(tail -c 1 "$ATTEMPTS" 2>/dev/null)" ] || echo >>"$ATTEMPTS"',
        'echo "start $MARK $(hostname -s) $$ $BOOT 0 $(date +%s)" >>"$ATTEMPTS"',
        'finish() { echo "end $MARK $1 $TERMINATED $(date +%s)" >>"$ATTEMPTS"; exit "$1"; }',
        # SLURM signals this shell as well: it must live to write down how the run ended.
        "TERMINATED=-; trap 'TERMINATED=TERM' TERM; trap : USR2",
    ]
    lines += [
        f"export PYTHONPATH={quoted(str(snapshot))}${{PYTHONPATH:+:$PYTHONPATH}} PYTHONUNBUFFERED=1",
        f"export SDTPS_SNAPSHOT={quoted(str(snapshot))}",
        # From 22.05 on srun does not inherit it, and a task would get one CPU.
        "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}",
        "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}",
    ]
    failed = f"finish {records.SETUP_FAILED}"
    lines += [
        f'{line} || {{ echo "resources.setup, exit $?: "{quoted(line)}; {failed}; }}'
        for line in resources.setup
    ]
    return lines


def _teardown() -> list[str]:
    return ['finish "$?"', ""]
