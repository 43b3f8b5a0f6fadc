"""python -m analysis report: one self-contained file with tables, curves, claims and pictures."""

from __future__ import annotations

import argparse

from analysis import commands
from analysis.report import command as report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands.add_study_arguments(parser)
    report.add_arguments(parser)


def command(arguments: argparse.Namespace) -> int:
    from analysis.runs.collect import collect

    studies, _ = commands.load(arguments)
    return report.run(arguments, collect(studies, arguments.runs_dir))
