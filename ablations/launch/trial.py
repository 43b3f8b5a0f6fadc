"""Tried before a study is queued: one run here, gradients at toy size, canaries on the cluster."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ablations.study.arguments import add_data_root, add_study, filtered, read_studies
from sdtps.system.commandline import add_runs_dir, add_variants, at_least
from sdtps.system.errors import RunError, SubmissionError
from sdtps.system.files import write_json

if TYPE_CHECKING:
    from ablations.launch.plan import Action
    from ablations.study.model import Study
    from sdtps.config import AnyConfig

STEPS = 3
MINUTES = 15  # at most, for each


# -- the verb `try` -------------------------------------------------------------------------------


def try_add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    parser.add_argument("run", metavar="RUN", help="VARIANT/seedK, VARIANT, or enough of the name")
    parser.add_argument("--max-steps", type=at_least(1), metavar="N", help="stop after N steps")
    add_data_root(parser)
    add_runs_dir(parser)


def try_command(arguments: argparse.Namespace) -> int:
    """Run in RUNS/_trials/..., whose earlier contents go; returns 0 unless it diverged (3)."""
    from ablations.study.arguments import find_run
    from sdtps.run.folder import RunFolder
    from sdtps.system.errors import counted
    from sdtps.training.attempt import execute

    run = find_run(arguments.run, read_studies(arguments))
    folder = RunFolder(run.folder(arguments.runs_dir.resolve() / "_trials"))
    shutil.rmtree(folder.path, ignore_errors=True)
    folder.create(
        run.config,
        {"study": run.study, "variant": run.variant, "seed": run.seed, "identity": run.identity},
    )
    steps = arguments.max_steps
    outcome = execute(folder.path, max_steps=steps)
    tried = f" after {counted(steps, 'step')}" if outcome == "requeued" and steps else ""
    print(f"{run.name}: {'stopped as asked' if tried else outcome}{tried}; see {folder.path}")
    return 3 if outcome == "diverged" else 0


# -- the verb `audit` -------------------------------------------------------------------------------


def audit_add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    add_variants(parser)
    parser.add_argument(
        "--steps", type=at_least(1), default=10, help="training steps before the second measurement"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to FILE")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there is a warning")


def audit_command(arguments: argparse.Namespace) -> int:
    """Print the findings; of retrieval also what leaks."""
    from rich.console import Console

    from ablations.study.manifest import load_study
    from sdtps.audit.audit import audit as examine
    from sdtps.audit.audit import show
    from sdtps.config import RetrievalConfig

    study = load_study(arguments.study)
    if study.baseline not in study.models():
        raise RunError(
            f"{study.path}: the baseline is another program: its gradients cannot be audited"
        )
    audited = examine(
        study.models(),
        study.baseline,
        study=study.name,
        labels={name: variant.label for name, variant in study.variants.items()},
        only=list(filtered(study, arguments.variant, []).variants) if arguments.variant else None,
        steps=arguments.steps,
    )
    for name in audited.examinations:
        config = study.variants[name].config
        if isinstance(config, RetrievalConfig):
            from sdtps.audit.leak import audit_leak, leak_findings

            audited.findings.extend(leak_findings(name, audit_leak(config)))
    show(audited, Console())
    if arguments.json is not None:
        write_json(arguments.json, audited.as_json())
    return 1 if arguments.strict and audited.warnings() else 0


# -- canaries: a few steps of each code path; the rest starts if they succeed ----------------------


def code_path(config: AnyConfig) -> str:
    """Equal for configurations that run the same code: choices count, numbers only by being there."""
    from sdtps.config import resolved
    from sdtps.config.identity import flatten

    parts = []
    for key, value in sorted(flatten(resolved(config)).items()):
        if isinstance(value, str) and value.startswith("subtract_"):
            value = "subtract"
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            value = "number"
        elif isinstance(value, list):
            value = "list"
        if not key.startswith("data.") or key == "data.dataset":
            parts.append(f"{key}={value}")
    return ";".join(parts)


def pick(actions: Sequence[Action]) -> list[Action]:
    """The first run of each code path."""
    first: dict[str, Action] = {}
    for action in actions:
        first.setdefault(code_path(action.run.config), action)
    return list(first.values())


def canaries(
    study: Study, actions: Sequence[Action], runs_dir: Path, *, executor: str, slots: int | None = None
) -> str | None:
    """Start canaries for `actions`, apart from their runs; returns what the rest has to wait for.

    On a cluster that is a dependency (`afterok:ID`): the terminal is free, and jobs whose canary failed
    never start. On local slots the canaries are worked through first, and None is returned.

    Raises:
        SubmissionError: the scheduler refused, or a local canary failed; its last log lines follow.
    """
    from ablations.launch.dispatch import submit
    from ablations.slurm import endings
    from ablations.store import attempts
    from ablations.store.states import CANARIES

    runs = []
    for action in pick(actions):
        given = action.run.resources
        short = {"timeout_min": min(MINUTES, given.timeout_min), "max_parallel": None}
        runs.append(replace(action.run, resources=given.model_copy(update=short)))
    store = runs_dir / CANARIES
    folders = [run.folder(store) for run in runs]
    report = submit(runs, store, executor=executor, slots=slots, over=folders, max_steps=STEPS)
    if executor != "local":
        return f"afterok:{':'.join(report.jobs)}" if report.jobs else None
    failed = [
        folder for folder in folders if report.outcomes.get(folder) not in ("passed", "completed")
    ]
    if failed:
        lines = [f"{len(failed)} of the canaries failed; the other runs were not started."]
        for folder in failed:
            lines.append(f"  {folder.relative_to(store)}:")
            tail = endings.tail(attempts.log_file(folder)).splitlines()[-3:]
            lines += [f"    {text}" for text in tail]
        lines.append("  Fix these, then submit again; running jobs are kept.")
        raise SubmissionError("\n".join(lines))
    return None
