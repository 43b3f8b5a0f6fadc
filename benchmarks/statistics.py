"""python -m benchmarks.statistics: how often the rules of the tables and claims are wrong.

Simulated seeds with a known truth go through the code that tables, verdicts and claims use. Printed
for n = 2, 3 and 5 seeds, in per cent with the simulation's standard error: how often a 95 % interval
covers the truth (95 +- 2 %); how many tables of equal variants have a star, how often a reported number
at exactly the tolerance is called reproduced, and one of equal truth higher or lower, and how often a
claim without a true effect is decided (at most 5 % each). Tests that are exact lie at 5 %, on both
sides of it by the standard error. A rule is beyond its limit, and the exit code 1, where the one-sided
binomial test of "the true rate is within the limit" gives p < 0.001.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import special
from scipy.stats import binomtest

from ablations.study.schema import MetricSpec
from analysis.results import stats
from analysis.results.frames import Result, Results, from_outcomes, judge
from analysis.results.numbers import fixed
from analysis.results.outcomes import Outcome
from analysis.runs.record import Run

SEEDS = (2, 3, 5)
PERCENT = MetricSpec(direction="up", digits=1)
ROWS, METRICS = 13, ("mAP", "rank1")  # of a table of equal variants, as the quick study's
COVERS = (0.93, 0.97)  # how often an interval of 95 % may cover
SPREAD = 0.01  # standard deviation over seeds, as a fraction
RUN_SD = 0.1  # of reported numbers and our seeds beside them, in per cent
BEYOND = 0.001  # of the test that a rate is within its limits
Once = Callable[[np.random.Generator, int], bool]
Many = Callable[[np.random.Generator, int, int], np.ndarray | list[bool]]
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class Rule:
    """How often something happened at each number of seeds, and how often it may.

    Attributes:
        hits: for each of `SEEDS`, how many of `trials` had it.
        low, high: the rates that are allowed; None: reported without a limit.
    """

    name: str
    hits: tuple[int, ...]
    trials: int
    low: float = 0.0
    high: float | None = 0.05

    @property
    def rates(self) -> tuple[float, ...]:
        return tuple(hits / self.trials for hits in self.hits)

    @property
    def errors(self) -> tuple[float, ...]:
        """The standard error of each rate."""
        return tuple(math.sqrt(rate * (1 - rate) / self.trials) for rate in self.rates)

    @property
    def holds(self) -> bool:
        """Whether no rate is shown to lie beyond the limits (one-sided binomial tests, p < 0.001)."""
        if self.high is None:
            return True
        above, below = (
            [binomtest(hits, self.trials, limit, alternative).pvalue for hits in self.hits]
            for limit, alternative in ((self.high, "greater"), (self.low, "less"))
        )
        return bool(min(*above, *below) >= BEYOND)


def simulate(trials: int, seed: int = 0) -> list[Rule]:
    """Every rule, each with its own random numbers."""

    def rule(name: str, once: Once, low: float = 0.0, high: float = 0.05, part: int = 1) -> Rule:
        """`once` is tried `trials / part` times."""
        times = max(1, trials // part)
        return many(name, lambda rng, n, _: [once(rng, n) for _ in range(times)], high, low, times, 1)

    def many(
        name: str,
        found: Many,
        high: float | None = 0.05,
        low: float = 0.0,
        times: int = trials,
        turns: int = 10,
    ) -> Rule:
        """`found` tries `times` at once, `turns` times."""
        rngs = [(np.random.default_rng([seed, n, *name.encode()]), n) for n in SEEDS]
        hits = [sum(int(np.sum(found(rng, n, times))) for _ in range(turns)) for rng, n in rngs]
        return Rule(name, tuple(hits), turns * times, low, high)

    return [
        rule("interval of a mean covers the truth", _mean_covers, *COVERS),
        rule("interval of a paired difference covers the truth", _difference_covers, *COVERS),
        rule("interval of an unpaired difference covers the truth", _unpaired_covers, 0.93, 1.0),
        many("tables of equal variants with a star", _starred(_normal)),
        many(
            "the same, seeds with heavy tails (t, 3 degrees of freedom)",
            _starred(lambda rng, shape: rng.standard_t(3, shape)),
        ),
        many("the same, skewed seeds and spreads of 1 to 3", _starred(_skewed), high=None),
        rule("the same, a variant having lost its two worst seeds", _starred_after_loss, part=20),
        rule("the same, at the best epoch", _starred_at_best, part=20),
        *(
            rule(
                f"tables of {variants} equal variants with a star, {name}",
                _tied(variants, stored),
                part=20,
            )
            for name, stored in STORED.items()
            for variants in (3, 14)
        ),
        *(
            rule(
                f"{word}, {digits} digits, {'rounded by half a unit' if edge else 'one run'}",
                _called(verdicts, gap, digits, edge),
            )
            for word, verdicts, gap in (
                ("reproduced at a gap of the tolerance", ("reproduced",), 1.0),
                ("higher or lower at equal truth", ("higher", "lower"), 0.0),
            )
            for digits in (0, 1, 2)
            for edge in (False, True)
        ),
        rule("equivalent at a gap of the margin", _equivalent),
        rule("claim decided without an effect", _decided),
        rule("claim 'within the margin' at the margin", _decided_within),
    ]


# -- single trials ------------------------------------------------------------------------------


def _seeds(values: Sequence[float] | np.ndarray) -> dict[int, float]:
    return dict(enumerate(map(float, values)))


def _mean_covers(rng: np.random.Generator, n: int) -> bool:
    found = stats.summary(rng.normal(0.7, SPREAD, n))
    return found.low <= 0.7 <= found.high


def _difference_covers(rng: np.random.Generator, n: int) -> bool:
    shared = rng.normal(0.0, SPREAD, n)
    a, b = (level + shared + rng.normal(0, SPREAD, n) for level in (0.72, 0.70))
    found = stats.paired(_seeds(a), _seeds(b))
    return found.low <= 0.02 <= found.high


def _unpaired_covers(rng: np.random.Generator, n: int) -> bool:
    found = stats.unpaired(list(rng.normal(0.72, SPREAD, n)), list(rng.normal(0.70, 2 * SPREAD, n)))
    return found.low <= 0.02 <= found.high


# -- tables -------------------------------------------------------------------------------------


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(0.0, 1.0, shape)


def _skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Most seeds a little above the mean, few far below; the last variant spreads three times as far
    as the baseline. Student's test assumes neither."""
    spreads = np.linspace(1.0, 3.0, shape[1])[:, None, None]
    return spreads * (1.0 - rng.exponential(1.0, shape))


def equal_variants(rng: np.random.Generator, n: int, tables: int, draw: Draw) -> np.ndarray:
    """Scores [tables, variants, seeds, metrics] of variants that are equal in truth; 0 is the baseline.

    A seed's level enters all metrics of its run.
    """
    levels = draw(rng, (tables, ROWS + 1, n, 1))
    return 0.7 + SPREAD * (levels + rng.normal(0, 0.5, (tables, ROWS + 1, n, len(METRICS))))


def starred_tables(scores: np.ndarray) -> np.ndarray:
    """Which tables [tables] have a star, as in the frame. Holm's first star is Bonferroni's."""
    differences = scores[:, 1:] - scores[:, :1]
    n = differences.shape[2]
    t = np.abs(differences.mean(axis=2)) / (differences.std(axis=2, ddof=1) / math.sqrt(n))
    p = 2 * special.stdtr(n - 1, -t).reshape(len(scores), -1)
    found: np.ndarray = p.min(axis=1) * p.shape[1] < stats.ALPHA
    return found


def _starred(draw: Draw) -> Many:
    return lambda rng, n, tables: starred_tables(equal_variants(rng, n, tables, draw))


def table_results(scores: np.ndarray, lost: int = 0) -> Results:
    """The frame of one table [variants, seeds, metrics]; the last variant lost its worst seeds."""
    found: dict[str, Outcome] = {}
    for number, rows in enumerate(scores):
        gone = set(np.argsort(rows[:, 0])[:lost].tolist()) if number == len(scores) - 1 else set()
        name, runs = f"v{number}", []
        for seed, values in enumerate(rows.tolist()):
            named = dict(zip(METRICS, values, strict=True))
            state = "diverged" if seed in gone else "completed"
            own: dict[str, Any] = {"selected_on": "test", "state": state, "best": named, "last": named}
            runs.append(Run(study="s", variant=name, seed=seed, **own))
        found[name] = Outcome("s", name, name, name, tuple(runs))
    study: Any = SimpleNamespace(
        name="s", baseline="v0", tables=(), rounds=None, metrics=dict.fromkeys(METRICS, PERCENT)
    )
    return from_outcomes(study, "v0", found)


def _starred_after_loss(rng: np.random.Generator, n: int) -> bool:
    found = table_results(equal_variants(rng, n, 1, _normal)[0], lost=min(2, n - 1))
    return any(found.get(f"v{ROWS}", metric).starred for metric in METRICS)


# How a share of correct answers is stored: of 997 queries as float32, of 30 with four digits.
STORED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "float32 of k/997": lambda k: (k.astype(np.float32) / np.float32(997)).astype(np.float64),
    "four digits of k/30": lambda k: np.round(k / 30, 4),
}


def _tied(variants: int, stored: Callable[[np.ndarray], np.ndarray]) -> Once:
    """Whole numbers of correct answers: two seeds often differ by the same but for rounding."""

    def starred(rng: np.random.Generator, n: int) -> bool:
        correct = np.round(rng.normal(21, 1.5, (variants + 1, n, len(METRICS))))
        return any(row.starred for row in table_results(stored(correct)))

    return starred


def _starred_at_best(rng: np.random.Generator, n: int) -> bool:
    found = table_results(equal_variants(rng, n, 1, _normal)[0])
    return any(row.starred for row in found if row.epoch == "best")


# -- reported numbers and claims ----------------------------------------------------------------


def judged(rng: np.random.Generator, n: int, digits: int, gap: float, *, edge: bool) -> str:
    """The verdict on a reported number whose truth is `gap` above ours, in per cent; the tolerance is 1
    where there is a gap, else none.

    Args:
        edge: the mean of very many runs that lies just below half a unit and is rounded down by all of
            it, the worst case; otherwise a single run anywhere.
    """
    unit = 10.0**-digits
    truth = 70.0 + unit * (0.499 if edge else float(rng.random()))
    ours = rng.normal(truth - gap, RUN_SD, n)
    reported = truth if edge else rng.normal(truth, RUN_SD)
    values = _seeds(ours / 100)
    result = Result("s", "v", "mAP", "last", "v", False, "", "", n, n, values=values)
    text = fixed(reported, digits)
    return judge(text, result, PERCENT, tolerance=1.0 if gap else None, n=10**6 if edge else 1)


def _called(verdicts: tuple[str, ...], gap: float, digits: int, edge: bool) -> Once:
    return lambda rng, n: judged(rng, n, digits, gap, edge=edge) in verdicts


def _equivalent(rng: np.random.Generator, n: int) -> bool:
    a = rng.normal(0.71, SPREAD, n)
    return stats.equivalence(_seeds(a), dict.fromkeys(range(n), 0.70), 0.01).shows()


def _decided(rng: np.random.Generator, n: int) -> bool:
    return stats.decide(list(rng.normal(0.0, 8.0, n))).holds is not None


def _decided_within(rng: np.random.Generator, n: int) -> bool:
    return stats.decide(list(rng.normal(1.0, 1.0, n)), 1.0).holds is True


# -- command ------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.statistics")
    parser.add_argument("--trials", type=int, default=10_000, help="per rule [10000]")
    arguments = parser.parse_args(words)
    rules = simulate(arguments.trials)
    width = max(len(rule.name) for rule in rules)
    print(f"{'rule':{width}}  trials   " + "  ".join(f"n = {n:<9}" for n in SEEDS) + "  allowed")
    for rule in rules:
        rates = zip(rule.rates, rule.errors, strict=True)
        shown = "  ".join(f"{100 * rate:5.2f} ± {100 * error:4.2f}" for rate, error in rates)
        allowed = "any" if rule.high is None else f"{rule.low:.0%} to {rule.high:.0%}"
        beyond = "" if rule.holds else "  BEYOND ITS LIMIT"
        print(f"{rule.name:{width}}  {rule.trials:7,}  {shown}   {allowed}{beyond}")
    return 0 if all(rule.holds for rule in rules) else 1


if __name__ == "__main__":
    sys.exit(main())
