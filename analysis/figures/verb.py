"""sdtps curves: a study's figures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import verbs

if TYPE_CHECKING:
    from ablations.study.model import Study
    from analysis.runs.collect import Collected


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs.add_study_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("paper/generated/figures"), metavar="FOLDER")
    verbs.add_venue(parser, "sets the figures' widths and font")
    parser.add_argument(
        "--metric", action="append", default=[], help="draw this metric instead of declared figures"
    )


def command(arguments: argparse.Namespace) -> int:
    """Draw and print the files; 1 where a figure could not be drawn, after all others."""
    from ablations.study.schema import FigureSpec
    from analysis.figures.figure import figures, try_to_draw, write
    from analysis.runs.collect import collect

    studies = verbs.load(arguments)
    collected = collect(studies, arguments.runs_dir)
    for study in studies:
        _refuse_unlogged(collected, study, arguments.metric)
    marks = verbs.tell_mixed(collected, allow=verbs.CONTENTS)
    console = verbs.console()
    problems = 0
    for study in studies:
        specs = [
            FigureSpec(name=metric.replace("/", "-"), metric=metric) for metric in arguments.metric
        ]
        if specs:
            drawn = [try_to_draw(collected, study, spec, marks, arguments.venue) for spec in specs]
        else:
            drawn = figures(collected, study, marks, arguments.venue)
        for figure in drawn:
            for path in write(figure, arguments.out):
                console.print(str(path))
            if figure.problem:
                problems += 1
                console.print(f"{study.name}: {figure.problem}", style="red", markup=False)
    return 1 if problems else 0


def _refuse_unlogged(collected: Collected, study: Study, asked: Sequence[str]) -> None:
    """Raises SdtpsError for a curve of a metric that no run of a study with runs has logged."""
    known = {*collected.metrics_of(study.name, "train"), *collected.metrics_of(study.name, "eval")}
    # What our models log is checked with the manifest; what programs will log, once a run has ended.
    ended = any(run.state == "completed" for run in collected.runs_of(study.name))
    checked = study.figures if ended and not study.models() else ()
    declared = [spec.metric for spec in checked if spec.kind == "curves"]
    if known:
        verbs.choose(asked or declared, sorted(known), f"run of {study.name} logged")
