"""The verb `try`: one run on this machine before anything is queued, apart from the other runs."""

from __future__ import annotations

import argparse
import shutil

from ablations.study.arguments import add_data_root, add_study, read_whole
from sdtps.commandline import add_runs_dir, at_least


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    parser.add_argument("run", metavar="RUN", help="VARIANT/seedK, VARIANT, or enough of the name")
    parser.add_argument("--max-steps", type=at_least(1), metavar="N", help="stop after N steps")
    add_data_root(parser)
    add_runs_dir(parser)


def command(arguments: argparse.Namespace) -> int:
    """Run in RUNS/_trials/..., whose earlier contents go; returns 0 unless it diverged (3)."""
    from ablations.study.arguments import find_run
    from sdtps.errors import counted
    from sdtps.run.folder import RunFolder
    from sdtps.training.job import execute

    run = find_run(arguments.run, read_whole(arguments))
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
