"""Tried before a study is queued: one run here (the verb `try`), canaries on the cluster."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ablations.study.arguments import add_data_root, add_study, find_run, read_studies
from sdtps.system.commandline import add_runs_dir, at_least
from sdtps.system.errors import SubmissionError, counted

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
    from sdtps.run.folder import RunFolder
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
