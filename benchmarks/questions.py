"""python -m benchmarks.questions: error rates of attributions, plans and rounds, by the product's code.

Simulated seeds with a known truth, in units of the spread over seeds. Printed: how often exactly the
settings that matter are named, and how often an inert one is, for the design with both ends; the same
for the search by explosions; how many plans of seeds keep their power; and for seeds in rounds the
family-wise error, the power, the runs and the false equivalences. Limits: `LIMITS`; the exit code is 1
where a rate is beyond its limit by two standard errors.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable

import numpy as np

from ablations.study.attribution import Changes, both_ends
from analysis.results import power
from analysis.results.effects import effects, majority, search
from analysis.results.rounds import decide

SETTINGS = tuple("abcdef")
GAP = 6.0  # between the ends, in spreads of the good end
BROKEN_SPREAD = 4.0
# name, settings that matter, and how far a cell is from good (0) to broken (1)
TRUTHS: tuple[tuple[str, frozenset[str], Callable[[Changes], float]], ...] = (
    ("one change", frozenset("a"), lambda s: float("a" in s)),
    ("0.6 + 0.4", frozenset("ab"), lambda s: 0.6 * ("a" in s) + 0.4 * ("b" in s)),
    ("both needed", frozenset("ab"), lambda s: float({"a", "b"} <= s)),
    ("either suffices", frozenset("ab"), lambda s: float("a" in s or "b" in s)),
    ("three needed", frozenset("abc"), lambda s: float({"a", "b", "c"} <= s)),
)
LOOKS, VARIANTS = (3, 5, 8, 12, 20), 13
# (what, lowest, highest) in per cent; a rate within two standard errors of them holds.
LIMITS = {
    "exact": (85.0, 100.0),
    "inert": (0.0, 5.0),
    "explosion exact": (91.0, 100.0),
    "explosion inert": (0.0, 7.0),
    "family wise": (0.0, 5.0),
    "power": (85.0, 100.0),
    "plan kept": (64.0, 100.0),
    "planned star": (80.0, 100.0),
    "equivalent": (0.0, 5.0),
}


def attribution_rates(
    truth: Callable[[Changes], float],
    causes: frozenset[str],
    seeds: int,
    spread: float,
    trials: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Shares of studies that name exactly the causes, and that name an inert setting."""
    exact = inert = 0
    for _ in range(trials):
        cells = {}
        for chosen in both_ends(SETTINGS):
            level = truth(chosen)
            values = GAP * level + rng.normal(0, spread if level > 0.5 else 1.0, seeds)
            cells[chosen] = dict(enumerate(map(float, values)))
        named = set(effects(SETTINGS, cells, seeds).named)
        exact += named == causes
        inert += bool(named - causes)
    return exact / trials, inert / trials


def explosion_rates(
    truth: Callable[[Changes], float], causes: frozenset[str], trials: int, rng: np.random.Generator
) -> tuple[float, float, float]:
    """The same for the search, and its mean number of runs; 5 % of outcomes are of the wrong kind."""
    exact = inert = runs = 0
    for _ in range(trials):
        known: dict[Changes, bool | None] = {}
        while needed := search(SETTINGS, known.get).needed:
            for cell in needed:
                flips = rng.random(3) < 0.05
                known[cell] = majority([bool(truth(cell) > 0.5) != bool(flip) for flip in flips])
        named = frozenset[str]().union(*search(SETTINGS, known.get).named)
        exact += named == causes
        inert += bool(named - causes)
        runs += 3 * len(known)
    return exact / trials, inert / trials, runs / trials


def rounds_rates(
    truths: tuple[float, ...], trials: int, rng: np.random.Generator
) -> tuple[float, float, float, float]:
    """Family-wise error, power at 1 spread, runs of a study, false equivalents at 1 spread."""
    errors = runs = 0
    found: list[bool] = []
    same: list[bool] = []
    seeds = range(LOOKS[-1])
    for _ in range(trials):
        values = {"base": {"mAP": dict.fromkeys(seeds, 0.0)}}
        for number, truth in enumerate(truths):
            drawn = truth + rng.normal(0, 1, LOOKS[-1])
            values[f"v{number}"] = {"mAP": dict(enumerate(map(float, drawn)))}
        rounds = decide(values, "base", ["mAP"], seeds, LOOKS, {"mAP": 0.5})
        states = [rounds.verdicts[f"v{number}", "mAP"].state for number in range(len(truths))]
        errors += any(s == "starred" for s, t in zip(states, truths, strict=True) if t == 0)
        found += [s == "starred" for s, t in zip(states, truths, strict=True) if t == 1]
        same += [s == "equivalent" for s, t in zip(states, truths, strict=True) if t == 1]
        runs += sum(rounds.seeds_of.values())
    power = float(np.mean(found)) if found else math.nan
    return errors / trials, power, runs / trials, float(np.mean(same)) if same else math.nan


def planned_rates(pilot: int, trials: int, rng: np.random.Generator) -> tuple[float, float, float]:
    """Of `sdtps seeds`: shares of plans with 80 % power in truth, and of starred effects; mean seeds.

    An effect of 1.5 spreads of its paired difference, 7 variants whose runs spread unequally, 14
    differences.
    """
    kept = starred = seeds = 0.0
    for _ in range(trials):
        spreads = rng.uniform(0.5, 1.5, 8)
        scores = rng.normal(0, spreads[:, None], (8, pilot))
        truth = float(np.hypot(spreads[0], spreads[1]))
        question = power.starred(1.5 * truth, 14)
        found = power.seeds_needed(question, power.spread(scores[1] - scores[0], scores))
        n = max(found or power.MOST, pilot)
        chance = float(question(n, np.array([truth]))[0])
        kept, starred, seeds = kept + (chance >= power.POWER), starred + chance, seeds + n
    return kept / trials, starred / trials, seeds / trials


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--trials", type=int, default=1000, metavar="N", help="studies a row [1000]")
    trials = parser.parse_args(words).trials
    beyond = 0

    def line(name: str, **rates: float) -> None:
        nonlocal beyond
        parts = []
        for what, rate in rates.items():
            key = what.replace("_", " ")
            percent, error = 100 * rate, 100 * math.sqrt(rate * (1 - rate) / trials)
            low, high = LIMITS.get(key, (0.0, 100.0))
            outside = not low - 2 * error <= percent <= high + 2 * error
            beyond += outside
            parts.append(f"{key} {percent:5.1f}{' BEYOND' if outside else ''}")
        print(f"{name:58}{'   '.join(parts)}", flush=True)

    print(f"{trials} studies a row, 6 settings, a gap of {GAP:g} spreads; rates in %")
    for name, causes, truth in TRUTHS:
        rng = np.random.default_rng([7, *name.encode()])
        exact, inert = attribution_rates(truth, causes, 5, 1.0, trials, rng)
        line(f"both ends, 5 seeds, {name}", exact=exact, inert=inert)
        _, inert = attribution_rates(truth, causes, 5, BROKEN_SPREAD, trials, rng)
        line(f"the same, broken runs spread {BROKEN_SPREAD:g} times as much", inert=inert)
    for name, causes, truth in TRUTHS:
        if name == "0.6 + 0.4":
            continue  # a graded loss is not a yes or no
        rng = np.random.default_rng([8, *name.encode()])
        exact, inert, runs = explosion_rates(truth, causes, trials, rng)
        line(f"explosions, {name} ({runs:.0f} runs)", explosion_exact=exact, explosion_inert=inert)
    for pilot in (2, 3, 5):
        kept, found, seeds = planned_rates(pilot, trials, np.random.default_rng([10, pilot]))
        line(f"seeds planned from {pilot} ({seeds:.0f} seeds)", plan_kept=kept, planned_star=found)
    rng = np.random.default_rng(9)
    wrong, _, runs, _ = rounds_rates((0.0,) * VARIANTS, trials, rng)
    line(f"rounds {LOOKS}, 13 equal variants ({runs:.0f} runs)", family_wise=wrong)
    mixed = (0.0,) * 6 + (1.0,) * 3 + (2.0,) * 4
    wrong, strength, runs, same = rounds_rates(mixed, trials, rng)
    line(f"the same, 3 at 1 and 4 at 2 spreads ({runs:.0f} runs)", family_wise=wrong, power=strength)
    line("the same, equivalent although 1 spread apart", equivalent=same)
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
