"""Statements over the runs of a study, with the values and the run folders behind each.

A statement about a mean is decided by the interval of its seed-wise differences. One about single runs
(`each_seed`) must be true in every seed, or false in every seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from analysis.claims.expressions import Call, Expression
from analysis.claims.verdicts import Statement, missing
from analysis.results.frames import results
from analysis.results.numbers import fixed, printed
from sdtps.errors import counted

if TYPE_CHECKING:
    from analysis.runs.collect import Collected


class StudyRuns:
    """What expressions can read of one study's runs."""

    def __init__(self, collected: Collected, study: str) -> None:
        self.collected = collected
        self.study = collected.study(study)
        self.command = f"sdtps submit {self.study.path}"
        runs = collected.runs_of(study)
        self._runs = {(r["variant"], r["seed"]): r for r in runs.to_dict("records")}

    def mistakes(self, expression: Expression) -> list[str]:
        """Variants and metrics that the study does not have."""
        unknown = sorted({c.variant for c in expression.calls} - set(self.study.variants))
        text = [f"ablations/{self.study.name}.yaml has no variant {name}" for name in unknown]
        metrics = {c.words[1] for c in expression.calls if len(c.words) == 2}
        allowed = set(self.study.metrics)
        return text + [f"{self.study.name} declares no metric {m}" for m in sorted(metrics - allowed)]

    def finished(self, variant: str, seed: int) -> bool:
        run = self._runs.get((variant, seed))
        return run is not None and run["state"] in ("completed", "diverged")

    def diverged(self, variant: str, seed: int) -> bool:
        return self._runs[variant, seed]["state"] == "diverged"

    def folder(self, variant: str, seed: int) -> str:
        return str(self._runs[variant, seed]["where"])

    def read(self, call: Call, seed: int) -> float:
        """The value of a call for one seed: infinite where the run diverged, NaN where it has none."""
        if call.function in ("peak_loss", "final_loss"):
            if self.diverged(call.variant, seed):
                return math.inf
            losses = self.epoch_losses(call.variant, seed)
            if not len(losses):
                return math.nan
            return float(losses.max() if call.function == "peak_loss" else losses[-1])
        metric = call.words[1]
        if self.diverged(call.variant, seed):
            return -math.inf if self.study.metrics[metric].direction == "up" else math.inf
        epoch: Literal["last", "best"] = "last" if call.function == "final" else "best"
        result = results(self.collected, self.study).get(call.variant, metric, epoch)
        return result.values.get(seed, math.nan)

    def named(self, call: Call) -> str:
        """A call in words, for a reader: `final Rank-1 of Top-K`."""
        label = self.study.variants[call.variant].label
        if len(call.words) == 1:
            return f"{call.function.replace('_', ' ')} of {label}"
        metric = self.study.metrics[call.words[1]]
        unit = f" ({metric.unit})" if metric.unit else ""
        return f"{call.function} {metric.label or call.words[1]}{unit} of {label}"

    def shown(self, call: Call, values: Sequence[float]) -> str:
        """Values of the seeds in the unit and with the digits that the manifest says."""
        metric = None if len(call.words) == 1 else self.study.metrics[call.words[1]]

        def one(value: float) -> str:
            if not math.isfinite(value):
                return _word(value)
            return fixed(value, 2) if metric is None else printed(value, metric)

        return " / ".join(map(one, values))

    def epoch_losses(self, variant: str, seed: int) -> np.ndarray:
        """Mean training loss of each epoch, in order; a non-finite loss makes it infinite.

        The trainer writes an epoch's mean over all steps; logs from elsewhere hold single steps only.
        """
        losses = self._by_epoch(variant, seed, "epoch_loss")
        if not len(losses):
            losses = self._by_epoch(variant, seed, "loss")
        return np.where(np.isfinite(losses), losses, math.inf)

    def _by_epoch(self, variant: str, seed: int, metric: str) -> np.ndarray:
        rows = self.collected.rows_of(self.study.name, variant, "train", metric)
        by_epoch = rows[rows["seed"] == seed].groupby("epoch")["value"]
        return by_epoch.agg(lambda v: v.mean(skipna=False)).sort_index().to_numpy()


def has_data(runs: StudyRuns, expression: Expression) -> bool:
    """Whether the study has the variants and metrics, and a seed that finished in each variant."""
    if runs.mistakes(expression):
        return False
    variants = {call.variant for call in expression.calls}
    return any(all(runs.finished(v, s) for v in variants) for s in runs.study.seeds)


def statement(runs: StudyRuns, says: str, expression: Expression, over: str) -> Statement:
    """Evaluate one expression.

    Args:
        over: `mean` (decided by intervals) or `each_seed` (true or false in every seed, else open).
    """
    mistakes = runs.mistakes(expression)
    if mistakes:
        return missing("; ".join(mistakes))
    variants = list(dict.fromkeys(call.variant for call in expression.calls))
    planned = list(runs.study.seeds)
    seeds = [s for s in planned if all(runs.finished(v, s) for v in variants)]
    if not seeds:
        return missing(f"{runs.command} (no run has finished)")
    values = {call: [runs.read(call, seed) for seed in seeds] for call in expression.calls}
    folders = tuple(runs.folder(v, s) for v in variants for s in seeds)
    numbers = {
        f"{call}, seed {s}": _plain(value)
        for call, row in values.items()
        for s, value in zip(seeds, row, strict=True)
    }
    measured = "; ".join(f"{runs.named(call)}: {runs.shown(call, row)}" for call, row in values.items())

    def answer(holds: bool | None, why: str = "") -> Statement:
        name = runs.study.name
        return Statement(says, holds, measured, numbers=numbers, runs=folders, why=why, study=name)

    if len(seeds) < len(planned):
        absent = [s for s in planned if s not in seeds]
        return answer(None, f"seeds {absent} of {', '.join(variants)} are not finished: {runs.command}")
    unlogged = [str(call) for call, row in values.items() if any(map(math.isnan, row))]
    if unlogged:
        return answer(None, f"some runs logged no {', '.join(unlogged)}")
    if over == "mean":
        decision = expression.decided(values)
        why = f"{counted(len(seeds), 'seed')} cannot tell: {decision.why}" if decision.why else ""
        return answer(decision.holds, why)
    truths = [
        _truth(expression, lambda call, i=i: values[call][i])  # type: ignore[misc]
        for i in range(len(seeds))
    ]
    if any(t is None for t in truths):
        return answer(None, "both sides of the comparison diverged")
    if len(set(truths)) > 1:
        return answer(None, f"true in {sum(map(bool, truths))} of {len(truths)} seeds: {says}")
    return answer(truths[0])


def _truth(expression: Expression, read: Callable[[Call], float]) -> bool | None:
    """None where two infinities would be compared: neither side is a number."""
    if sum(not math.isfinite(read(call)) for call in expression.calls) > 1:
        return None
    return expression.value(read)


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else _word(value)


def _word(value: float) -> str:
    return "not logged" if math.isnan(value) else "diverged"
