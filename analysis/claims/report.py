"""The ledger's verdicts as JSON and LaTeX, and as macros for the paper's sentences."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.claims.ledger import Answer, counts
from analysis.claims.verdicts import DECIDED
from analysis.tables.forms import write_if_changed
from analysis.tables.latex import TEMPLATES, Tex, environment, escape
from sdtps.system.errors import counted

SHOWN = 2  # measurements in a table's cell; the JSON holds all
KIND_TITLES = {
    "structure": "Structure and numbers",
    "gradient": "Gradients",
    "source": "Released code and documentation",
    "training": "Training",
    "reported": "Other people's logs",
    "own": "Our own counts and one hypothesis",
}


# -- words --------------------------------------------------------------------------------------


def evidence(answer: Answer) -> str:
    """What a table says beside the verdict: the reason, or the most telling measurements.

    Where statements failed they come first: they are why a claim is refuted or only partly right.
    """
    if answer.verdict.word == "not tested":
        return f"needs {answer.verdict.why}"
    ordered = sorted(answer.statements, key=lambda s: bool(s.holds))
    # Of runs the statement itself is told, too: it holds the margin.
    answers = {True: "yes", False: "no", None: "open"}
    measured = list(
        dict.fromkeys(
            f"{s.says}? {answers[s.holds]}: {s.measured}" if s.study else s.measured
            for s in ordered
            if s.measured
        )
    )
    text = "; ".join(measured[:SHOWN])
    if len(measured) > SHOWN:
        text += f"; {counted(len(measured) - SHOWN, 'more measurement')} in claims.json"
    if scopes := list(dict.fromkeys(s.scope for s in answer.statements if s.scope)):
        text += f" ({'; '.join(scopes)})"
    if answer.verdict.why:
        text = f"{answer.verdict.why} ({text})" if text else answer.verdict.why
    return text


def as_json(answers: Sequence[Answer]) -> dict[str, Any]:
    """Everything about every claim, ready for strict JSON."""
    claims = [
        {
            **a.claim.model_dump(include={"id", "claim", "source", "kind", "limits"}),
            "verdict": a.verdict.word,
            "why": a.verdict.why,
            "evidence": evidence(a),
            "sentence": a.sentence,
            "statements": [
                {**asdict(s), "numbers": {k: _strict(v) for k, v in s.numbers.items()}}
                for s in a.statements
            ],
            "runs": a.runs,
        }
        for a in answers
    ]
    decided = sum(a.verdict.decided for a in answers)
    return {"counts": counts(answers), "decided": decided, "claims": claims}


def _strict(value: float | int | str | None) -> float | int | str | None:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def summary(answers: Sequence[Answer]) -> str:
    """One line: how many of how many are decided, and how; what we counted ourselves stands apart."""
    own = [a for a in answers if a.claim.kind == "own"]
    found, ours = counts(a for a in answers if a not in own), counts(own)
    decided = sum(found[w] for w in DECIDED)
    parts = ", ".join(f"{n} {word}" for word, n in found.items() if n)
    text = f"{decided} of {counted(len(answers) - len(own), 'claim')} decided: {parts}"
    mine = ", ".join(f"{n} {word}" for word, n in ours.items() if n)
    return f"{text}; apart from them {counted(len(own), 'count')} of our own: {mine}" if own else text


def caption(answers: Sequence[Answer]) -> list[str]:
    """What the ledger's table shows, and what its abbreviations mean."""
    sentences = [f"The ledger of claims: {summary(answers)}."]
    if any(" / " in evidence(a) for a in answers):
        sentences.append("Numbers between slashes belong to the seeds of a study, in order.")
    if any("peak loss" in evidence(a) for a in answers):
        sentences.append(
            "Losses here are means over an epoch; the curves in figures are means over fewer steps, so "
            "their peaks can be higher."
        )
    return sentences


# -- files --------------------------------------------------------------------------------------


def as_latex(answers: Sequence[Answer]) -> str:
    """A whole longtable (booktabs, longtable, array): number, claim with source, verdict, evidence."""
    groups = {KIND_TITLES[kind]: list(group) for kind, group in _by_kind(answers)}
    values = {
        "summary": summary(answers),
        "caption": caption(answers),
        "groups": {
            title: [
                {
                    "id": a.claim.id,
                    "claim": Tex(_narrow(f"{a.claim.claim} ({a.claim.source})")),
                    "verdict": a.verdict.word,
                    "evidence": Tex(_narrow(evidence(a))),
                }
                for a in group
            ]
            for title, group in groups.items()
        },
    }
    return environment(TEMPLATES).get_template("claims.tex.j2").render(values)


def prose(text: str) -> str:
    """Text as LaTeX, with powers of ten and real minus signs."""
    return re.sub(r"(?<![\w.){-])-(?=\d)", r"$-$", powers(escape(text)))


def _narrow(text: str) -> str:
    """Prose in a narrow column: names of files may break behind an underscore."""
    return prose(text).replace(r"\_", r"\_\allowbreak{}")


def powers(tex: str) -> str:
    """1.2e+08 and 1e10 as powers of ten; a commit such as 6e09693 or a name with 1e10 in it stays."""
    number = r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]?\d{1,3})\b"

    def power(found: re.Match[str]) -> str:
        raised = rf"10^{{{int(found[2])}}}"
        return f"${raised}$" if found[1] == "1" else rf"{found[1]}$\times{raised}$"

    return re.sub(number, power, tex)


def _by_kind(answers: Sequence[Answer]) -> Iterable[tuple[str, list[Answer]]]:
    for kind in KIND_TITLES:
        group = [a for a in answers if a.claim.kind == kind]
        if group:
            yield kind, group


def as_macros(answers: Sequence[Answer]) -> str:
    r"""For each claim \claimdef{id}{text}{verdict}{evidence}{sentence}, and counts of verdicts."""
    lines = ["% from paper/claims.yaml; made by sdtps paper; do not edit"]
    for a in answers:
        text = prose(a.claim.claim.rstrip("."))
        verdict, found, says = escape(a.verdict.word), prose(evidence(a)), prose(a.sentence)
        lines.append(rf"\claimdef{{{a.claim.id}}}{{{text}}}{{{verdict}}}{{{found}}}{{{says}}}%")
    for prefix, ours in (("", False), ("own ", True)):
        these = [a for a in answers if (a.claim.kind == "own") is ours]
        tally = {"all": len(these), **counts(these)}
        lines += [rf"\claimcountdef{{{prefix}{word}}}{{{number}}}%" for word, number in tally.items()]
    return "\n".join(lines) + "\n"


def write(answers: Sequence[Answer], folder: Path) -> list[Path]:
    """claims.json, claims.tex and claims-numbers.tex; the same verdicts give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "claims.json": json.dumps(as_json(answers), indent=2, ensure_ascii=False) + "\n",
        "claims.tex": as_latex(answers),
        "claims-numbers.tex": as_macros(answers),
    }
    for name, content in contents.items():
        write_if_changed(folder / name, content.encode())
    return [folder / name for name in contents]
