r"""Every number of a study as a macro, so that prose cannot drift: \res{study}{variant}{key}.

Keys of a variant (its slug is the second argument; `name_part` of a metric's name stands for METRIC):
    METRIC, METRIC.best                    mean and spread over finished seeds, last and best epoch
    METRIC.mean, METRIC.best.mean          the mean alone, with k/N where seeds are missing
    METRIC.difference, METRIC.best.difference    to the baseline, with its interval's half width
    audit.PART                             of the gradient audit (`analysis.paper.audits`)
    runs, state                            2/3; completed, or what became of the others
The study itself is variant `*`: variants, seeds, runs, completed, diverged, failed, time, machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.results import numbers
from analysis.results.frames import EPOCHS, Results, results
from analysis.results.outcomes import Outcome, machines
from analysis.runs.collect import Collected
from analysis.tables.latex import Tex, escape, latex_cell
from analysis.tables.model import Cell, difference_cell, mean_cell, score_cell

if TYPE_CHECKING:
    from ablations.study.model import Study


_NOT_IN_A_NAME = re.compile(r"[^ -~]|[\\\\{}%#~^$&]")


def name_part(text: str) -> str:
    r"""`text` as one argument of \res: what TeX would read otherwise is given by its code point."""
    return _NOT_IN_A_NAME.sub(lambda found: f"U+{ord(found[0]):04X}", text)


@dataclass(frozen=True)
class Macro:
    """One number: its name, what LaTeX prints, the same as plain text, and the runs behind it."""

    study: str
    variant: str
    key: str
    tex: Tex
    text: str
    runs: tuple[str, ...] = ()
    seeds: tuple[tuple[int, float], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.study}/{self.variant}/{self.key}"

    @classmethod
    def of(cls, study: str, variant: str, key: str, cell: Cell) -> Macro:
        return cls(study, variant, key, latex_cell(cell), cell.plain, cell.runs, cell.seeds)


def macros(collected: Collected, study: Study) -> list[Macro]:
    """All macros of a study, in the manifest's order."""
    found = results(collected, study)
    made = list(_study(collected, study))
    for key, outcome in found.outcomes.items():
        if outcome.imported:
            continue
        slug = study.variants[outcome.variant].slug
        cells = {
            **_scores(found, key, outcome),
            "runs": Cell("text", f"{len(outcome.completed)}/{outcome.planned}"),
            "state": Cell("text", outcome.explanation() or "completed"),
        }
        made += [Macro.of(study.name, slug, name_part(name), cell) for name, cell in cells.items()]
    return made


def _scores(found: Results, key: str, outcome: Outcome) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for name, metric in found.study.metrics.items():
        for epoch in EPOCHS:
            start = name if epoch == "last" else f"{name}.best"
            result = found.get(key, name, epoch)
            cells[start] = score_cell(result, outcome, metric)
            cells[f"{start}.mean"] = mean_cell(result, outcome, metric)
            difference = difference_cell(result, metric)
            if difference.kind == "number":
                cells[f"{start}.difference"] = difference
    return cells


def _study(collected: Collected, study: Study) -> Iterable[Macro]:
    planned = [run for run in collected.runs_of(study.name) if run.planned]
    where = tuple(run.where for run in planned)
    spent = [run.machine_seconds for run in planned if run.machine_seconds is not None]
    values = {
        "title": study.title,
        "variants": str(len(study.variants)),
        "seeds": str(len(study.seeds)),
        "runs": str(len(planned)),
        **{
            state: str(sum(run.state == state for run in planned))
            for state in ("completed", "diverged", "failed")
        },
        "time": numbers.duration(sum(spent)) if spent else "no time",
        "machines": machines(planned),
    }
    for key, value in values.items():
        yield Macro(study.name, "*", key, escape(value), value, where)


def numbers_file(made: Sequence[Macro], origin: Sequence[str]) -> str:
    r"""numbers.tex: one \resdef a line."""
    lines = [f"% {line}" for line in origin]
    lines += [rf"\resdef{{{m.study}}}{{{m.variant}}}{{{m.key}}}{{{m.tex}}}%" for m in made]
    return "\n".join(lines) + "\n"
