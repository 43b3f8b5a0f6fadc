"""Whether our runs reproduce a number that somebody reports.

A reported number is text: its digits say how exactly it was meant, and they are kept.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from analysis.results import numbers, stats

if TYPE_CHECKING:
    from ablations.study.schema import MetricSpec
    from analysis.results.frames import Result

# Verdicts and what they mean.
VERDICTS = {
    "match": "shown to differ by less than the tolerance (two one-sided tests at 5 %)",
    "ours is better": "the 95 % interval of the difference excludes 0",
    "ours is worse": "the 95 % interval of the difference excludes 0",
    "inconclusive": "neither is shown: too few seeds, too much spread, or no tolerance stated",
    "unit unclear": "one of the two seems to be in per cent and the other a fraction",
}


def verdict(
    reported: str,
    result: Result,
    metric: MetricSpec,
    *,
    tolerance: float | None = None,
    reported_n: int | None = None,
) -> str:
    """Judge a reported number against our seeds; one of `VERDICTS`, or `not run`.

    `match` has to be shown: |ours - reported| < `tolerance` (in the printed unit) by two one-sided
    tests. The reported mean is a draw of `reported_n` runs (1 where the source does not say), so the
    standard error is sd * sqrt(1/m + 1/n). At a true gap of exactly the tolerance, 5 % pass.
    """
    if not result.values:
        return "not run"
    values = [float(numbers.in_unit(value, metric)) for value in result.values.values()]
    target, m = float(Decimal(reported)), reported_n or 1
    if _a_hundredfold(target, values, metric.unit):
        return "unit unclear"
    if tolerance:
        same = stats.equivalence_to_mean(values, target, tolerance, reported_n=m)
        if isinstance(same, stats.Equivalence) and same.equivalent:
            return "match"
    difference = stats.difference_to_mean(values, target, reported_n=m)
    if isinstance(difference, stats.Refusal) or difference.interval is None:
        return "inconclusive"
    if difference.interval.low > 0 or difference.interval.high < 0:
        if metric.direction is None:
            return "inconclusive"
        better = (difference.mean > 0) == (metric.direction == "up")
        return "ours is better" if better else "ours is worse"
    return "inconclusive"


def gap(reported: str, result: Result, metric: MetricSpec) -> Decimal:
    """Ours minus reported in the printed unit, from unrounded values."""
    return numbers.in_unit(result.mean, metric) - Decimal(reported)


def _a_hundredfold(target: float, values: list[float], unit: str) -> bool:
    """Whether a fraction stands against per cent: `0.74` reported for 73.5 %, or 74 for 0.735."""
    ours = sum(values) / len(values)
    if unit == "%":
        return 0 < target <= 1 < ours
    return 0 < ours <= 1 < target <= 100 and 50 < target / ours < 200
