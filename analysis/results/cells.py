"""Cells of a variant's metric: mean and spread of its finished seeds, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.results import numbers, stats
from analysis.results.outcomes import Epoch, Outcome
from analysis.tables.model import EMPTY, Cell

if TYPE_CHECKING:
    from ablations.study.schema import MetricSpec


def score_cell(
    row: Outcome, name: str, metric: MetricSpec, epoch: Epoch, *, count_imported: bool = False
) -> Cell:
    """Mean and spread of the finished seeds with k/N, or the state where there is none."""
    values = row.values(name, epoch)
    if not values:
        runs = tuple(run.where for run in row.runs)
        if row.completed:
            return Cell("state", "--", note="not logged", metric=name, runs=runs)
        return Cell("state", row.glyph(), metric=name, runs=runs)
    s = stats.summary(list(values.values()))
    whole = len(values) == row.planned
    return Cell(
        "number",
        numbers.printed(s.mean, metric),
        spread=None if s.sd is None else numbers.printed(s.sd, metric),
        note=None if whole else f"{len(values)}/{row.planned}",
        value=s.mean,
        metric=name,
        runs=tuple(run.where for run in row.runs),
        seeds=tuple(values.items()),
        eligible=whole and (count_imported or not row.imported),
    )


def difference_cell(
    row: Outcome,
    baseline: Outcome,
    name: str,
    metric: MetricSpec,
    epoch: Epoch,
    family: Sequence[Outcome],
) -> Cell:
    """Mean difference to the baseline by seed, its interval's half width, and a star if significant.

    `family` holds the rows that are tested together (Holm).
    """
    if row.variant == baseline.variant:
        return EMPTY
    difference = stats.paired(row.values(name, epoch), baseline.values(name, epoch))
    if isinstance(difference, stats.Refusal):
        return EMPTY
    tested = [stats.paired(r.values(name, epoch), baseline.values(name, epoch)) for r in family]
    p_values = [t.p if isinstance(t, stats.Paired) else None for t in tested]
    adjusted = stats.holm(p_values)[[r.variant for r in family].index(row.variant)]
    half = None
    if difference.interval is not None:
        half = numbers.printed((difference.interval.high - difference.interval.low) / 2, metric)
    return Cell(
        "number",
        numbers.printed_signed(difference.mean, metric),
        spread=half,
        note="*" if adjusted is not None and adjusted < stats.ALPHA else None,
        signed=True,
        value=difference.mean,
        metric=name,
        runs=tuple(run.where for run in (*row.completed, *baseline.completed)),
        seeds=tuple(
            (s, row.values(name, epoch)[s] - baseline.values(name, epoch)[s]) for s in difference.seeds
        ),
    )
