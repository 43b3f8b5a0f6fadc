"""What a study's results show, in a few sentences composed from the results frame, whatever they show.

They are about the first metric. The forest plot beside them shows every difference to the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.results import numbers
from analysis.results.frames import STANDINGS, Result, Results, standing
from sdtps.system.errors import counted

if TYPE_CHECKING:
    from ablations.study.schema import MetricSpec

NAMED = 4  # significant differences that a sentence names


def findings(found: Results, margin: float | None = None) -> list[str]:
    """The best variant, what can be told from the baseline, what could be, and what did not finish.

    Args:
        margin: see `analysis.results.frames.standing`.
    """
    rows = _rows(found)
    if sum(row.n > 0 for row in rows) < 2:
        sentences = ["Fewer than two variants have finished runs, so there is nothing to compare."]
    else:
        sentences = [_best(found, rows), _told_apart(found, rows, margin), _power(found, rows)]
    return [sentence for sentence in sentences if sentence] + _unfinished(found)


def _rows(found: Results) -> list[Result]:
    """The manifest's variants by the first metric at the last epoch."""
    metric = next(iter(found.study.metrics))
    return [found.get(name, metric) for name in found.study.variants if name in found.outcomes]


def _metric(found: Results) -> MetricSpec:
    return next(iter(found.study.metrics.values()))


def _best(found: Results, rows: Sequence[Result]) -> str:
    metric = _metric(found)
    up = metric.direction != "down"
    whole = sorted((row for row in rows if row.whole), key=lambda row: row.mean, reverse=up)
    if not whole:
        return ""
    top = _score(whole[0], metric)
    equal = [row for row in whole if _score(row, metric) == top]
    names = [
        f"the baseline, {_name(row)}," if row.variant == found.baseline else _name(row) for row in equal
    ]
    text = f"By {metric.label or rows[0].metric} at the last epoch, {_listed(names)} "
    text += f"{_are(len(equal))} best with {top}"
    baseline = next(row for row in rows if row.variant == found.baseline)
    if baseline.n and baseline not in equal:
        text += f"; the baseline, {_name(baseline)}, has {_score(baseline, metric)}"
    return f"{text}."


def _told_apart(found: Results, rows: Sequence[Result], margin: float | None) -> str:
    """How many differences to the baseline are significant, equivalent, open and not tested."""
    metric = _metric(found)
    others = [row for row in rows if row.variant != found.baseline]
    groups: dict[str, list[Result]] = {word: [] for word in STANDINGS}
    for row in others:
        groups[standing(row, metric, margin)].append(row)
    starred = sorted(groups["starred"], key=lambda row: abs(row.difference), reverse=True)
    family = max((row.family_size for row in others), default=0)
    text = f"Of {counted(len(others), 'difference')} to the baseline {len(starred) or 'none'} "
    text += f"{_are(len(starred) or 1)} significant after Holm's correction over {family}"
    if starred:
        more = f" and {len(starred) - NAMED} more" if len(starred) > NAMED else ""
        text += f" ({'; '.join(_difference(row, metric) for row in starred[:NAMED])}{more})"
    rest = [
        f"{len(members)} {_are(len(members))} {word}"
        for word, members in groups.items()
        if members and word != "starred"
    ]
    return f"{text}; {_listed(rest)}." if rest else f"{text}."


def _power(found: Results, rows: Sequence[Result]) -> str:
    """The smallest difference that could have been significant with these seeds."""
    tested = [row for row in rows if not math.isnan(row.least_starred)]
    if not tested:
        return ""
    metric = _metric(found)
    seeds = counted(max(row.difference_n for row in tested), "seed")
    widest = 1.0 if metric.unit == "%" else math.inf  # no difference of percentages is larger
    within = sorted(row.least_starred for row in tested if row.least_starred <= widest)
    if not within:
        return f"With {seeds} and this spread no single difference can be significant."
    least, most = (numbers.printed(value, metric) for value in (within[0], within[-1]))
    reach = least if least == most else f"{least} to {most}"
    never = len(tested) - len(within)
    rest = f"; for {never} of {len(tested)} variants none can be" if never else ""
    return (
        f"With {seeds} and this spread, a single difference is significant from {reach}"
        f"{_unit(metric)} on, depending on the variant{rest}."
    )


def _difference(row: Result, metric: MetricSpec) -> str:
    better = (row.difference > 0) == (metric.direction == "up")
    word = ("better" if better else "worse") if metric.direction else "apart"
    signed = numbers.printed_signed(row.difference, metric).replace("-", "−")
    return f"{_name(row)} {word}, {signed}"


def _unit(metric: MetricSpec) -> str:
    return " points" if metric.unit == "%" else f" {metric.unit}" if metric.unit else ""


def _score(row: Result, metric: MetricSpec) -> str:
    spread = "" if math.isnan(row.sd) else f" ± {numbers.printed(row.sd, metric)}"
    count = "" if row.whole else f" ({row.n}/{row.planned})"
    unit = f" {metric.unit}" if metric.unit else ""
    return f"{numbers.printed(row.mean, metric)}{spread}{unit}{count}"


def _name(row: Result) -> str:
    """A variant's label within a sentence, in quotes if it has commas; `τ = 1` stays on one line."""
    label = row.label.replace(" = ", "\u00a0=\u00a0")
    return f"“{label}”" if "," in label else label


def _unfinished(found: Results) -> list[str]:
    sentences = []
    for outcome in found.outcomes.values():
        why = outcome.explanation()
        if why and not outcome.imported:
            rest = "has no result" if not outcome.completed else "is not whole"
            sentences.append(f"{outcome.label} {rest}: {why}.")
    return sentences


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _listed(texts: Sequence[str]) -> str:
    """`a, b and c`."""
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"
