"""sdtps paper: everything that the paper inputs, the report, and the PDF."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from analysis import verbs
from sdtps.system.commandline import add_json

SOURCES = ("main.tex", "macros.tex", "references.bib", "sections")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs.add_study_arguments(parser)
    verbs.add_allowances(parser)
    verbs.add_main(parser, "; for one of your own, only what it uses is built")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write everything but the PDF here, and make no PDF [generated/ beside the main file]",
    )
    verbs.add_venue(parser, "sets the figures' widths and font")
    parser.add_argument(
        "--bundle", type=Path, metavar="OUT.zip", help="also write an archive that compiles elsewhere"
    )
    parser.add_argument(
        "--no-evidence", action="store_true", help="leave claims and gradient audits out"
    )
    parser.add_argument("--no-report", action="store_true", help="leave report.html out")
    parser.add_argument("--no-pdf", action="store_true", help="stop before LaTeX")
    add_json(parser)


def command(arguments: argparse.Namespace) -> int:
    """Build. What must not be averaged stops it before anything is written, unless allowed."""
    from analysis.claims.ledger import ledger_of
    from analysis.paper.build import Options, build
    from analysis.paper.pdf import PaperError, bundle, compile_pdf, complaints, is_current, used
    from sdtps.system.errors import counted

    started = time.perf_counter()
    console = verbs.console()
    say = (lambda _: None) if arguments.json else (lambda text: console.print(f"[dim]{text}[/]"))
    studies = verbs.load(arguments)
    others = verbs.others(studies)
    main: Path = arguments.main
    if main == verbs.MAIN and not main.exists():
        say(f"copying this project's paper to {main.parent}/")
        copy_sources(main.parent)
    read_by_latex = main.parent / "generated"
    folder = arguments.out or read_by_latex
    elsewhere = folder.absolute() != read_by_latex.absolute()
    if arguments.bundle and (elsewhere or arguments.no_pdf):
        raise PaperError("--bundle needs the PDF: leave --out and --no-pdf out")
    options = Options(
        venue=arguments.venue,
        allow=tuple(arguments.allow),
        evidence=not arguments.no_evidence,
        report=not arguments.no_report,
        only=used(main),
    )
    built = build(studies, others, arguments.runs_dir, folder, options, say=say, ledger=ledger_of(main))
    pdf = None
    found: list[str] = []
    if elsewhere and not arguments.no_pdf:
        say(f"no PDF: {main} reads {read_by_latex}, not {folder}; it is made without --out")
    elif not arguments.no_pdf:
        if not is_current(main):
            say("LaTeX")
            compile_pdf(main)
        pdf = main.with_suffix(".pdf")
        found = complaints(main)
        for complaint in [] if arguments.json else found:
            console.print(complaint, style="yellow", markup=False)
    archived = bundle(main, arguments.bundle) if arguments.bundle else []
    if arguments.json:
        told = {
            "studies": [study.name for study in studies],
            "tables": sorted(table.name for table in built.tables),
            "figures": sorted(built.figures),
            "numbers": len(built.macros),
            "complaints": found,
            "bundle": archived,
            "faults": sorted(built.problems),
            "pdf": str(pdf) if pdf else None,
            "seconds": round(time.perf_counter() - started, 1),
        }
        verbs.print_json(told)
        return 1 if built.problems else 0
    made = (
        counted(len(built.tables), "table"),
        counted(len(built.figures), "figure"),
        counted(len(built.macros), "number"),
    )
    of = counted(len(studies), "study", "studies")
    console.print(f"{', '.join(made)} of {of}; {pdf or folder}")
    if archived:
        console.print(f"{arguments.bundle}: {len(archived)} files")
    for problem in built.problems:
        console.print(problem, style="red", markup=False)
    return 1 if built.problems else 0


def copy_sources(folder: Path) -> None:
    """This project's paper, for an installed copy that is used from another folder."""
    from sdtps.run.locations import shipped

    folder.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        source, target = shipped("paper") / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif not target.exists():
            shutil.copy(source, target)
