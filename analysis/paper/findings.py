"""What a study's results show, in sentences composed from the results frame, whatever they show.

Names the best variant, the significant differences to the baseline, those that only a single interval
supports, the variants that cannot be told from the baseline, and what did not finish.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.results import numbers
from analysis.results.frames import Result, Results
from sdtps.system.errors import counted

if TYPE_CHECKING:
    from ablations.study.schema import MetricSpec


def findings(found: Results) -> list[str]:
    """Sentences on each metric of the study at the last epoch; the first metric is told in full."""
    study = found.study
    sentences: list[str] = []
    groups: list[tuple[set[str], ...]] = []
    for name, metric in study.metrics.items():
        rows = [found.get(variant, name) for variant in study.variants if variant in found.outcomes]
        if sum(row.n > 0 for row in rows) < 2:
            continue
        compared = _Compared(found, metric, rows)
        same = bool(groups) and compared.groups == groups[0]
        groups.append(compared.groups)
        sentences.append(compared.best())
        sentences += [compared.same()] if same else compared.differences()
    if not sentences:
        sentences.append("Fewer than two variants have finished runs, so there is nothing to compare.")
    return [sentence for sentence in sentences if sentence] + _unfinished(found)


def summary(found: Results) -> str:
    """The first metric's best variant and whether any difference to the baseline is significant."""
    name, metric = next(iter(found.study.metrics.items()))
    rows = [found.get(variant, name) for variant in found.study.variants]
    if sum(row.n > 0 for row in rows) < 2:
        return ""
    compared = _Compared(found, metric, rows)
    return f"{compared.best()} {' '.join(compared.differences()[:2])}"


class _Compared:
    """The variants of a study by one metric, grouped by what can be said of their differences."""

    def __init__(self, found: Results, metric: MetricSpec, rows: Sequence[Result]) -> None:
        self.found, self.metric, self.rows = found, metric, rows
        self.up = metric.direction != "down"
        self.label = metric.label or rows[0].metric
        # Labels with commas of their own cannot be told from the words around them.
        self.quoted = any("," in row.label for row in rows)
        self.baseline = next(row for row in rows if row.variant == found.baseline)
        others = [row for row in rows if not math.isnan(row.difference) and row != self.baseline]
        self.others = sorted(others, key=lambda row: abs(row.difference), reverse=True)
        starred = [row for row in self.others if row.starred]
        single = [row for row in self.others if not row.starred and _excludes_0(row)]
        self.above, self.below = self._sides(starred)
        self.single_above, self.single_below = self._sides(single)
        self.bare = [row for row in self.others if not row.starred and not _interval(row)]
        told = (*starred, *single, *self.bare)
        self.level = [row for row in self.others if row not in told]

    @property
    def groups(self) -> tuple[set[str], ...]:
        parts = (self.above, self.below, self.single_above, self.single_below, self.level, self.bare)
        return tuple({row.variant for row in part} for part in parts)

    def _sides(self, rows: Sequence[Result]) -> tuple[list[Result], list[Result]]:
        better = [row for row in rows if (row.difference > 0) == self.up]
        return better, [row for row in rows if row not in better]

    def best(self) -> str:
        """Which variants are best, and what the baseline has."""
        whole = sorted((r for r in self.rows if r.whole), key=lambda row: row.mean, reverse=self.up)
        if not whole:
            return ""
        top = self._score(whole[0])
        equal = [row for row in whole if self._score(row) == top]
        names = _listed(
            [f"the baseline, {self._name(r)}," if r == self.baseline else self._name(r) for r in equal]
        )
        verb = "is" if len(equal) == 1 else "are"
        text = f"By {self.label} at the last epoch, {names} {verb} best with {top}"
        if self.baseline.n and self.baseline not in equal:
            text += f"; the baseline, {self._name(self.baseline)}, has {self._score(self.baseline)}"
        return f"{text}."

    def differences(self) -> list[str]:
        """Which differences to the baseline are significant, which are not, and how far they reach."""
        if not self.others:
            return []
        sentences = []
        family = max(row.family_size for row in self.others)
        corrected = f"after Holm's correction over {counted(family, 'difference')}"
        for side, rows in (("above", self.above), ("below", self.below)):
            if rows:
                sentences.append(
                    f"Significantly {side} the baseline {corrected}: {self._signed(rows)}."
                )
        if not self.above and not self.below:
            sentences.append(f"No difference to the baseline is significant {corrected}.")
        for side, rows in (("above", self.single_above), ("below", self.single_below)):
            if rows:
                sentences.append(
                    "Without that correction, the 95 % interval of the difference excludes 0 for "
                    f"{self._signed(rows)}, {side} the baseline."
                )
        return [*sentences, *self._bare(), *self._level()]

    def _bare(self) -> list[str]:
        """Differences of one seed, or equal in all seeds: nothing can be tested."""
        one = [row for row in self.bare if row.difference_n < 2]
        equal = [row for row in self.bare if row not in one]
        whys = (one, "one seed is finished in both"), (equal, "every seed differs by the same")
        return [
            f"Not tested, because {why}: {self._signed(rows)} against the baseline."
            for rows, why in whys
            if rows
        ]

    def _level(self) -> list[str]:
        """Which variants these seeds cannot tell from the baseline, and how large a gap would show."""
        if not self.level:
            return []
        seeds = counted(max(row.difference_n for row in self.level), "seed")
        if len(self.level) == 1:
            named = f"{self._name(self.level[0])} cannot be told from the baseline with {seeds}"
        else:
            rest = len(self.level) + len(self.bare) < len(self.others)
            which = "The other" if rest else "All" if not self.bare else "All other"
            named = f"{which} {len(self.level)} variants cannot be told from the baseline with {seeds}"
        better = [row for row in self.level if (row.difference > 0) == self.up and row.difference]
        if better:
            named += f", though the mean is better for {_listed([self._name(row) for row in better])}"
        halves = [(row.difference_high - row.difference_low) / 2 for row in self.level]
        sentences = [f"{named}."]
        if halves:
            least, most = (numbers.printed(value, self.metric) for value in (min(halves), max(halves)))
            width = f"{least}" if least == most else f"between {least} and {most}"
            sentences.append(
                f"The half width of their intervals is {width}{self._points}, and smaller differences "
                "cannot show."
            )
        return sentences

    def same(self) -> str:
        return "What can and cannot be told from the baseline is the same as above."

    @property
    def _points(self) -> str:
        return " points" if self.metric.unit == "%" else self._unit

    @property
    def _unit(self) -> str:
        return f" {self.metric.unit}" if self.metric.unit else ""

    def _score(self, row: Result) -> str:
        spread = "" if math.isnan(row.sd) else f" ± {numbers.printed(row.sd, self.metric)}"
        count = "" if row.whole else f" ({row.n}/{row.planned})"
        return f"{numbers.printed(row.mean, self.metric)}{spread}{self._unit}{count}"

    def _signed(self, rows: Sequence[Result]) -> str:
        return _listed([f"{self._name(row)} ({self._difference(row)})" for row in rows])

    def _difference(self, row: Result) -> str:
        """The signed difference, and over how many seeds where some are missing."""
        text = numbers.printed_signed(row.difference, self.metric).replace("-", "−")
        whole = row.difference_n == row.difference_planned
        return text if whole else f"{text}; {row.difference_n} of {row.difference_planned} seeds"

    def _name(self, row: Result) -> str:
        """A variant's label within a sentence; `τ = 1` is not broken across lines."""
        label = row.label.replace(" = ", "\u00a0=\u00a0")
        return f"“{label}”" if self.quoted else label


def _unfinished(found: Results) -> list[str]:
    sentences = []
    for outcome in found.outcomes.values():
        why = outcome.explanation()
        if why and not outcome.imported:
            rest = "has no result" if not outcome.completed else "is not whole"
            sentences.append(f"{outcome.label} {rest}: {why}.")
    return sentences


def _interval(row: Result) -> bool:
    return not math.isnan(row.difference_low)


def _excludes_0(row: Result) -> bool:
    return _interval(row) and (row.difference_low > 0 or row.difference_high < 0)


def _listed(texts: Sequence[str]) -> str:
    """`a, b and c`."""
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"
