"""Per cents or fractions, where a log's format does not say: decided for all logs of a study together.

A failed run's 0.8 % looks like 80 % written as a fraction. So one log alone does not decide: a score
above 1 in any log of an import shows that all its logs write per cents, and where there is none, nobody
can tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from analysis.importers.columns import most_as_fraction
from analysis.importers.record import ImportedRun, LogError, fraction

Unit = Literal["percent", "fraction"]
UNITS: tuple[Unit, ...] = ("percent", "fraction")
_ACCURACIES = frozenset({"acc", "accuracy"})


def settle(studies: Mapping[str, Sequence[ImportedRun]], unit: Unit | None = None) -> None:
    """Turn scores of unknown unit into fractions, and note in each run how they were read.

    Args:
        studies: runs by study; those of one study are taken to be written by one program.
        unit: what the scores are, where somebody knows.

    Raises:
        LogError: nothing tells a study's unit, or `unit` cannot be; the text names the scores.
    """
    mistakes = []
    for study, runs in studies.items():
        for family in sorted({_family(name) for run in runs for name in run.open_units}):
            above = next(_above(runs, family), None)
            if unit == "fraction" and above is not None:
                run, name, value = above
                mistakes.append(
                    f"{study}: --unit fraction, but {run.source} has {name} {value:g}: "
                    "import logs that write per cents by themselves"
                )
            elif unit is None and above is None:
                mistakes.append(_nobody_can_tell(study, runs, family))
            else:
                _read(runs, family, unit, above)
    if mistakes:
        raise LogError("\n".join(mistakes))


def _family(name: str) -> str:
    """Columns that one program writes in one unit: ranks and mAP; accuracies."""
    return "accuracy" if name.split("/")[0].lower() in _ACCURACIES else "retrieval"


def _scores(run: ImportedRun, family: str) -> list[str]:
    return sorted(name for name in run.open_units if _family(name) == family)


def _above(runs: Sequence[ImportedRun], family: str) -> Iterator[tuple[ImportedRun, str, float]]:
    """Scores that no fraction reaches."""
    for run in runs:
        for name in _scores(run, family):
            values = [row[name] for row in run.rows if math.isfinite(row.get(name, math.nan))]
            if values and max(values) > most_as_fraction(name):
                yield run, name, max(values)


def _nobody_can_tell(study: str, runs: Sequence[ImportedRun], family: str) -> str:
    names = sorted({name for run in runs for name in _scores(run, family)})
    files = sorted({run.source.name for run in runs if _scores(run, family)})
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return (
        f"{study}: {', '.join(names)} of {', '.join(files[:3])}{more}: no value is above 1, so they "
        "may be fractions, or per cents of runs that learned nothing. Say which: --unit fraction or "
        "--unit percent"
    )


def _read(
    runs: Sequence[ImportedRun],
    family: str,
    unit: Unit | None,
    above: tuple[ImportedRun, str, float] | None,
) -> None:
    per_cent = unit == "percent" or above is not None
    why = " (--unit)" if unit is not None else ""
    for run in runs:
        names = _scores(run, family)
        if not names:
            continue
        own = next(_above([run], family), None) is not None
        if unit is None and above is not None and not own:
            why = f", as {above[0].source.name} writes them ({above[1]} {above[2]:g})"
        run.notes.append(
            f"read as {'per cent' if per_cent else 'fractions'}: {', '.join(names)}"
            f"{'' if own and unit is None else why}"
        )
        run.open_units -= set(names)
        if per_cent:
            for row in {id(row): row for row in (*run.rows, run.best or {}, run.final or {})}.values():
                for name in names:
                    if name in row:
                        row[name] = fraction(repr(row[name]))
