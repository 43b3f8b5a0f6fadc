"""Statements over the runs of a study, with the values and the run folders behind each.

A statement compares one value of two variants: `{value: rank1, of: soft, relation: below, than: topk,
plus: -0.3}` says that Rank-1 of soft lies below that of topk minus 30 points. The value is

    peak_loss      the largest mean training loss of an epoch
    final_loss     the mean training loss of the last epoch
    loss_of_epoch_4, for example
    a metric       at the last evaluation

A run that diverged has an infinite loss and the worst value of a metric (minus infinity where up is
better): it never counts as good, and it is never left out.

A statement about a mean is decided by the interval of its seed-wise differences. One about single runs
(`each_seed`) must be true in every seed, or false in every seed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import AfterValidator

from analysis.claims.verdicts import Statement, missing
from analysis.results.frames import results
from analysis.results.numbers import fixed, printed
from analysis.results.stats import Decision, decide
from sdtps.config.common import Frozen
from sdtps.system.errors import counted

if TYPE_CHECKING:
    from ablations.study.model import Study
    from analysis.runs.collect import Collected
    from analysis.runs.record import Run

LOSS = re.compile(r"peak_loss|final_loss|loss_of_epoch_([1-9]\d*)")
Text = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]


class Comparison(Frozen):
    """`value` of the variant `of` is above or below `times` that of `than` plus `plus`.

    `apart`: it differs from that of `than` by more than this bound does.
    """

    says: Text
    value: str
    of: str
    relation: Literal["above", "below", "apart"]
    than: str
    times: float = 1.0
    plus: float = 0.0
    over: Literal["mean", "each_seed"] = "mean"

    def decided(self, own: Sequence[float], other: Sequence[float], unit: float = 0.0) -> Decision:
        """The truth for the mean over seeds, by the interval of seed-wise differences.

        `apart` asks whether the difference is equivalent to 0 within the margin (two one-sided tests:
        no), or its interval lies outside (yes).

        Args:
            own, other: one value a seed, in the same order of seeds.
            unit: in which they were written (`stats.resolution`).
        """
        bounds = [self.times * value + self.plus for value in other]
        if self.relation == "apart":
            margins = [abs(bound - value) for bound, value in zip(bounds, other, strict=True)]
            shares = [(a - b) / m for a, b, m in zip(own, other, margins, strict=True)]
            within = decide(shares, 1.0, unit / min(margins))
            return within if within.holds is None else replace(within, holds=not within.holds)
        sign = 1 if self.relation == "above" else -1
        return decide([sign * (a - b) for a, b in zip(own, bounds, strict=True)], unit=unit)

    def true_of(self, own: float, other: float) -> bool | None:
        """The truth for one seed; None where both diverged: neither side is a number."""
        if not math.isfinite(own) and not math.isfinite(other):
            return None
        bound = self.times * other + self.plus
        if self.relation == "apart":
            return abs(own - other) > abs(bound - other)
        return own >= bound if self.relation == "above" else own < bound


@dataclass(frozen=True)
class Side:
    """A variant's finished runs by seed, and the value of each."""

    label: str
    runs: Mapping[int, Run]
    values: Mapping[int, float]


def side(collected: Collected, study: Study, variant: str, value: str) -> Side:
    """What a statement reads of a variant: infinite where a run diverged, NaN where it has no value."""
    runs = {
        run.seed: run
        for run in collected.runs_of(study.name)
        if run.variant == variant and run.state in ("completed", "diverged")
    }
    read = {seed: _read(collected, study, run, value) for seed, run in runs.items()}
    return Side(study.variants[variant].label, runs, read)


def _read(collected: Collected, study: Study, run: Run, value: str) -> float:
    if run.state == "diverged":
        up = value in study.metrics and study.metrics[value].direction == "up"
        return -math.inf if up else math.inf
    loss = LOSS.fullmatch(value)
    if loss is None:
        found = results(collected, study).get(run.variant, value)
        return found.values.get(run.seed, math.nan)
    # The trainer writes an epoch's mean over all steps; logs from elsewhere hold single steps only.
    losses = run.rows.by_epoch("epoch_loss")
    losses = losses if len(losses) else run.rows.by_epoch("loss")
    if len(losses) < int(loss[1] or 1):
        return math.nan
    losses = np.where(np.isfinite(losses), losses, math.inf)
    return float(losses.max() if value == "peak_loss" else losses[int(loss[1] or 0) - 1])


def mistakes(study: Study, claimed: Comparison) -> list[str]:
    """The variants and the metric that the study does not have."""
    unknown = [name for name in (claimed.of, claimed.than) if name not in study.variants]
    text = [f"ablations/{study.name}.yaml has no variant {name}" for name in unknown]
    if not LOSS.fullmatch(claimed.value) and claimed.value not in study.metrics:
        text.append(f"{study.name} declares no metric {claimed.value}")
    return text


def seeds_of(collected: Collected, study: Study, claimed: Comparison) -> list[int]:
    """Seeds that finished in both variants; none where the study lacks one of them."""
    if mistakes(study, claimed):
        return []
    own, other = (side(collected, study, name, claimed.value) for name in (claimed.of, claimed.than))
    return [seed for seed in study.seeds if seed in own.runs and seed in other.runs]


def statement(collected: Collected, study: Study, claimed: Comparison) -> Statement:
    """Whether the runs show what is claimed of them."""
    command = f"sdtps submit {study.path}"
    if wrong := mistakes(study, claimed):
        return missing("; ".join(wrong))
    seeds = seeds_of(collected, study, claimed)
    if not seeds:
        return missing(f"finished runs: {command}")
    names = list(dict.fromkeys((claimed.of, claimed.than)))
    sides = [side(collected, study, name, claimed.value) for name in names]
    own, other = ([s.values[seed] for seed in seeds] for s in (sides[0], sides[-1]))
    runs = [s.runs[seed] for s in sides for seed in seeds]

    def answer(holds: bool | None, why: str = "") -> Statement:
        return Statement(
            claimed.says,
            holds,
            "; ".join(
                f"{_named(study, claimed.value)} of {s.label}: "
                + " / ".join(_shown(study, claimed.value, s.values[seed]) for seed in seeds)
                for s in sides
            ),
            numbers={
                f"{claimed.value} of {name}, seed {seed}": _word(s.values[seed]) or s.values[seed]
                for name, s in zip(names, sides, strict=True)
                for seed in seeds
            },
            runs=tuple(run.where for run in runs),
            why=why,
            study=study.name,
            seeds=len(seeds),
            generated=all(run.generated_data for run in runs),
        )

    if absent := [seed for seed in study.seeds if seed not in seeds]:
        return answer(None, f"seeds {absent} of {', '.join(names)} are not finished: {command}")
    if any(map(math.isnan, (*own, *other))):
        return answer(None, f"some runs logged no {claimed.value}")
    if claimed.over == "mean":
        measured = names if claimed.value in study.metrics else []
        found = results(collected, study)
        unit = max((found.get(name, claimed.value).unit for name in measured), default=0.0)
        decision = claimed.decided(own, other, unit)
        why = f"{counted(len(seeds), 'seed')} cannot tell: {decision.why}" if decision.why else ""
        return answer(decision.holds, why)
    truths = list(map(claimed.true_of, own, other))
    if None in truths:
        return answer(None, "both sides of the comparison diverged")
    if len(set(truths)) > 1:
        return answer(None, f"true in {truths.count(True)} of {len(truths)} seeds: {claimed.says}")
    return answer(truths[0])


def _named(study: Study, value: str) -> str:
    """A value in words, for a reader: `final Rank-1 (%)`."""
    if value not in study.metrics:
        return value.replace("_", " ")
    metric = study.metrics[value]
    return f"final {metric.label or value}" + (f" ({metric.unit})" if metric.unit else "")


def _shown(study: Study, value: str, number: float) -> str:
    """A value in the unit and with the digits that the manifest says."""
    if word := _word(number):
        return word
    return printed(number, study.metrics[value]) if value in study.metrics else fixed(number, 2)


def _word(value: float) -> str:
    """What stands for a number that is none; empty for one."""
    if math.isfinite(value):
        return ""
    return "not logged" if math.isnan(value) else "diverged"
