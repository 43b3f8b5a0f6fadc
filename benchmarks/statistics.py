"""python -m benchmarks.statistics: how often the rules of the tables and claims are wrong.

Simulated seeds with a known truth go through the code that tables, verdicts and claims use. Printed
for n = 2, 3 and 5 seeds: how often a 95 % interval covers the truth (95 +- 2 %), how many tables of
equal variants have a star (at most 5 %), how often a reported number at exactly the tolerance is
called a match (at most 5 %), and how often a claim without a true effect is decided (at most 5 %). The
last column names the limit; a rule beyond it by more than the simulation's own error makes the exit
code 1.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from ablations.study.schema import MetricSpec
from analysis.results import stats
from analysis.results.frames import Result, from_outcomes, verdict
from analysis.results.outcomes import Outcome, Run

SEEDS = (2, 3, 5)
PERCENT = MetricSpec(direction="up", digits=1)
ROWS, METRICS = 13, ("mAP", "rank1")  # of a table of equal variants, as the quick study's
# How often something may happen: an interval of 95 % that covers, and a mistake.
COVERS, WRONG = (0.93, 0.97), (0.0, 0.05)
SPREAD = 0.01  # standard deviation over seeds, as a fraction


@dataclass(frozen=True)
class Rule:
    """How often something happened, at each number of seeds, and how often it may."""

    name: str
    rates: tuple[float, ...]
    low: float
    high: float
    trials: int

    @property
    def holds(self) -> bool:
        """Whether each rate is within the limits, give or take three standard errors."""
        slack = 3 * math.sqrt(0.05 * 0.95 / self.trials)
        return all(self.low - slack <= rate <= self.high + slack for rate in self.rates)

    @property
    def limit(self) -> str:
        if self.high == 1.0:
            return f"at least {self.low:.0%}"
        return f"{self.low:.0%} to {self.high:.0%}" if self.low else f"at most {self.high:.0%}"


def simulate(trials: int, seed: int = 0) -> list[Rule]:
    """Every rule, each with its own random numbers."""

    def rule(
        name: str,
        once: Callable[[np.random.Generator, int], bool],
        limits: tuple[float, float] = WRONG,
        part: int = 1,
    ) -> Rule:
        times = max(1, trials // part)
        rates = []
        for n in SEEDS:
            rng = np.random.default_rng([seed, n, *name.encode()])
            rates.append(sum(once(rng, n) for _ in range(times)) / times)
        return Rule(name, tuple(rates), *limits, times)

    return [
        rule("interval of a mean covers the truth", _mean_covers, COVERS),
        rule("interval of a paired difference covers the truth", _difference_covers, COVERS),
        rule("interval of an unpaired difference covers the truth", _unpaired_covers, (0.93, 1.0)),
        rule("tables of equal variants with a star", _starred, part=10),
        rule("the same, a variant having lost its two worst seeds", _starred_after_loss, part=10),
        rule("the same, at the best epoch", _starred_at_best, part=10),
        rule("match with a gap of the tolerance, single reported run", _matches(1)),
        rule("match with a gap of the tolerance, reported mean of 5", _matches(5)),
        rule("better or worse, reported from the same distribution", _better_or_worse),
        rule("equivalent at a gap of the margin", _equivalent),
        rule("claim decided without an effect", _decided),
        rule("claim 'within the margin' at the margin", _decided_within),
    ]


# -- single trials ------------------------------------------------------------------------------


def _seeds(values: Sequence[float] | np.ndarray) -> dict[int, float]:
    return dict(enumerate(map(float, values)))


def _mean_covers(rng: np.random.Generator, n: int) -> bool:
    interval = stats.summary(rng.normal(0.7, SPREAD, n)).interval
    return interval is not None and interval.low <= 0.7 <= interval.high


def _difference_covers(rng: np.random.Generator, n: int) -> bool:
    shared = rng.normal(0.0, SPREAD, n)
    a, b = (level + shared + rng.normal(0, SPREAD, n) for level in (0.72, 0.70))
    found = stats.paired(_seeds(a), _seeds(b))
    assert isinstance(found, stats.Difference) and found.interval is not None
    return found.interval.low <= 0.02 <= found.interval.high


def _unpaired_covers(rng: np.random.Generator, n: int) -> bool:
    found = stats.unpaired(list(rng.normal(0.72, SPREAD, n)), list(rng.normal(0.70, 2 * SPREAD, n)))
    assert isinstance(found, stats.Difference) and found.interval is not None
    return found.interval.low <= 0.02 <= found.interval.high


def _results(rng: np.random.Generator, n: int, lost: int = 0) -> Any:
    """The frame of a study of equal variants; the last variant lost its worst seeds."""
    found: dict[str, Outcome] = {}
    for number in range(ROWS + 1):
        levels = rng.normal(0.7, SPREAD, n)
        gone = set(np.argsort(levels)[:lost].tolist()) if number == ROWS else set()
        runs = []
        for seed, level in enumerate(levels):
            scores = {
                f"{epoch}/{metric}": float(level + rng.normal(0, SPREAD / 2))
                for epoch in ("final", "best")
                for metric in METRICS
            }
            state = "diverged" if seed in gone else "completed"
            runs.append(Run(seed, state, f"v{number}/{seed}", None, None, "", "", scores))
        name = f"v{number}"
        found[name] = Outcome("s", name, name, name, tuple(runs), selected_on="test")
    study: Any = SimpleNamespace(
        name="s", baseline="v0", tables=(), metrics=dict.fromkeys(METRICS, PERCENT)
    )
    return from_outcomes(study, "v0", found)


def _starred(rng: np.random.Generator, n: int) -> bool:
    return any(row.starred for row in _results(rng, n))


def _starred_after_loss(rng: np.random.Generator, n: int) -> bool:
    found = _results(rng, n, lost=min(2, n - 1))
    return any(found.get(f"v{ROWS}", metric).starred for metric in METRICS)


def _starred_at_best(rng: np.random.Generator, n: int) -> bool:
    return any(row.starred for row in _results(rng, n) if row.epoch == "best")


def _verdict(rng: np.random.Generator, n: int, gap: float, m: int) -> str:
    """Of a reported mean of m runs that lies `gap` (in per cent) above our truth; tolerance 1 %."""
    ours = _seeds(rng.normal(0.70, SPREAD / 4, n))
    reported = rng.normal(70.0 + gap, 25 * SPREAD / math.sqrt(m))
    result = Result("s", "v", "mAP", "last", "v", False, "", "", n, n, values=ours)
    result = replace(result, mean=float(np.mean(list(ours.values()))))
    return verdict(f"{reported:.6f}", result, PERCENT, tolerance=1.0, reported_n=m)


def _matches(m: int) -> Callable[[np.random.Generator, int], bool]:
    return lambda rng, n: _verdict(rng, n, 1.0, m) == "match"


def _better_or_worse(rng: np.random.Generator, n: int) -> bool:
    return _verdict(rng, n, 0.0, 1) in ("ours is better", "ours is worse")


def _equivalent(rng: np.random.Generator, n: int) -> bool:
    a = rng.normal(0.71, SPREAD, n)
    found = stats.equivalence(_seeds(a), dict.fromkeys(range(n), 0.70), 0.01)
    return isinstance(found, stats.Equivalence) and found.equivalent


def _decided(rng: np.random.Generator, n: int) -> bool:
    return stats.decide(list(rng.normal(0.0, 8.0, n))).holds is not None


def _decided_within(rng: np.random.Generator, n: int) -> bool:
    return stats.decide_within(list(rng.normal(1.0, 1.0, n)), 1.0).holds is True


# -- command ------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.statistics")
    parser.add_argument("--trials", type=int, default=10_000, help="per rule [10000]")
    parser.add_argument("--json", action="store_true", help="one object a rule")
    arguments = parser.parse_args(words)
    rules = simulate(arguments.trials)
    if arguments.json:
        for rule in rules:
            rates = dict(zip(map(str, SEEDS), rule.rates, strict=True))
            print(json.dumps({"rule": rule.name, "rates": rates, "limit": rule.limit}))
    else:
        width = max(len(rule.name) for rule in rules)
        print(f"{'rule':{width}}  " + "  ".join(f"n = {n:<3}" for n in SEEDS) + "  limit")
        for rule in rules:
            shown = "  ".join(f"{rate:7.1%}" for rate in rule.rates)
            told = "" if rule.holds else "  BEYOND ITS LIMIT"
            print(f"{rule.name:{width}}  {shown}  {rule.limit}{told}")
    return 0 if all(rule.holds for rule in rules) else 1


if __name__ == "__main__":
    sys.exit(main())
