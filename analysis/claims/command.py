"""sdtps claims: recompute the verdicts of the ledger, print them, write them down."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import commands
from analysis.claims.ledger import Answer, Claim, evaluate, load, studies_named
from analysis.claims.report import as_json, evidence, summary, write
from analysis.claims.verdicts import WORDS
from sdtps.commandline import add_runs_dir

if TYPE_CHECKING:
    from analysis.runs.collect import Collected

LEDGER = Path("paper/claims.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sdtps claims`."""
    parser.add_argument("--ledger", type=Path, default=LEDGER, help="default: %(default)s")
    parser.add_argument(
        "--study",
        type=Path,
        action="append",
        default=[],
        metavar="STUDY.yaml",
        help="read runs of these studies only; default: every study that a claim names",
    )
    parser.add_argument("--studies-dir", type=Path, default=Path("ablations"))
    add_runs_dir(parser)
    parser.add_argument("--only", type=int, action="append", metavar="ID", help="these claims only")
    parser.add_argument("--out", type=Path, default=Path("paper/generated"))
    parser.add_argument("--json", action="store_true", help="print JSON, write no file")


def command(arguments: argparse.Namespace) -> int:
    """Recompute every verdict; print them; write the three files (unless --only or --json).

    Raises:
        SdtpsError: a ledger or a study with mistakes.
    """
    claims = load(arguments.ledger)
    if arguments.only:
        chosen = commands.choose(list(map(str, arguments.only)), [str(c.id) for c in claims], "claim")
        claims = [c for c in claims if str(c.id) in chosen]
    collected = runs_behind(
        claims, arguments.study, studies_dir=arguments.studies_dir, runs_dir=arguments.runs_dir
    )
    answers = evaluate(claims, collected, on_claim=_progress(len(claims)))
    if arguments.json:
        print(json.dumps(as_json(answers), indent=2, ensure_ascii=False, allow_nan=False))
        return 0
    _show(answers)
    if not arguments.only:
        for path in write(answers, arguments.out):
            print(path)
    return 0


def runs_behind(
    claims: Sequence[Claim], studies: Sequence[Path], *, studies_dir: Path, runs_dir: Path
) -> Collected:
    """The runs of the given studies, or of all that `claims` name and `studies_dir` has."""
    from ablations.study.manifest import load_study
    from analysis.runs.collect import collect

    paths = list(studies) or [studies_dir / f"{name}.yaml" for name in studies_named(claims)]
    return collect([load_study(p) for p in paths if studies or p.exists()], runs_dir)


def _progress(total: int) -> Any:
    """A counter on stderr where that is a terminal: the checks take some seconds."""
    done = 0

    def step(claim: Claim) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\rclaim {claim.id} ({done}/{total})  ", end=end, file=sys.stderr, flush=True)

    return step


def _show(answers: Sequence[Answer]) -> None:
    from rich.table import Table

    colours = dict(zip(WORDS, ("green", "red", "yellow", "magenta", "dim"), strict=True))
    table = Table(box=None, pad_edge=False)
    for name in ("#", "claim", "verdict", "evidence"):
        table.add_column(name, overflow="fold")
    for a in answers:
        word = a.verdict.word
        cells = (str(a.claim.id), a.claim.claim, f"[{colours[word]}]{word}[/]", evidence(a))
        table.add_row(*(c if i == 2 else c.replace("[", r"\[") for i, c in enumerate(cells)))
    console = commands.console()
    console.print(table)
    console.print(summary(answers))
