"""The ledger's verdicts as macros, for sentences that quote a claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.claim_report import evidence, powers
from analysis.latex import escape
from analysis.render import write_if_changed

if TYPE_CHECKING:
    from analysis.claims import Answer


def write_numbers(answers: Sequence[Answer], folder: Path) -> Path:
    r"""claims-numbers.tex: one \claimdef{id}{verdict}{evidence} a line."""
    lines = ["% from paper/claims.yaml; made by python -m analysis paper; do not edit"]
    for answer in answers:
        verdict, shown = escape(answer.verdict.word), powers(escape(evidence(answer)))
        lines.append(rf"\claimdef{{{answer.claim.id}}}{{{verdict}}}{{{shown}}}%")
    path = folder / "claims-numbers.tex"
    write_if_changed(path, ("\n".join(lines) + "\n").encode())
    return path
