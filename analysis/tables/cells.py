"""A result as a cell: the only place where a row of the results frame becomes text.

Tables and the paper's macros take their numbers from here, so that they print the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.results import numbers
from analysis.results.frames import Result
from analysis.results.outcomes import Outcome
from analysis.tables.model import EMPTY, Cell

if TYPE_CHECKING:
    from ablations.study.schema import MetricSpec


def score_cell(
    result: Result, outcome: Outcome, metric: MetricSpec, *, count_imported: bool = False
) -> Cell:
    """Mean and spread of the finished seeds, with k/N where some are not; else their state.

    Args:
        count_imported: imported rows may be best, too (a table of nothing else).
    """
    if not result.values:
        if outcome.completed:
            return Cell("state", "--", note="not logged", metric=result.metric, runs=result.runs)
        return Cell("state", outcome.glyph(), metric=result.metric, runs=result.runs)
    return Cell(
        "number",
        numbers.printed(result.mean, metric),
        spread=None if math.isnan(result.sd) else numbers.printed(result.sd, metric),
        note=None if result.whole else f"{result.n}/{result.planned}",
        value=result.mean,
        metric=result.metric,
        runs=result.runs,
        seeds=tuple(result.values.items()),
        numeric=(
            *_in_unit(metric, mean=result.mean, sd=result.sd),
            ("n", result.n),
            ("planned", result.planned),
        ),
        eligible=result.whole and (count_imported or not result.imported),
    )


def mean_cell(result: Result, outcome: Outcome, metric: MetricSpec) -> Cell:
    """`score_cell` without the spread; the count of seeds stays."""
    return replace(score_cell(result, outcome, metric), spread=None)


def difference_cell(result: Result, metric: MetricSpec) -> Cell:
    """Mean difference to the baseline and its interval's half width.

    A star marks a significant one. Where seeds are missing, their count stands in its place.
    """
    if math.isnan(result.difference):
        return EMPTY
    half = None
    if not math.isnan(result.difference_low):
        half = numbers.printed((result.difference_high - result.difference_low) / 2, metric)
    note = "*" if result.starred else None
    if result.difference_n < result.difference_planned:
        note = f"{result.difference_n}/{result.difference_planned}"
    return Cell(
        "number",
        numbers.printed_signed(result.difference, metric),
        spread=half,
        note=note,
        signed=True,
        value=result.difference,
        metric=result.metric,
        runs=(*result.runs, *result.baseline_runs),
        seeds=tuple(result.differences.items()),
        numeric=(
            *_in_unit(
                metric,
                mean=result.difference,
                low=result.difference_low,
                high=result.difference_high,
            ),
            ("n", result.difference_n),
            ("planned", result.difference_planned),
            ("p", result.adjusted_p),
        ),
    )


def _in_unit(metric: MetricSpec, **values: float) -> Iterator[tuple[str, float]]:
    """Values in the unit that the metric is printed in; NaN where there is none."""
    for name, value in values.items():
        yield name, value if math.isnan(value) else float(numbers.in_unit(value, metric))
