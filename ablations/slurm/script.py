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

from ablations.store import attempts as records
from ablations.store.submissions import Submission
from ablations.study.schema import Resources

# Told this long before the time limit: enough for a checkpoint. Short jobs get a quarter of their time.
SIGNAL_SECONDS = 90


def signal_delay(timeout_min: int) -> int:
    """Seconds before the time limit at which a job is told to write its checkpoint."""
    return min(SIGNAL_SECONDS, timeout_min * 60 // 4)


def tasks_per_node(resources: Resources) -> int:
    """One task drives one GPU; without GPUs one task a node."""
    return max(1, resources.gpu_count)


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

    With resources.runs_per_gpu each array element is one task that starts its runs (`slurm.pack`).
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
    executor.parameters["map_count"] = -(-count // resources.runs_per_gpu)
    python = shlex.quote(resources.python or sys.executable)
    # -P: the working directory, which may hold newer code, is not imported from.
    module = "ablations.slurm.pack" if resources.runs_per_gpu > 1 else "ablations.slurm.worker"
    worker = f"{python} -P -u -m {module} {shlex.quote(str(submission.folder))}"
    # One process that fails ends the others, which would wait for it in a collective operation.
    # Not --unbuffered: it gives tasks a pseudo-terminal, and progress bars would be drawn into the log.
    command = f"srun --kill-on-bad-exit=1 {worker}"
    return str(executor._make_submission_file_text(command, submission.name))


def _parameters(
    submission: Submission,
    resources: Resources,
    count: int,
    throttle: int | None,
    snapshot: Path,
    dependency: str | None,
) -> dict[str, Any]:
    extra = {
        key.lstrip("-").replace("_", "-"): value
        for key, value in resources.sbatch.items()
        if value is not False  # an option without a value is there or not
    }
    tasks, together = tasks_per_node(resources), min(resources.runs_per_gpu, count)
    parallel = max(1, (throttle or count) // together)
    parameters: dict[str, Any] = {
        "job_name": submission.name,
        "partition": resources.partition,
        "time": resources.timeout_min,
        "nodes": resources.nodes,
        "ntasks_per_node": tasks,
        "cpus_per_task": resources.cpus * together,
        "gpus_per_node": resources.gpus or None,
        "mem": None if resources.mem_gb is None else f"{round(resources.mem_gb * together * 1024)}M",
        "account": resources.account,
        "qos": resources.qos,
        "constraint": resources.constraint,
        "exclude": resources.exclude,
        "dependency": dependency,
        "signal_delay_s": signal_delay(resources.timeout_min),
        "array_parallelism": parallel,
        "stderr_to_stdout": True,
        "use_srun": False,  # it is in the command, so that its output joins the script's in one log
        "setup": _setup(submission, resources, count, snapshot),
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


def _setup(submission: Submission, resources: Resources, count: int, snapshot: Path) -> list[str]:
    """Shell lines before the run: which run it is, that it still is ours, and that it began."""
    quoted = shlex.quote
    lines = [
        f"JOBS={quoted(str(submission.folder))}",
        f"SUBMISSION={quoted(submission.name)}",
        "JOB=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
        'MARK="$SUBMISSION $JOB ${SLURM_RESTART_COUNT:-0}"',
        "BOOT=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo -)",
        'START="start $MARK $(hostname -s) $$ $BOOT 0 $(date +%s)"',
        # SLURM signals this shell as well: it must live to write down how the run ended.
        "TERMINATED=-; trap 'TERMINATED=TERM' TERM; trap : USR2",
        # A line that a full disk cut short would swallow the next one.
        'begin() { [ -z "$(tail -c 1 "$ATTEMPTS" 2>/dev/null)" ] || echo >>"$ATTEMPTS";'
        ' echo "$START" >>"$ATTEMPTS"; }',
    ]
    lines += _of_several(submission, resources) if resources.runs_per_gpu > 1 else _of_one(submission)
    together = min(resources.runs_per_gpu, count)
    lines += [
        f"export PYTHONPATH={quoted(str(snapshot))}${{PYTHONPATH:+:$PYTHONPATH}} PYTHONUNBUFFERED=1",
        f"export SDTPS_SNAPSHOT={quoted(str(snapshot))}",
        # From 22.05 on srun does not inherit it, and a task would get one CPU.
        "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}",
        f"export OMP_NUM_THREADS=$((${{SLURM_CPUS_PER_TASK:-1}} / {together}))",
    ]
    failed = f"finish {records.SETUP_FAILED}"
    lines += [
        f'{line} || {{ echo "resources.setup, exit $?: "{quoted(line)}; {failed}; }}'
        for line in resources.setup
    ]
    return lines


def _of_one(submission: Submission) -> list[str]:
    """The element's run, and `finish`, which writes down its end."""
    index = '"$((SLURM_ARRAY_TASK_ID + 1))p"'
    return [
        f'RUN=$(sed -n {index} "$JOBS/{submission.runs_file.name}")',
        # A run folder deleted meanwhile, or claimed by a later submission, is left alone.
        'grep -qsF "\\"$SUBMISSION\\"" "$RUN/claim.json" ||'
        f' {{ echo "$RUN: not claimed by $SUBMISSION any more"; exit {records.NOT_OURS}; }}',
        f"ATTEMPTS=$RUN/submitit/{records.ATTEMPTS}",
        'mkdir -p "$RUN/submitit"',
        f'ln -sfn "$JOBS/$JOB.log" "$RUN/submitit/{records.LOG}"',
        # What an earlier job of this run said last would be taken for this one's.
        'rm -f "$RUN/status.json"',
        "begin",
        'finish() { echo "end $MARK $1 $TERMINATED $(date +%s)" >>"$ATTEMPTS"; exit "$1"; }',
    ]


def _of_several(submission: Submission, resources: Resources) -> list[str]:
    """`finish` for the runs of an element: the end of those that nobody could write down.

    Left out are runs that ended by themselves in an earlier job of this element.
    """
    together = resources.runs_per_gpu
    return [
        f"FIRST=$((SLURM_ARRAY_TASK_ID * {together} + 1)); LAST=$((FIRST + {together} - 1))",
        "finish() {",
        f'  sed -n "${{FIRST}},${{LAST}}p" "$JOBS/{submission.runs_file.name}" |'
        " while IFS= read -r RUN; do",
        '    grep -qsF "\\"$SUBMISSION\\"" "$RUN/claim.json" || continue',
        f"    ATTEMPTS=$RUN/submitit/{records.ATTEMPTS}",
        '    case $(grep -s "^end $SUBMISSION $JOB " "$ATTEMPTS" | tail -n 1) in',
        f'      "end $MARK "*) continue ;; "" | *" {records.INTERRUPTED} - "* | *" TERM "*) ;;'
        " *) continue ;;",
        "    esac",
        '    mkdir -p "$RUN/submitit"',
        '    grep -qs "^start $MARK " "$ATTEMPTS" || begin',
        '    echo "end $MARK $1 $TERMINATED $(date +%s)" >>"$ATTEMPTS"',
        '  done; exit "$1"',
        "}",
    ]


def _teardown() -> list[str]:
    return ['finish "$?"', ""]
