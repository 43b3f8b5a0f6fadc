"""sdtps claims: recompute the verdicts of the ledger, print them, write them down."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import verbs
from analysis.claims.ledger import evaluate, ledger_of, load, studies_named
from analysis.claims.report import as_json, evidence, summary
from sdtps.system.commandline import add_json

if TYPE_CHECKING:
    from analysis.claims.ledger import Answer, Claim
    from analysis.runs.collect import Collected


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs.add_study_arguments(parser)
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="default: paper/claims.yaml")
    parser.add_argument(
        "--only",
        type=int,
        action="append",
        default=[],
        metavar="ID",
        help="this claim only; may be repeated",
    )
    add_json(parser)


def command(arguments: argparse.Namespace) -> int:
    """Recompute every verdict and print them.

    Raises:
        SdtpsError: a ledger or a study with mistakes.
    """
    claims = load(arguments.ledger or ledger_of(verbs.MAIN))
    if arguments.only:
        chosen = verbs.choose(list(map(str, arguments.only)), [str(c.id) for c in claims], "claim")
        claims = [c for c in claims if str(c.id) in chosen]
    answers = evaluate(claims, runs_behind(claims, arguments))
    if arguments.json:
        verbs.print_json(as_json(answers))
        return 0
    _show(answers, summary(answers))
    return 0


def runs_behind(claims: Sequence[Claim], arguments: argparse.Namespace) -> Collected:
    """The runs of the given studies, or of all that `claims` name and that have runs."""
    from analysis.runs.collect import collect

    studies = verbs.load(arguments, needs_runs=False)
    named = studies_named(claims)
    chosen = studies if arguments.studies else [s for s in studies if s.name in named]
    return collect(chosen, arguments.runs_dir)


def _show(answers: Sequence[Answer], summary: str) -> None:
    from rich.table import Table

    from analysis.claims.verdicts import WORDS

    colours = dict(zip(WORDS, ("green", "red", "yellow", "magenta", "dim"), strict=True))
    table = Table(box=None, pad_edge=False)
    for name in ("#", "claim", "verdict", "evidence"):
        table.add_column(name, overflow="fold")
    for a in answers:
        word = a.verdict.word
        cells = (str(a.claim.id), a.claim.claim, f"[{colours[word]}]{word}[/]", evidence(a))
        table.add_row(*(c if i == 2 else c.replace("[", r"\[") for i, c in enumerate(cells)))
    console = verbs.console()
    console.print(table)
    console.print(summary)
