"""What must not be averaged over seeds: holes in a study, and runs of different code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import hints
from analysis.collect import Collected
from analysis.numbers import counted
from analysis.runstate import UNFINISHED
from sdtps.errors import AggregationError

if TYPE_CHECKING:
    import pandas as pd

    from ablations.study import Study


@dataclass(frozen=True)
class Mark:
    """Something that a reader of a table must know; `text` is plain, without the study's name."""

    study: str
    kind: str  # missing, mixed_code, dirty_code
    text: str
    runs: tuple[str, ...] = ()


def refuse_to_average(
    collected: Collected,
    *,
    allow_missing: bool = False,
    allow_mixed_code: bool = False,
    studies: Sequence[str] | None = None,
) -> list[Mark]:
    """What stands against averaging over seeds, as marks to be printed.

    A run that diverged or failed for good is a result and is shown as one; a run that is missing or
    unfinished is a hole.

    Raises:
        AggregationError: a seed is missing, or two code versions are mixed, and that is not allowed;
            the text names each run and the command that gets it.
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
            marks.append(Mark(study.name, "missing", text, tuple(holes["folder"])))
            if not allow_missing:
                complaints += _missing_text(study, collected.runs_dir, text, holes)
        done = runs[(runs["state"] == "completed") & ~runs["imported"] & runs["code"].notna()]
        versions = Counter(str(code) for code in done["code"])
        if len(versions) > 1:
            listed = ", ".join(
                f"{code[:10]} ({counted(n, 'run')})" for code, n in versions.most_common()
            )
            text = f"{len(versions)} code versions are mixed: {listed}"
            stale = done[done["code"] != versions.most_common(1)[0][0]]
            marks.append(Mark(study.name, "mixed_code", text, tuple(stale["folder"])))
            if not allow_mixed_code:
                complaints += _mixed_text(study, collected.runs_dir, text, stale)
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
        f"  Get them: {hints.submit(study.path, runs_dir)}    or go on without: --allow-missing",
    ]


def _mixed_text(study: Study, runs_dir: Path, text: str, stale: pd.DataFrame) -> list[str]:
    commits = sorted({str(c)[:10] for c in stale["commit"] if c})
    lines = [f"{study.name}: {text}. They may not be comparable."]
    for run in stale.to_dict("records"):
        lines.append(f"  {run['variant']} seed {run['seed']}: {run['folder']}")
    if commits:
        lines.append(f"  What changed: git diff --stat {commits[0]} HEAD -- sdtps")
    return [
        *lines,
        "  Delete these folders and run: "
        f"{hints.submit(study.path, runs_dir)}    or: --allow-mixed-code",
    ]
