"""The ledger's verdicts as macros, for sentences that quote a claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.claims.ledger import counts
from analysis.claims.report import evidence, prose
from analysis.tables.latex import escape
from analysis.tables.render import write_if_changed

if TYPE_CHECKING:
    from analysis.claims.ledger import Answer


def write_numbers(answers: Sequence[Answer], folder: Path) -> Path:
    r"""claims-numbers.tex: \claimdef{id}{text}{verdict}{evidence}, \claimcountdef{verdict}{number}."""
    lines = ["% from paper/claims.yaml; made by python -m analysis paper; do not edit"]
    for answer in answers:
        text, verdict = prose(answer.claim.claim.rstrip(".")), escape(answer.verdict.word)
        lines.append(
            rf"\claimdef{{{answer.claim.id}}}{{{text}}}{{{verdict}}}{{{prose(evidence(answer))}}}%"
        )
    tally = {"all": len(answers), **counts(answers)}
    lines += [rf"\claimcountdef{{{word}}}{{{number}}}%" for word, number in tally.items()]
    path = folder / "claims-numbers.tex"
    write_if_changed(path, ("\n".join(lines) + "\n").encode())
    return path
