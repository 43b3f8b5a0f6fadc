"""python -m analysis export: runs to TensorBoard's or CSV files."""

from __future__ import annotations

import argparse

from analysis import commands
from analysis.paper import export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands.add_study_arguments(parser)
    export.add_arguments(parser)


def command(arguments: argparse.Namespace) -> int:
    from analysis.runs.collect import collect

    studies, _ = commands.load(arguments)
    collected = collect(studies, arguments.runs_dir)
    for path in export.export(collected, arguments.format, arguments.output):
        print(path)
    return 0
