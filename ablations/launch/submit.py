"""The verbs `plan`, `submit` (`submit.py` too) and `retry`: from a manifest to submitted runs.

Read `submit` from top to bottom: check the manifest, look at what exists, plan, audit, dispatch.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablations.launch.budget import within_budget
from ablations.launch.plan import Plan, make_plan
from ablations.slurm import commands as slurm
from ablations.slurm.scheduler import Scheduler
from ablations.store import cancel, states
from ablations.store.equal import shown_states
from ablations.store.states import run_states
from ablations.study.arguments import (
    add_data_root,
    add_site,
    add_steering,
    filtered,
    find_run,
    next_command,
    print_json,
    read_studies,
    site_of,
)
from ablations.study.model import Study
from ablations.view.plan import plan_json, plan_text
from ablations.view.status import with_damage
from sdtps.system.commandline import at_least
from sdtps.system.errors import RunError, SubmissionError, counted, visible, visible_lines

PARTIAL = 5  # exit code: the cluster, or the budget, took a part of the runs
# What `retry --WORD` takes.
RETRIED = {
    "failed": "runs that failed (those out of memory only if mem_gb was raised)",
    "oom": "runs that ran out of memory, with twice the memory",
    "diverged": "runs that diverged, from the start",
    "cancelled": "runs that were cancelled",
    "unknown": "runs whose state is unknown; make sure first that they do not run",
    "stale": "runs made by older code, from the start",
    "held": "runs that SLURM holds (releases them)",
}

if TYPE_CHECKING:
    from ablations.slurm.executor import SubmitReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_steering(parser, more=True)
    add_retry_states(parser)
    add_sending(parser)


def add_retry_states(parser: argparse.ArgumentParser) -> None:
    """--retry, which may be repeated."""
    parser.add_argument(
        "--retry",
        action="append",
        choices=RETRIED,
        default=[],
        help="run these states again too; may be repeated",
    )


def add_sending(parser: argparse.ArgumentParser) -> None:
    """What every verb that starts runs takes besides."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only print the plan and the job script; write nothing",
    )
    parser.add_argument(
        "--executor",
        choices=("auto", "slurm", "local"),
        default="auto",
        help="SLURM jobs, or processes on this machine; auto: SLURM if it is set up [auto]",
    )
    parser.add_argument(
        "--slots", type=at_least(1), metavar="N", help="local runs at once [what GPUs or CPUs hold]"
    )
    add_data_root(parser)
    add_site(parser)
    parser.add_argument(
        "--canary",
        action="store_true",
        help="first try a few steps of each code path; the runs start only if all of them succeed",
    )
    parser.add_argument("--limit", type=at_least(1), metavar="N", help="start at most N runs now")
    parser.add_argument("--then", metavar="COMMAND", help="run this command when all runs have ended")
    parser.add_argument(
        "--cells",
        metavar="JSON",
        help="only the cells of an attribution, as sdtps attribute gives them",
    )
    parser.add_argument("--no-audit", action="store_true", help="do not audit gradients first")


def command(arguments: argparse.Namespace) -> int:
    return submit(arguments)


def retry_add_arguments(parser: argparse.ArgumentParser) -> None:
    add_steering(parser)
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="VARIANT/seedK, or enough of the name to be the only one",
    )
    for word, which in RETRIED.items():
        parser.add_argument(
            f"--{word}", dest="retry", action="append_const", const=word, default=[], help=which
        )
    add_sending(parser)


def retry_command(arguments: argparse.Namespace) -> int:
    """The verb `retry`. Raises RunError where neither runs nor states are named."""
    studies = read_studies(arguments)
    if not arguments.runs and not arguments.retry:
        options = ", ".join(f"--{word}" for word in RETRIED)
        status = next_command(arguments, studies[0], "status")
        raise RunError(f"retry what? Name runs, or give one of {options} (see: {status})")
    runs = tuple(find_run(text, studies).name for text in arguments.runs)
    return submit(arguments, runs, only_again=True)


def plan_add_arguments(parser: argparse.ArgumentParser) -> None:
    add_steering(parser, more=True)
    add_retry_states(parser)
    add_data_root(parser)
    add_site(parser)


def plan_command(arguments: argparse.Namespace) -> int:
    plans: list[Plan] = []
    for whole in read_studies(arguments):
        plan = plan_study(filtered(whole, arguments.variant, arguments.seed), arguments)
        plan = within_budget(plan, plans)
        if plan.study.models() or not plan.local:
            found = check_inputs(plan, here=False, data=False)
            plan = dataclasses.replace(plan, warnings=(*plan.warnings, *found))
        plans.append(plan)
    if arguments.json:
        print_json([plan_json(plan) for plan in plans])
    else:
        print("\n\n".join(map(plan_text, plans)))
    for plan in plans:  # a program that is not here cannot run here; weights may be had by then
        if plan.local and not plan.study.models():
            check_inputs(plan, here=True)
    return 0


def plan_study(
    study: Study,
    arguments: argparse.Namespace,
    retry_runs: tuple[str, ...] = (),
    executor: str | None = None,
) -> Plan:
    """What would be done now, against the run store and the scheduler, without a budget."""
    from sdtps.run.provenance import source_digest

    runs_dir = arguments.runs_dir.resolve()
    on_slurm = (executor or choose_executor("auto")) == "slurm"

    seen: dict[str, dict[str, str]] = {}

    def contents(config: Any) -> Mapping[str, str]:
        from sdtps.data.inputs import input_digests  # with NumPy: where there is something to compare

        return input_digests(config, seen)

    scheduler = Scheduler(runs_dir, patience_s=site_of(arguments).squeue_seconds)
    found = run_states(study.runs(), runs_dir, scheduler)
    statuses = [with_damage(status, runs_dir) for status in found]
    plan = make_plan(
        study,
        runs_dir,
        statuses,
        retry=getattr(arguments, "retry", ()),
        retry_runs=retry_runs,
        code=source_digest,
        contents=contents,
        max_array_size=slurm.max_array_size() if on_slurm else slurm.DEFAULT_MAX_ARRAY_SIZE,
    )
    return dataclasses.replace(plan, local=not on_slurm)


def submit(
    arguments: argparse.Namespace, retry_runs: tuple[str, ...] = (), *, only_again: bool = False
) -> int:
    """Submit what is missing of each study; returns the exit code.

    0: done. 1: local runs failed, or runs may run unseen. 5: the limit on jobs, or the budget,
    admitted only a part.

    Args:
        retry_runs: names of runs to run again, whatever ended them.
        only_again: leave out runs that were never submitted.

    Raises:
        SdtpsError: mistakes in a manifest (nothing is submitted then), a refused submission.
    """
    from ablations.slurm.executor import SubmitReport

    executor = choose_executor(arguments.executor)
    studies = read_studies(arguments)
    codes: list[int] = []
    documents: list[dict[str, Any]] = []
    sent: list[tuple[Plan, SubmitReport]] = []
    ahead: list[Plan] = []
    try:
        for whole in studies:
            study = filtered(whole, arguments.variant, arguments.seed)
            plan = plan_study(study, arguments, retry_runs, executor)
            plan = (plan.without_new() if only_again else plan).limited(arguments.limit)
            plan = within_budget(plan, ahead)
            ahead.append(plan if arguments.dry_run else plan.skipping(lambda _: "sent"))
            if arguments.dry_run:
                documents.append(preview(plan, arguments, executor))
                continue
            report = SubmitReport()
            sent.append((plan, report))
            send(plan, whole, arguments, executor, report)
            codes.append(ended(plan, arguments, report))
        if arguments.then and sent:
            codes.append(run_then(sent, arguments, executor))
    finally:
        documents += [as_json(plan, report) for plan, report in sent]
        if arguments.json and documents:
            print_json(documents)
    return max(codes, default=0)


def preview(plan: Plan, arguments: argparse.Namespace, executor: str) -> dict[str, Any]:
    """--dry-run: print the plan and what SLURM would be given (also where there is none)."""
    from ablations.launch.dispatch import render

    found = check_inputs(plan, here=False, deep=False)
    plan = dataclasses.replace(plan, warnings=(*plan.warnings, *found))
    texts = render(plan) if arguments.executor != "local" else []
    if not arguments.json:
        print(plan_text(plan))
        for number, text in enumerate(texts, start=1):
            print(
                f"\n--- sbatch file {number} of {len(texts)}; submission fills in NAME and DIGEST ---"
                f"\n{visible_lines(text.rstrip())}"
            )
    return {**plan_json(plan), "executor": executor, "sbatch": texts}


def send(
    plan: Plan, whole: Study, arguments: argparse.Namespace, executor: str, report: SubmitReport
) -> None:
    """Do what the plan says: release, take over, audit, submit.

    Args:
        whole: the study with its baseline.
        report: is filled as runs are submitted.
    """
    from ablations.launch import dispatch as jobs

    if not arguments.json:
        print(plan_text(plan))
    if plan.mixed:
        raise SubmissionError(
            "\n  ".join(
                [f"{whole.name}: would mix data or weights; nothing was submitted.", *plan.mixed]
            )
            + "\n  Give the study another name to keep these runs, or train them again: --retry stale"
        )
    if plan.of("release"):
        release(plan, arguments)
    if equal := plan.of("link"):
        made = jobs.take_over(equal)
        _say(f"Took over {counted(len(made), 'equal run')} instead of training again.")
    if plan.submitted:
        for warning in check_inputs(plan, here=executor == "local"):
            _say(f"Warning: {warning}.")
        seen = {a.run.variant for a in plan.actions if a.state != "planned" or a.start != "new"}
        new = {a.run.variant for a in plan.submitted} - seen
        if new and not arguments.no_audit:
            audit(whole, [v for v in plan.study.variants if v in new])
        dispatch(plan, arguments, executor, report)


def ended(plan: Plan, arguments: argparse.Namespace, report: SubmitReport) -> int:
    """The exit code of one study's submission; says what is left to see to."""
    failed = sum(how not in ("completed", "diverged") for how in report.outcomes.values())
    if failed:
        number = counted(failed, "run")
        _say(f"{number} did not complete: {next_command(arguments, plan.study, 'status')}")
        return 1
    if report.partial or plan.waiting:
        return PARTIAL
    unknown = [a.status for a in plan.of("skip") if a.state == "unknown"]
    for text in states.of_unknown(unknown):
        _say(text)
    return 1 if unknown and not plan.submitted else 0


def choose_executor(word: str) -> str:
    """`auto` is SLURM where it is set up, else local slots."""
    if word != "auto":
        return word
    return "slurm" if slurm.configured() else "local"


def release(plan: Plan, arguments: argparse.Namespace) -> None:
    """Let held jobs go.

    Raises:
        SubmissionError: the scheduler does not: its words, and what else can be done.
    """
    runs = [action.run for action in plan.of("release")]
    try:
        done = cancel.release(run_states(runs, plan.runs_dir), plan.runs_dir)
    except SubmissionError as error:
        raise SubmissionError(
            f"{error}\n  Cancel what stays held and submit it again:\n"
            f"    {next_command(arguments, plan.study, 'cancel', '--held', '--yes')}\n"
            f"    {next_command(arguments, plan.study, 'retry', '--cancelled')}"
        ) from None
    _say(f"Released {counted(len(done), 'held run')}.")


def check_inputs(plan: Plan, *, here: bool, deep: bool = True, data: bool = True) -> list[str]:
    """Warnings about data and weights that are not here or not whole: nodes may see other folders.

    Args:
        here: the runs are this machine's own, and start now.
        deep: whether weights are read to their end.
        data: whether data are looked at, too.

    Raises:
        SubmissionError: `here`, and they would all fail.
    """
    from sdtps.data.inputs import look_at

    looks = look_at([action.run.config for action in plan.submitted], deep=deep, data=data)
    unseen, wrong, known = (
        list(dict.fromkeys(text for look in looks for text in getattr(look, kind)))
        for kind in ("unseen", "mistakes", "warnings")
    )
    if here and (unseen or wrong):
        texts = [*(f"{text}." for text in unseen), *wrong]
        raise SubmissionError("\n".join([*texts, "The runs would all fail; nothing was started."]))
    found = [f"{text}; the cluster's nodes may have it: the jobs must see it" for text in unseen]
    for text in wrong:
        first, *more = text.split("\n")
        others = f" (and {counted(len(more), 'line')} more)" if more else ""
        found.append(f"{first}{others}; jobs that see the same folder will fail")
    return found + known


def audit(study: Study, names: list[str]) -> None:
    """The gradient audit of variants on tiny sizes; findings are warnings.

    Args:
        study: with the baseline among its variants.
    """
    configs = study.models()  # other programs have no gradients that we can look at
    names = [name for name in names if name in configs]
    if not names or study.baseline not in configs:
        return
    from sdtps.audit.audit import audit as examine
    from sdtps.audit.findings import grouped

    _say(
        f"Auditing the gradients of {counted(len(names), 'variant')} at toy size"
        " (--no-audit leaves it out) ..."
    )
    configs = {name: c for name, c in configs.items() if name in (study.baseline, *names)}
    found = examine(configs, study.baseline, study=study.name).warnings()
    for whose, finding in grouped(found):
        _say(f"Audit: {whose}: {finding.text}")


def dispatch(plan: Plan, arguments: argparse.Namespace, executor: str, report: SubmitReport) -> None:
    """Hand the plan's runs to the executor; local slots work through them before this returns.

    With --canary a few steps of each code path go first.
    """
    from ablations.launch.dispatch import submit as send_runs

    actions = plan.submitted
    after: str | None = None
    if arguments.canary:
        from ablations.launch import trial

        after = trial.canaries(
            plan.study, actions, plan.runs_dir, executor=executor, slots=arguments.slots
        )
        if after is not None and not arguments.json:
            print(f"Canaries are queued; the runs start if they succeed ({after}).")
    send_runs(
        [a.run for a in actions],
        plan.runs_dir,
        executor=executor,
        slots=arguments.slots,
        resume=[a.folder for a in actions if a.start == "resume"],
        over=[a.folder for a in actions if a.start == "over"],
        after=after,
        seen=plan.seen,
        contents=plan.contents,
        report=report,
    )
    if not arguments.json:
        jobs = f" (job {', '.join(report.jobs)})" if report.jobs else ""
        print(f"Submitted {len(report.submitted)} of {counted(len(actions), 'run')}{jobs}.")
        for folder, reason in report.skipped.items():
            print(f"  not submitted: {folder.relative_to(plan.runs_dir)}: {visible(reason)}")


def run_then(
    sent: Sequence[tuple[Plan, SubmitReport]], arguments: argparse.Namespace, executor: str
) -> int:
    """--then: a command that follows the runs, as a job that waits for theirs, or right now.

    Runs of earlier submissions are waited for too. Returns the exit code, 1 where that is not possible.
    """
    from ablations.launch import dispatch as sender

    study, runs_dir = sent[0][0].study, sent[0][0].runs_dir
    runs = [run for plan, _ in sent for run in plan.study.runs()]
    active = [one for one in shown_states(runs, runs_dir) if one.may_run]
    # On local slots a job id is a process id.
    elements = [one.job_id for one in active if one.active and one.job_id and "_" in one.job_id]
    arrays = {element.partition("_")[0] for element in elements}
    arrays |= {job for _, report in sent for job in report.jobs}
    if executor == "slurm" and len(elements) == len(active) and arrays:
        folder = sender.then(study, arguments.then, runs_dir, sorted(arrays, key=int))
        _say(f"When they have ended: {arguments.then} (its output: {folder})")
        return 0
    if active:
        word = ", ".join(sorted({one.state for one in active}))
        _say(
            f"--then was not run: {counted(len(active), 'run')} ({word}) cannot be waited for from"
            f" here. When they have ended: {arguments.then}"
        )
        return 1
    if "SDTPS_FOLLOWS" in os.environ:  # such a command itself: it would submit again and again
        return 0
    os.environ["SDTPS_FOLLOWS"] = "1"
    _say(f"No run is left to wait for; running now: {arguments.then}")
    return 1 if subprocess.run(["bash", "-c", arguments.then], check=False).returncode else 0


def as_json(plan: Plan, report: SubmitReport) -> dict[str, Any]:
    """What became of the plan, for scripts."""

    return {
        "jobs": report.jobs,
        "submitted": [str(f.relative_to(plan.runs_dir)) for f in report.submitted],
        "skipped": {str(f.relative_to(plan.runs_dir)): why for f, why in report.skipped.items()},
        "released": [action.run.name for action in plan.of("release")],
        "taken_over": [action.run.name for action in plan.of("link")],
    }


def _say(text: str) -> None:
    print(visible_lines(text), file=sys.stderr, flush=True)
