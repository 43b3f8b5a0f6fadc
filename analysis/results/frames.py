"""The `results` frame: every number of a study's results, computed once.

One row for each (variant, metric, epoch). Tables, macros, claims, figures and the report read it and
compute nothing of their own, so that one number is the same wherever it is printed. Values are in the
metric's own scale: fractions where its unit is %.

`judge` says whether a row reproduces a number that somebody reports. A reported number is
text: its digits say how exactly it was meant, and they are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from analysis.results import numbers, rounds, stats
from analysis.results.outcomes import Epoch, Outcome, outcomes

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import MetricSpec, TableSpec
    from analysis.runs.collect import Collected

EPOCHS: tuple[Epoch, ...] = ("last", "best")
STUDY = "study"  # the family of the differences that no table prints


@dataclass(frozen=True)
class Result:
    """One row of the frame: a metric of a variant at the last epoch, or at the selected one.

    Attributes:
        selected_on: the split that the best epoch was selected on; empty for the last epoch.
        n, planned: finished seeds that have the metric; planned seeds.
        sd: sample standard deviation (ddof 1). low, high: 95 % t interval of the mean.
        difference: mean difference to the baseline, with its own n, planned and 95 % interval; NaN for
            the baseline itself.
        paired: by seed; otherwise the seeds are somebody else's and the test is Welch's.
        adjusted_p: Holm's over the family, which counts differences without a p too.
        starred: the last epoch, all seeds there, and adjusted_p below 0.05.
        least_starred: the smallest difference that could have been, with this spread, n and family; NaN
            where nothing was tested, or seeds are not paired.
        unit: in which the metric's values were written, 0 where unknown (`stats.resolution`).
        family: the tables whose differences are tested together, or `study`.
        why: why there is no difference, interval or p.
        values: seed to value. differences: seed to difference, where paired.
        runs: folders below runs/ of all planned seeds. baseline_runs: those of the baseline.
    """

    study: str
    variant: str
    metric: str
    epoch: Epoch
    label: str
    imported: bool
    dataset: str
    selected_on: str
    n: int
    planned: int
    mean: float = math.nan
    sd: float = math.nan
    low: float = math.nan
    high: float = math.nan
    difference: float = math.nan
    difference_n: int = 0
    difference_planned: int = 0
    difference_low: float = math.nan
    difference_high: float = math.nan
    paired: bool = True
    p: float = math.nan
    adjusted_p: float = math.nan
    starred: bool = False
    least_starred: float = math.nan
    family: str = STUDY
    family_size: int = 0
    why: str = ""
    unit: float = 0.0
    values: Mapping[int, float] = field(default_factory=dict)
    differences: Mapping[int, float] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    baseline_runs: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Every planned seed has a value."""
        return self.n == self.planned > 0


class Results:
    """The results of one study: all rows, in the manifest's order, and single ones by `get`."""

    def __init__(self, study: Study, baseline: str, found: dict[str, Outcome], rows: list[Result]):
        self.study = study
        self.baseline = baseline
        self.outcomes = found
        self._rows = {(row.variant, row.metric, row.epoch): row for row in rows}

    def get(self, variant: str, metric: str, epoch: Epoch = "last") -> Result:
        """Raises KeyError for a variant or metric that the study does not have."""
        return self._rows[variant, metric, epoch]

    def __iter__(self) -> Iterator[Result]:
        return iter(self._rows.values())


def results(collected: Collected, study: Study, baseline: str | None = None) -> Results:
    """The results of `study`, with differences to `baseline` (default: the study's own).

    Computed once for each `collected`, and kept there.
    """
    baseline = baseline or study.baseline
    return collected.once(
        ("results", study.name, baseline),
        lambda: from_outcomes(study, baseline, outcomes(collected, study)),
    )


def differences_to(study: Study, spec: TableSpec) -> str | None:
    """The variant that a table prints differences to; None where it prints none."""
    if spec.kind == "reported":
        return None
    return spec.baseline or (study.baseline if spec.kind == "leave_one_out" else None)


def from_outcomes(study: Study, baseline: str, found: dict[str, Outcome]) -> Results:
    """The results of a study whose runs came to `found`."""
    places = [(outcome, epoch) for outcome in found.values() for epoch in EPOCHS]
    written = {m: [v for one, at in places for v in one.values(m, at).values()] for m in study.metrics}
    units = {metric: stats.resolution(values) for metric, values in written.items()}
    rows = [
        _result(outcome, found.get(baseline), metric, epoch, unit, study.rounds is not None)
        for outcome in found.values()
        for metric, unit in units.items()
        for epoch in EPOCHS
    ]
    return Results(study, baseline, found, _with_stars(study, baseline, found, rows))


def _result(
    outcome: Outcome, baseline: Outcome | None, metric: str, epoch: Epoch, unit: float, in_rounds: bool
) -> Result:
    """One row without what needs the whole family.

    Args:
        in_rounds: then the baseline has more seeds than a variant that is decided.
    """
    values = outcome.values(metric, epoch)
    s = stats.summary(list(values.values())) if values else stats.Summary()
    row = Result(
        study=outcome.study,
        variant=outcome.key,
        metric=metric,
        epoch=epoch,
        label=outcome.label,
        imported=outcome.imported,
        dataset=outcome.dataset,
        selected_on=outcome.selected_on if epoch == "best" else "",
        n=len(values),
        planned=outcome.planned,
        mean=s.mean,
        sd=s.sd,
        low=s.low,
        high=s.high,
        unit=unit,
        values=values,
        runs=tuple(run.where for run in outcome.runs),
    )
    if baseline is None or outcome.key == baseline.key:
        return row
    theirs = baseline.values(metric, epoch)
    if paired := not (outcome.imported or baseline.imported):
        d = stats.paired(values, theirs, unit)
        planned = len({run.seed for run in (*outcome.runs, *(() if in_rounds else baseline.runs))})
    else:
        d = stats.unpaired(list(values.values()), list(theirs.values()), unit)
        planned = min(outcome.planned, baseline.planned)
    return replace(
        row,
        paired=paired,
        difference=d.mean,
        difference_n=d.n,
        difference_planned=planned,
        difference_low=d.low,
        difference_high=d.high,
        differences=d.by_seed,
        p=d.p,
        why=d.why,
        baseline_runs=tuple(run.where for run in baseline.runs),
    )


def _with_stars(
    study: Study, baseline: str, found: dict[str, Outcome], rows: list[Result]
) -> list[Result]:
    """The rows with their families, adjusted p values and stars."""
    if study.rounds is not None and baseline == study.baseline:
        return _with_rounds(rounds.of_outcomes(study, found), rows)
    families = _families(study, baseline, rows)
    members: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if row.epoch == "last" and row.variant != baseline:
            members.setdefault(families[row.variant, row.metric], []).append(index)
    made = list(rows)
    for family, indices in members.items():
        p_values = [rows[i].p if _complete(rows[i]) else math.nan for i in indices]
        for index, adjusted in zip(indices, stats.holm(p_values), strict=True):
            made[index] = replace(
                rows[index],
                family=family,
                family_size=len(indices),
                adjusted_p=adjusted,
                starred=adjusted < stats.ALPHA,
                least_starred=_least_starred(rows[index], len(indices)),
            )
    return made


def _with_rounds(judged: rounds.Rounds, rows: list[Result]) -> list[Result]:
    """The rows of a study in rounds: the star and the p of the look that decided."""
    made = list(rows)
    for index, row in enumerate(rows):
        if row.epoch == "last" and (verdict := judged.verdicts.get((row.variant, row.metric))):
            made[index] = replace(
                row,
                family_size=verdict.family,
                adjusted_p=verdict.adjusted_p,
                starred=verdict.state == "starred",
            )
    return made


def _least_starred(row: Result, family: int) -> float:
    if not row.paired or math.isnan(row.difference_low) or not _complete(row):
        return math.nan
    half = (row.difference_high - row.difference_low) / 2
    return stats.least_starred(half, row.difference_n, family)


# What seeds say of a difference to the baseline, and what each word means.
STANDINGS = {
    "starred": "p < 0.05 after Holm's correction",
    "equivalent": "shown to be nearer to 0 than the margin (two one-sided tests at 5 %)",
    "open": "neither a difference nor equivalence is shown",
    "not tested": "a seed is missing, one seed alone, or equal differences",
}


def standing(row: Result, metric: MetricSpec, margin: float | None = None) -> str:
    """One of `STANDINGS`, for a difference at the last epoch.

    Args:
        margin: in the metric's printed unit; None: nothing counts as equivalent.
    """
    if row.starred:
        return "starred"
    if math.isnan(row.adjusted_p):
        return "not tested"
    if margin and row.paired:
        differences = [float(numbers.in_unit(d, metric)) for d in row.differences.values()]
        if stats.decide(differences, margin).holds:
            return "equivalent"
    return "open"


def _complete(row: Result) -> bool:
    """Whether no seed of the difference is lost: survivors alone would be starred too often."""
    whole = row.difference_n == row.difference_planned
    return whole if row.paired else whole and row.whole


def _families(study: Study, baseline: str, rows: list[Result]) -> dict[tuple[str, str], str]:
    """(variant, metric) to the family that its difference is tested in.

    The differences of one table are one family. Two tables that print the same difference share one, so
    that it has one p. Differences that no table prints, such as those of macros, are one family, too.
    """
    cells = list(dict.fromkeys((row.variant, row.metric) for row in rows if row.variant != baseline))
    groups: list[tuple[list[str], set[tuple[str, str]]]] = []
    for spec in study.tables:
        if differences_to(study, spec) != baseline:
            continue
        names, metrics = set(spec.rows), set(spec.metrics or study.metrics)
        group = {(v, m) for v, m in cells if (not names or v in names) and m in metrics}
        tables = [spec.name]
        for other in [g for g in groups if g[1] & group]:
            groups.remove(other)
            tables, group = [*other[0], *tables], other[1] | group
        groups.append((tables, group))
    family = dict.fromkeys(cells, STUDY)
    for tables, group in groups:
        family |= dict.fromkeys(group, " and ".join(tables))
    return family


# -- reported numbers ---------------------------------------------------------------------------


# Verdicts and what they mean. Ours is higher or lower.
REPORTED_VERDICTS = {
    "reproduced": "shown to differ by less than the tolerance (two one-sided tests at 5 %)",
    "higher": "ours; the 95 % interval of the difference excludes 0",
    "lower": "ours; the 95 % interval of the difference excludes 0",
    "cannot be told": "neither is shown: too few seeds, too much spread, digits too coarse for the "
    "tolerance, or no tolerance stated",
    "unit unclear": "one of the two seems to be in per cent and the other a fraction",
}


def judge(
    reported: str,
    result: Result,
    metric: MetricSpec,
    *,
    tolerance: float | None = None,
    n: int | None = None,
    sd: str | None = None,
) -> str:
    """Judge a reported number against our seeds; one of `REPORTED_VERDICTS`, or `not run`.

    A reported number is the interval of half a unit around its printed digits, and the mean of `n`
    runs (1 where the source does not say) with spread `sd`, text of its own digits (None: as ours).
    `reproduced` has to be shown; at a true gap of exactly the tolerance at most 5 % are called that.
    """
    if not result.values:
        return "not run"
    scale = 100.0 if metric.unit == "%" else 1.0
    values = [float(numbers.in_unit(value, metric)) for value in result.values.values()]
    target = float(reported)
    if _a_hundredfold(target, values, metric.unit):
        return "unit unclear"
    found = stats.gap_to_reported(
        *(values, target, numbers.half_unit(reported)),
        n=n or 1,
        sd=None if sd is None else float(sd) + numbers.half_unit(sd),
        unit=scale * result.unit,
    )
    if found and tolerance and found.within(tolerance):
        return "reproduced"
    if found and found.nonzero:
        return "higher" if found.mean > 0 else "lower"
    return "cannot be told"


def gap(reported: str, result: Result, metric: MetricSpec) -> Decimal:
    """Ours minus reported in the printed unit, from unrounded values."""
    return numbers.in_unit(result.mean, metric) - Decimal(reported)


def _a_hundredfold(target: float, values: list[float], unit: str) -> bool:
    """Whether a fraction stands against per cent: `0.74` reported for 73.5 %, or 74 for 0.735."""
    ours = sum(values) / len(values)
    if unit == "%":
        return 0 < target <= 1 < ours
    return 0 < ours <= 1 < target <= 100 and 50 < target / ours < 200
