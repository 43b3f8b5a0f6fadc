"""python -m analysis curves: a study's figures, or a page of all that each variant logged."""

from __future__ import annotations

import argparse
from pathlib import Path

from analysis import commands
from analysis.venues import VENUES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands.add_study_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("paper/generated/figures"), metavar="FOLDER")
    parser.add_argument("--venue", choices=sorted(VENUES), default="iclr")
    parser.add_argument(
        "--metric", action="append", default=[], help="draw this metric instead of declared figures"
    )
    parser.add_argument("--variants", action="store_true", help="a page for each variant as well")


def command(arguments: argparse.Namespace) -> int:
    from ablations.spec import FigureSpec
    from analysis import figurefile
    from analysis.averaging import KINDS, refuse_to_average
    from analysis.collect import collect
    from analysis.curves import draw
    from analysis.variantpage import variant_page

    studies, _ = commands.load(arguments)
    collected = collect(studies, arguments.runs_dir)
    marks = refuse_to_average(collected, allow=KINDS)
    console = commands.console()
    for study in studies:
        specs = [
            FigureSpec(name=metric.replace("/", "-"), metric=metric) for metric in arguments.metric
        ]
        drawn = [
            draw(collected, study, spec, marks, arguments.venue) for spec in specs or study.figures
        ]
        if arguments.variants:
            drawn += [variant_page(collected, study, v, arguments.venue) for v in study.variants]
        for figure in drawn:
            for path in figurefile.write(figure, arguments.out):
                console.print(str(path))
    return 0
