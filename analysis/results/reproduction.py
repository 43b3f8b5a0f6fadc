"""Reported against reproduced: a number somebody printed, ours, and a verdict.

A reported number is text: its digits say how exactly it was meant, and they are kept. What third
parties got when they tried stands apart from what the authors report.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats as scipy_stats

from analysis.results import numbers, stats
from analysis.results.cells import score_cell
from analysis.results.outcomes import Epoch, Outcome, outcomes
from analysis.runs.averaging import Mark
from analysis.runs.collect import Collected
from analysis.tables import captions, leakmark
from analysis.tables.filenames import file_name
from analysis.tables.model import EMPTY, Cell, Column, Row, Table, text

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import MetricSpec, Reported, TableSpec

# With two seeds the interval is 12.7 standard errors wide each way: it would call anything reproduced.
SEEDS_FOR_A_SPREAD = 3


def verdict(
    reported: str,
    values: Sequence[float],
    metric: MetricSpec,
    *,
    tolerance: float | None = None,
) -> str:
    """Judge a reported number against the values of our seeds.

    In this order: equal at the reported precision is a match; inside `tolerance` (in the printed
    unit) is within tolerance; inside the 95 % prediction interval of one more seed of ours is within
    seed spread; otherwise ours is better or worse. A tolerance says what is near enough; it does not
    make seeds that scatter more widely tell what is not. One seed decides nothing; two decide only
    that a number is near enough.
    """
    n = len(values)
    if n == 0:
        return "not run"
    if n == 1:
        return "inconclusive"
    s = stats.summary(values)
    mean, target = numbers.in_unit(s.mean, metric), Decimal(reported)
    digits = numbers.decimals(reported)
    difference = mean - target
    if numbers.rounded(mean, digits) == numbers.rounded(target, digits):
        return "match"
    if tolerance is not None and abs(difference) <= Decimal(repr(tolerance)):
        return "within tolerance"
    if n < SEEDS_FOR_A_SPREAD:
        return "inconclusive"
    assert s.sd is not None
    half = numbers.in_unit(float(scipy_stats.t.ppf(0.975, n - 1) * s.sd * np.sqrt(1 + 1 / n)), metric)
    if abs(difference) <= half:
        return "within seed spread"
    better = (difference > 0) == (metric.direction == "up")
    return "ours is better" if better else "ours is worse"


def reported_table(
    collected: Collected, study: Study, spec: TableSpec, marks: Sequence[Mark] = ()
) -> Table:
    """A row for each reported number: authors, third parties, then methods that were not run."""
    found = outcomes(collected, study)
    metrics = spec.metrics or tuple(study.metrics)
    epoch: Epoch = "final" if spec.epoch == "final" else "best"
    entries = [r for r in study.reported if not spec.rows or r.variant in spec.rows]
    compared = [r for r in entries if r.variant is not None]
    groups = [
        ("Reported by the authors", [r for r in compared if r.by == "authors"]),
        ("Reproductions by third parties", [r for r in compared if r.by == "third party"]),
        ("Reported, not run here", [r for r in entries if r.variant is None]),
    ]
    rows: list[Row] = []
    for heading, members in groups:
        lines = [
            _row(entry, name, study, spec, found, epoch)
            for entry in members
            for name in entry.values
            if name in metrics
        ]
        if lines:
            rows.append(Row("", (), heading=heading, rule_before=bool(rows)))
            rows += lines
    used = [found[r.variant] for r in compared if r.variant in found]
    columns = (
        Column("subject", "Setting", align="l"),
        Column("source", "Source", align="l", width=0.22),
        Column("metric", "Metric", align="l"),
        Column("reported", "Reported"),
        Column("ours", "Ours"),
        Column("difference", "Δ", tex=r"$\Delta$"),
        Column("verdict", "Verdict", align="l"),
    )
    caption = (
        captions.sentence(spec.caption or spec.title or "Reported against reproduced"),
        "Reported numbers keep their printed digits.",
        captions.statistic(used) if used else "",
        captions.epochs(spec.model_copy(update={"epoch": epoch}), collected, study) if used else "",
        _legend(rows),
        *captions.warnings(marks, study.name),
    )
    return Table(
        name=file_name(study, spec.name),
        study=study.name,
        title=spec.title or "Reported against reproduced",
        columns=columns,
        rows=tuple(rows),
        caption=tuple(sentence for sentence in caption if sentence),
        notes=(
            *captions.notes(collected, study, used),
            *leakmark.note(study, spec, used),
            *([spec.notes] if spec.notes else []),
        ),
        origin=captions.origin(collected, study),
        marks=captions.warnings(marks, study.name),
    )


_APART = "outside the 95 % prediction interval of one further seed"
VERDICTS = {
    "match": "equal at the reported precision",
    "within tolerance": "at most the stated difference",
    "within seed spread": "inside the 95 % prediction interval of one further seed",
    "inconclusive": "too few seeds to say",
    "ours is better": _APART,
    "ours is worse": _APART,
}


def _legend(rows: Sequence[Row]) -> str:
    """What Δ and the verdicts of these rows mean."""
    cells = [row.cells[-2:] for row in rows if row.cells]
    said = {word.text for _, word in cells}
    words: dict[str, list[str]] = {}
    for word, meaning in VERDICTS.items():
        if word in said:
            words.setdefault(meaning, []).append(word)
    parts = [f"{' or '.join(same)}: {meaning}" for meaning, same in words.items()]
    if any(difference.kind == "number" for difference, _ in cells):
        parts.insert(0, "Δ: ours minus reported, from unrounded values")
    return f"{'; '.join(parts)}." if parts else ""


def _row(
    entry: Reported,
    name: str,
    study: Study,
    spec: TableSpec,
    found: dict[str, Outcome],
    epoch: Epoch,
) -> Row:
    metric = study.metrics[name]
    unit = f" ({metric.unit})" if metric.unit else ""
    outcome = found.get(entry.variant) if entry.variant else None
    subject = outcome.label if outcome else str(entry.method or entry.variant)
    if entry.dataset:
        subject += f", {entry.dataset}"
    setting = text(subject)
    if outcome is not None and leakmark.leaks(study, spec, outcome):
        setting = leakmark.marked(setting)
    said = [f"n = {entry.n}"] if entry.n else []
    if entry.tolerance is not None and outcome is not None:
        said.append(f"tolerance {entry.tolerance:g}")
    reported = Cell("text", entry.values[name], note=", ".join(said) or None, metric=name)
    ours, difference, word = EMPTY, EMPTY, EMPTY
    if outcome is not None:
        values = list(outcome.values(name, epoch).values())
        ours = score_cell(outcome, name, metric, epoch)
        judged = verdict(entry.values[name], values, metric, tolerance=entry.tolerance)
        state = outcome.glyph() if not values else judged
        word = Cell("text", judged if values or state == "--" else state, runs=ours.runs)
        if values:
            gap = numbers.in_unit(stats.summary(values).mean, metric) - Decimal(entry.values[name])
            digits = max(metric.digits, numbers.decimals(entry.values[name]))
            difference = Cell("number", numbers.signed(gap, digits), value=float(gap), runs=ours.runs)
    key = f"{entry.variant or entry.method}|{entry.source}|{name}"
    source = entry.source + (f"; {entry.note}" if entry.note else "")
    cells = (
        setting,
        text(source),
        text(f"{metric.label or name}{unit}"),
        reported,
        ours,
        difference,
        word,
    )
    return Row(key, cells)
