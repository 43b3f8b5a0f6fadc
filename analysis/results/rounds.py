"""Seeds in rounds: which differences are decided at which look, and who is trained further.

Computed here from the runs; read by tables and by the verb `rounds` (`analysis.questions.rounds`), of
which `sdtps submit` asks the next seeds.

n: seeds at a look; N: at the last look; R: differences without a star; level: what a look may err.

A study declares its looks, n seeds each, up to N. Look n may err with 0.05 ((n/N)^2 - (n_before/N)^2),
so that all looks together err with at most 5 % under any dependence (union bound). At each look Holm
steps down over the R differences that have no star yet, equivalent ones included; a star stays.
Equivalence (two one-sided tests against the margin) takes the same share. A variant all of whose
differences are starred or equivalent is trained no further. The p that is printed is p × R × 0.05 /
level, to be read at 5 %.

Every decision is computed again from the runs each time; nothing is remembered. Small starred effects
are overstated a little (0.11 standard deviations in simulation), as in every design that may stop
early.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from analysis.results import stats
from analysis.results.outcomes import Outcome
from analysis.results.stats import ALPHA

if TYPE_CHECKING:
    from ablations.study.model import Study

_LOST = ("diverged", "failed", "cancelled")
Key = tuple[str, str]  # variant, metric
Values = Mapping[str, Mapping[str, Mapping[int, float]]]  # variant, metric, seed


@dataclass(frozen=True)
class Standing:
    """What is known of one difference.

    Attributes:
        look: seeds at which it was decided, or at which it was last looked at; 0: not looked at.
        adjusted_p: p × R × 0.05 / level at that look; NaN where there was no test.
        family: R at that look.
        waits: why the next look cannot be taken yet, such as runs that are missing.
    """

    state: Literal["starred", "equivalent", "open"] = "open"
    look: int = 0
    adjusted_p: float = math.nan
    family: int = 0
    waits: str = ""


@dataclass(frozen=True)
class Rounds:
    """All verdicts, and the seeds that each variant is to have now."""

    verdicts: Mapping[Key, Standing]
    seeds_of: Mapping[str, int]

    def why(self, variant: str) -> str:
        """What is decided of a variant, in one line."""
        texts = []
        for (name, metric), found in self.verdicts.items():
            if name == variant:
                at = f" at {found.look} seeds" if found.look else ""
                waits = f" ({found.waits})" if found.waits else ""
                texts.append(f"{metric} {found.state}{at}{waits}")
        return "; ".join(texts)


def of_outcomes(study: Study, found: Mapping[str, Outcome]) -> Rounds:
    """The rounds of a study whose runs came to `found`. The margin is in the metrics' printed unit."""
    assert study.rounds is not None
    outcomes = {name: found[name] for name in study.variants}
    values = {
        name: {metric: outcome.values(metric) for metric in study.metrics}
        for name, outcome in outcomes.items()
    }
    lost = {
        name: {run.seed for run in outcome.runs if run.state in _LOST}
        for name, outcome in outcomes.items()
    }
    margin = {
        name: study.rounds.margin / (100 if spec.unit == "%" else 1)
        for name, spec in study.metrics.items()
    }
    metrics, looks = list(study.metrics), study.rounds.looks
    return decide(values, study.baseline, metrics, study.seeds, looks, margin, lost)


def share(look: int, before: int, last: int) -> float:
    """The error that a look may make: 0.05 ((n/N)^2 - (n_before/N)^2)."""
    return ALPHA * ((look / last) ** 2 - (before / last) ** 2)


def decide(
    values: Values,
    baseline: str,
    metrics: Sequence[str],
    seeds: Sequence[int],
    looks: Sequence[int],
    margin: Mapping[str, float],
    lost: Mapping[str, Collection[int]] | None = None,
) -> Rounds:
    """Go through the looks as far as the runs allow.

    A look is taken when every variant that is still open, and the baseline, has all seeds of that look.
    A variant with a seed that ended without a result stays open and is trained no further; the others
    do not wait for it. Such a seed of the baseline ends the rounds.

    Args:
        values: of completed runs.
        margin: metric to the largest difference that counts as none, in the metric's own unit.
        lost: variant to seeds that ended without a result (diverged, failed, cancelled).
    """
    lost = lost or {}
    variants = [name for name in values if name != baseline]
    keys = [(variant, metric) for variant in variants for metric in metrics]
    verdicts = {key: Standing() for key in keys}
    seeds_of = {name: looks[0] for name in (*variants, baseline)}
    for look, before in zip(looks, (0, *looks), strict=False):
        drawn = set(seeds[:look])
        open_ones = [v for v in variants if any(verdicts[v, m].state == "open" for m in metrics)]
        for variant in open_ones:
            gone = sorted(drawn & {*lost.get(variant, ()), *lost.get(baseline, ())})
            if gone:
                text = f"seed {', '.join(map(str, gone))} ended without a result"
                _wait(verdicts, [(variant, metric) for metric in metrics], text)
        running = [v for v in open_ones if not drawn & set(lost.get(v, ()))]
        if not running or drawn & set(lost.get(baseline, ())):
            break
        for name in (*running, baseline):
            seeds_of[name] = look
        lacking = {
            (name, metric): len(drawn - values.get(name, {}).get(metric, {}).keys())
            for name in (*running, baseline)
            for metric in metrics
        }
        if any(lacking.values()):
            for variant, metric in ((v, m) for v in running for m in metrics):
                if missing := lacking[variant, metric] or lacking[baseline, metric]:
                    _wait(verdicts, [(variant, metric)], f"{missing} of {look} seeds not finished")
            break
        level = share(look, before, looks[-1])
        _look(verdicts, values, baseline, look, level, running, drawn, margin)
    return Rounds(verdicts, seeds_of)


def _wait(verdicts: dict[Key, Standing], keys: Sequence[Key], text: str) -> None:
    """Say why the open ones among `keys` get no further."""
    for key in keys:
        if verdicts[key].state == "open":
            verdicts[key] = replace(verdicts[key], waits=text)


def _look(
    verdicts: dict[Key, Standing],
    values: Values,
    baseline: str,
    look: int,
    level: float,
    running: Collection[str],
    drawn: set[int],
    margin: Mapping[str, float],
) -> None:
    """Judge the open differences of `running` by the seeds `drawn`; `verdicts` is changed."""
    family = sum(verdict.state != "starred" for verdict in verdicts.values())
    tested: list[tuple[float, Key]] = []
    for key in [key for key, v in verdicts.items() if v.state == "open" and key[0] in running]:
        variant, metric = key
        ours, base = (
            {seed: value for seed, value in values[name][metric].items() if seed in drawn}
            for name in (variant, baseline)
        )
        verdicts[key] = Standing(look=look, family=family)
        unit = stats.resolution(v for by in values.values() for v in by[metric].values())
        p = stats.paired(ours, base, unit).p
        tested += [] if math.isnan(p) else [(p, key)]
        if stats.equivalence(ours, base, margin[metric], unit=unit).shows(level):
            verdicts[key] = replace(verdicts[key], state="equivalent")
    scaled = [p * ALPHA / level for p, _ in tested]
    adjusted = stats.holm([*scaled, *[math.nan] * (family - len(tested))])
    for (_, key), p in zip(tested, adjusted, strict=False):
        verdicts[key] = replace(verdicts[key], adjusted_p=p)
        if p < ALPHA:
            verdicts[key] = replace(verdicts[key], state="starred")
