"""What must not be averaged over seeds: holes in a study; runs of different code, data or weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.runs import hints
from analysis.runs.collect import Collected
from analysis.runs.mixing import Mixture, mixtures
from analysis.runs.state import UNFINISHED
from sdtps.errors import AggregationError

if TYPE_CHECKING:
    import pandas as pd

    from ablations.study.model import Study

# Kinds of marks, each with what the option that allows it does: `--allow-mixed-code` for `mixed_code`.
KINDS = {
    "missing": "go on without runs that are missing or unfinished, and say so in print",
    "mixed_code": "put runs of different code versions into one table, and say so in print",
    "mixed_data": "put runs on data that differ under one name into one table, and say so in print",
    "mixed_weights": "the same of runs from files of weights that differ under one name",
}


@dataclass(frozen=True)
class Mark:
    """Something that a reader of a table must know; `text` is plain, without the study's name.

    `runs` are the folders of the runs it is about, each with what is odd about it.
    """

    study: str
    kind: str  # one of KINDS
    text: str
    runs: dict[str, str]


def option(kind: str) -> str:
    """The option that allows a kind of mark."""
    return f"--allow-{kind.replace('_', '-')}"


def refuse_to_average(
    collected: Collected,
    *,
    allow: Collection[str] = (),
    studies: Sequence[str] | None = None,
) -> list[Mark]:
    """What stands against averaging over seeds, as marks to be printed.

    A run that diverged or failed for good is a result and is shown as one; a run that is missing or
    unfinished is a hole.

    Args:
        allow: of `KINDS`, what is marked and not refused.

    Raises:
        AggregationError: a seed is missing, or code, data or weights are mixed, and that is not
            allowed; the text names each run and the command that gets it.
    """
    marks: list[Mark] = []
    complaints: list[str] = []
    for study in collected.studies:
        if studies is not None and study.name not in studies:
            continue
        runs = collected.runs_of(study.name)
        holes = runs[runs["planned"] & runs["state"].isin(UNFINISHED)]
        if len(holes):
            text = (
                f"{len(runs[runs['planned']]) - len(holes)} of {int(runs['planned'].sum())} "
                "planned runs have ended"
            )
            odd = dict(zip(holes["folder"], holes["state"], strict=True))
            marks.append(Mark(study.name, "missing", text, odd))
            if "missing" not in allow:
                complaints += _missing_text(study, collected.runs_dir, text, holes)
        for mixture in mixtures(study, runs):
            marks.append(Mark(study.name, mixture.kind, mixture.text, mixture.odd))
            if mixture.kind not in allow:
                complaints += _mixed_text(study, collected.runs_dir, mixture, runs)
    if complaints:
        raise AggregationError("\n".join(complaints))
    return marks


def _missing_text(study: Study, runs_dir: Path, text: str, holes: pd.DataFrame) -> list[str]:
    lines = [f"{study.name}: {text}."]
    for run in holes.to_dict("records"):
        why = f" ({run['reason']})" if run["reason"] else ""
        lines.append(f"  {run['variant']} seed {run['seed']}: {run['state']}{why}")
    return [
        *lines,
        f"  Get them: {hints.submit(study.path, runs_dir)}    or go on without: {option('missing')}",
    ]


def _mixed_text(study: Study, runs_dir: Path, mixture: Mixture, runs: pd.DataFrame) -> list[str]:
    lines = [f"{study.name}: {mixture.text}. They may not be comparable."]
    stale = runs[runs["folder"].isin(mixture.odd)].to_dict("records")
    for run in stale:
        here = mixture.odd[run["folder"]]
        lines.append(f"  {run['variant']} seed {run['seed']}: {run['folder']} ({here})")
    commits = sorted({str(run["commit"])[:10] for run in stale if run["commit"]})
    if mixture.kind == "mixed_code" and commits:
        lines.append(f"  What changed: git diff --stat {commits[0]} HEAD -- sdtps")
    if mixture.kind == "mixed_data":
        lines.append("  Where each read its data is in its run.json (data.root).")
    if mixture.kind == "mixed_weights":
        lines.append("  Which files each began with is in its run.json (weights).")
    return [
        *lines,
        "  Delete these folders and run: "
        f"{hints.submit(study.path, runs_dir)}    or: {option(mixture.kind)}",
    ]
