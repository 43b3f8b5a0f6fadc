"""Which of the changes did it: effects at both ends, their interaction, and a search by explosions.

Pure functions on the values of cells. `ablations.study.attribution` plans the cells,
`analysis.results.attribution` reads their runs, and tables, figures and the verb `attribute` show them.

A is the good variant and B the broken one; they differ in r settings. With seeds as replicates, the
effect of a setting is measured at both ends: changed alone in A, and taken back alone in B. A setting
that acts by itself shows at both; one of several that are needed together shows at B only; one of
several of which each suffices shows at A only. The 2r effects are one family of Holm's.

Broken runs spread several times as much as good ones, so a pooled spread would name inert settings.
Each cell's variance is moderated by the cells of its own state (nearer to A's mean or to B's): v = (own
(n - 1) + 2 x mean of the others) / (n + 1), with n + 1 degrees of freedom, and effects are tested by
Welch. Two settings have four cells, and plain Welch. Simulated error rates: `python -m benchmarks
questions`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from analysis.results.stats import ALPHA, CONFIDENCE, Summary, holm

Changes = frozenset[str]
End = Literal["good", "broken"]
Pattern = Literal["alone", "with another", "either", "none", "open"]

SEEDS_OF_A_CELL = 3  # in a search by explosions; two of them decide


@dataclass(frozen=True)
class Effect:
    """What one setting does at one end: the mean of the cell with its change minus that without.

    Attributes:
        low, high: 95 % interval of the difference.
        untested: why there is no test; empty where there is one.
        adjusted_p: Holm's over the family of 2r.
    """

    change: str
    end: End
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    adjusted_p: float = math.nan
    untested: str = ""

    @property
    def starred(self) -> bool:
        return self.adjusted_p < ALPHA


class Share(NamedTuple):
    """The 2 x 2 of one setting and all others: alone + others alone + interaction = whole."""

    alone: Summary
    others: Summary
    interaction: Summary
    whole: Summary


@dataclass(frozen=True)
class Effects:
    """All effects, and what they say of each setting."""

    effects: tuple[Effect, ...]
    shares: Mapping[str, Share]

    def of(self, change: str) -> dict[End, Effect]:
        return {effect.end: effect for effect in self.effects if effect.change == change}

    def pattern(self, change: str) -> Pattern:
        """By the ends that are starred: alone both, with another the broken, either the good one."""
        ends = self.of(change)
        good, broken = ends["good"], ends["broken"]
        if good.starred or broken.starred:
            if good.starred and broken.starred:
                return "alone"
            return "with another" if broken.starred else "either"
        equal = ("equal by construction", "")
        return "none" if good.untested in equal and broken.untested in equal else "open"

    @property
    def named(self) -> tuple[str, ...]:
        """The settings that are shown to matter."""
        every = dict.fromkeys(effect.change for effect in self.effects)
        return tuple(c for c in every if self.pattern(c) in ("alone", "with another", "either"))


def effects(
    changes: Sequence[str],
    cells: Mapping[Changes, Mapping[int, float]],
    planned: int,
    equal: Callable[[Changes, Changes], bool] = lambda a, b: False,
) -> Effects:
    """The effects of all settings from the values of the cells of both ends.

    Args:
        cells: changes to seed to value, for every cell of the design that exists; a cell that equals
            another has its values.
        planned: seeds of each cell. A cell with fewer has no test: survivors alone would mislead.
        equal: whether two cells are one network by construction.
    """
    every = frozenset(changes)
    spread = _Spread(cells, every, pooled=len(changes) > 2)
    found: list[Effect] = []
    for change in changes:
        ends: list[tuple[End, Changes, Changes]] = [
            ("good", frozenset([change]), frozenset()),
            ("broken", every, every - {change}),
        ]
        for end, with_it, without in ends:
            effect = Effect(change, end)
            if equal(with_it, without):
                effect = replace(effect, difference=0.0, untested="equal by construction")
            elif with_it not in cells or without not in cells:
                effect = replace(effect, untested="the cell cannot exist")
            else:
                short = [s for s in (with_it, without) if len(cells[s]) < planned]
                total = spread.combine({with_it: 1.0, without: -1.0})
                if short:
                    total = replace(total, p=math.nan, why="a seed has no result")
                effect = Effect(
                    change, end, total.mean, total.low, total.high, total.p, untested=total.why
                )
            found.append(effect)
    adjusted = holm([effect.p for effect in found])
    found = [replace(effect, adjusted_p=p) for effect, p in zip(found, adjusted, strict=True)]
    shares = {}
    for change in changes:
        one, rest, nothing = frozenset([change]), every - {change}, frozenset[str]()
        if all(cells.get(c) for c in (one, rest, nothing, every)):
            parts = [
                {one: 1.0, nothing: -1.0},
                {rest: 1.0, nothing: -1.0},
                {every: 1.0, one: -1.0, rest: -1.0, nothing: 1.0},
                {every: 1.0, nothing: -1.0},
            ]
            shares[change] = Share(*map(spread.combine, parts))
    return Effects(tuple(found), shares)


class _Spread:
    """Means and moderated variances of cells, and linear combinations of them."""

    def __init__(
        self, cells: Mapping[Changes, Mapping[int, float]], every: Changes, *, pooled: bool
    ) -> None:
        values = {key: np.array(list(found.values())) for key, found in cells.items() if found}
        self.mean = {key: float(v.mean()) for key, v in values.items()}
        self.count = {key: len(v) for key, v in values.items()}
        own = {key: float(v.var(ddof=1)) for key, v in values.items() if len(v) > 1}
        self.variance = {**dict.fromkeys(values, math.nan), **own}  # NaN: a single seed
        self.freedom = {key: self.count[key] - 1.0 for key in own}
        if not pooled or frozenset() not in self.mean or every not in self.mean:
            return
        low, high = self.mean[frozenset()], self.mean[every]
        broken = {key: abs(m - high) < abs(m - low) for key, m in self.mean.items()}
        # Cells that are one network have the same values; each network counts once.
        distinct = {tuple(values[key]): key for key in own}
        for key in own:
            others = [
                own[other]
                for seen, other in distinct.items()
                if broken[other] == broken[key] and seen != tuple(values[key])
            ]
            if others:
                n = self.count[key]
                self.variance[key] = (own[key] * (n - 1) + 2 * float(np.mean(others))) / (n + 1)
                self.freedom[key] = n + 1.0

    def combine(self, weights: Mapping[Changes, float]) -> Summary:
        """A weighted sum of cell means, its 95 % interval and two-sided p (Welch-Satterthwaite)."""
        if not weights.keys() <= self.mean.keys():
            return Summary()
        total = sum(w * self.mean[key] for key, w in weights.items())
        parts = {key: w * w * self.variance[key] / self.count[key] for key, w in weights.items()}
        error = math.sqrt(sum(parts.values()))
        if not error > 1e-12 * max(abs(self.mean[key]) for key in weights):
            return Summary(mean=total, why="no spread to test against")
        freedom = error**4 / sum(part**2 / self.freedom[key] for key, part in parts.items())
        half = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
        p = 2 * float(special.stdtr(freedom, -abs(total) / error))
        return Summary(mean=total, low=total - half, high=total + half, p=p)


# -- explosions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """A search for the settings that make training explode, as far as the outcomes allow.

    Attributes:
        named: minimal sets that explode on top of the good variant, each found without the ones before.
        needed: cells whose outcome is needed next; empty when the search is done.
        refusal: why there is nothing to search for: an end that is not as it should be.
    """

    named: tuple[Changes, ...] = ()
    needed: tuple[Changes, ...] = ()
    refusal: str = ""


class _Needed(Exception):
    """Its arguments: cells whose outcome is not known yet."""


def search(changes: Sequence[str], explodes: Callable[[Changes], bool | None]) -> Search:
    """Delta debugging (Zeller and Hildebrandt, 2002) over the settings, replayed from known outcomes.

    After a minimal set is found the rest is searched alone, and so on while it explodes; at the end the
    2 x 2 of all named settings and the rest is asked for. Calling it again with more outcomes goes on.

    Args:
        explodes: of the good variant with these changes; None where it is not known yet.
    """
    every = frozenset(changes)
    named: list[Changes] = []

    def test(sets: Sequence[Changes]) -> list[bool]:
        answers = [explodes(s) for s in sets]
        if unknown := [s for s, answer in zip(sets, answers, strict=True) if answer is None]:
            raise _Needed(*unknown)
        return [bool(answer) for answer in answers]

    try:
        good, broken = test([frozenset(), every])
        if good:
            return Search(refusal="the good variant explodes, too")
        if not broken:
            return Search(refusal="the broken variant does not explode")
        rest = every
        while rest and test([rest])[0]:
            named.append(_minimal(sorted(rest, key=list(changes).index), test))
            rest -= named[-1]
        union = frozenset[str]().union(*named)
        test([union, every - union])
    except _Needed as needed:
        return Search(tuple(named), needed.args)
    return Search(tuple(named))


def _minimal(items: list[str], test: Callable[[Sequence[Changes]], list[bool]]) -> Changes:
    """A subset that explodes and of which no single item can be left out."""
    parts = 2
    while len(items) > 1:
        bounds = [len(items) * k // parts for k in range(parts + 1)]
        subsets = [items[a:b] for a, b in itertools.pairwise(bounds)]
        answers = test([frozenset(subset) for subset in subsets])
        if any(answers):
            items, parts = subsets[answers.index(True)], 2
            continue
        rests = [[item for item in items if item not in subset] for subset in subsets]
        answers = test([frozenset(rest) for rest in rests]) if parts > 2 else [False]
        if any(answers):
            items, parts = rests[answers.index(True)], max(parts - 1, 2)
        elif parts < len(items):
            parts = min(len(items), 2 * parts)
        else:
            break
    return frozenset(items)


def majority(outcomes: Sequence[bool]) -> bool | None:
    """Whether a cell explodes: most of its seeds; None while that is open."""
    most = SEEDS_OF_A_CELL // 2 + 1
    if sum(outcomes) >= most:
        return True
    return False if len(outcomes) - sum(outcomes) >= most else None
