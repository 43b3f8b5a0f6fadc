"""sdtps paper: everything that the paper inputs, the report, and the PDF."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import commands
from analysis.figures import VENUES

if TYPE_CHECKING:
    from analysis.runs.collect import Collected

MAIN = Path("paper/main.tex")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands.add_study_arguments(parser)
    commands.add_allowances(parser)
    parser.add_argument("--main", type=Path, default=MAIN, metavar="FILE.tex")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where all but the PDF goes, and then no PDF is made [generated/ beside the main file]",
    )
    parser.add_argument("--venue", choices=sorted(VENUES), default="iclr")
    parser.add_argument(
        "--no-evidence", action="store_true", help="leave claims and gradient audits as they are"
    )
    parser.add_argument("--no-report", action="store_true", help="leave report.html out")
    parser.add_argument("--no-pdf", action="store_true", help="stop before LaTeX")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def command(arguments: argparse.Namespace) -> int:
    """Build. What must not be averaged stops it before anything is written, unless allowed."""
    from analysis.paper import parts as evidence
    from analysis.paper.build import Options, build
    from analysis.paper.pdf import compile_pdf, complaints
    from analysis.runs.collect import collect
    from sdtps.errors import counted

    started = time.perf_counter()
    console = commands.console()
    say = (lambda _: None) if arguments.json else (lambda text: console.print(f"[dim]{text}[/]"))
    studies, others = commands.load(arguments)
    read_by_latex = arguments.main.parent / "generated"
    folder = arguments.out or read_by_latex
    elsewhere = folder.absolute() != read_by_latex.absolute()
    options = Options(arguments.venue, tuple(arguments.allow))
    say("reading runs")
    collected = collect(studies, arguments.runs_dir)
    built = build(studies, others, arguments.runs_dir, folder, options, say=say, collected=collected)
    if not arguments.no_evidence:
        evidence.update(folder, evidence.parts(studies, arguments.runs_dir), say)
    if not arguments.no_report:
        say("report.html")
        _report(collected, folder)
    pdf = None
    if elsewhere and not arguments.no_pdf:
        say(f"no PDF: {arguments.main} reads {read_by_latex}, not {folder}; it is made without --out")
    elif not arguments.no_pdf:
        say("LaTeX")
        pdf = compile_pdf(arguments.main)
        for complaint in complaints(arguments.main.with_suffix(".log")):
            console.print(complaint, style="yellow", markup=False)
    if arguments.json:
        print(
            json.dumps(
                {
                    "studies": [s.name for s in studies],
                    "tables": [t.name for t in built.tables],
                    "figures": built.figures,
                    "numbers": len(built.macros),
                    "marks": [mark.text for mark in built.marks],
                    "pdf": str(pdf) if pdf else None,
                    "seconds": round(time.perf_counter() - started, 1),
                },
                indent=1,
            )
        )
    else:
        made = (("table", built.tables), ("figure", built.figures), ("number", built.macros))
        console.print(
            ", ".join(counted(len(things), noun) for noun, things in made)
            + f" from {counted(len(collected.runs), 'run')}"
            + f" of {counted(len(studies), 'study', 'studies')}"
            + f"; {pdf or folder}"
        )
    return 0


def _report(collected: Collected, folder: Path) -> None:
    from analysis.report.command import write

    claims = folder / "claims.json"
    write(
        collected,
        folder / "report.html",
        claims=claims if claims.exists() else None,
        audits=sorted((folder / "audits").glob("*.json")),
    )
