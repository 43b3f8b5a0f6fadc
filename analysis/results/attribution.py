"""An attribution with its runs: the cells between two variants, what they came to, and in words.

The cells are planned in `ablations.study.attribution` and judged in `analysis.results.effects`.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ablations.study.attribution import Attribution, Cell, Changes, design
from ablations.study.model import slug
from ablations.study.schema import AttributionSpec, MetricSpec
from analysis.results import numbers
from analysis.results.effects import SEEDS_OF_A_CELL, Effects, Search, effects, majority, search
from analysis.results.outcomes import Outcome, outcomes
from analysis.results.stats import Summary
from analysis.runs.collect import Collected, collect
from analysis.runs.record import Run
from sdtps.system.errors import counted

if TYPE_CHECKING:
    from ablations.study.model import Study

EXPLODES_AT = 2.0  # times the good end's peak loss


@dataclass(frozen=True)
class Attributed:
    """An attribution with its runs.

    Attributes:
        collected: the runs of its cells.
        search: of a search by explosions; None for a graded attribution.
    """

    attribution: Attribution
    collected: Collected
    search: Search | None = None

    @property
    def study(self) -> Study:
        return self.attribution.study

    @property
    def spec(self) -> AttributionSpec:
        return self.attribution.spec

    @property
    def name(self) -> str:
        """What the files of its table and figure are called."""
        return f"{self.attribution.parent}-{slug(self.spec.good)}-{slug(self.spec.broken)}"

    @cached_property
    def metric_name(self) -> str:
        return next(iter(self.study.metrics))

    @property
    def metric(self) -> MetricSpec:
        return self.study.metrics[self.metric_name]

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """Cell's name to what its runs came to, of the cells that are run."""
        return outcomes(self.collected, self.study)

    @property
    def runs(self) -> list[Run]:
        return [run for outcome in self.outcomes.values() for run in outcome.runs]

    def runs_of(self, cell: Cell) -> tuple[Run, ...]:
        return () if cell.impossible else self.outcomes[cell.equals or cell.name].runs

    def values(self, cell: Cell) -> dict[int, float]:
        """Seed to the metric at the last epoch, of completed runs."""
        if cell.impossible:
            return {}
        return self.outcomes[cell.equals or cell.name].values(self.metric_name)

    @cached_property
    def effects(self) -> Effects:
        """What each setting does at both ends. Of a search: only the cells that it looked at."""
        cells = {c.changes: self.values(c) for c in self.attribution.cells if not c.impossible}
        networks = {c.changes: c.equals or c.name for c in self.attribution.cells if not c.impossible}

        def equal(one: Changes, other: Changes) -> bool:
            return one in networks and networks.get(one) == networks.get(other)

        return effects(list(self.attribution.changes), cells, len(self.study.seeds), equal)

    @property
    def missing(self) -> list[str]:
        """Runs that have not ended."""
        ended = ("completed", "diverged", "failed", "cancelled")
        return [run.where for run in self.runs if run.state not in ended]

    @property
    def as_submitted(self) -> dict[str, Any]:
        """The cells as `sdtps submit --cells` takes them."""
        sets = [sorted(cell.changes) for cell in self.attribution.cells]
        return {**self.spec.model_dump(mode="json"), "sets": sets}

    @property
    def decided(self) -> bool:
        return not self.missing and not (self.search and self.search.needed)


def started(collected: Collected, study: Study) -> list[Attributed]:
    """The manifest's attributions that have runs; read once for each `collected`, and kept there."""
    every = collected.once(
        ("attributions", study.name),
        lambda: [attribute(study, spec, collected.runs_dir) for spec in study.attributions],
    )
    return [found for found in every if any(run.state != "planned" for run in found.runs)]


def attribute(study: Study, spec: AttributionSpec, runs_dir: Path) -> Attributed:
    """The attribution of two variants of `study` with the runs that there are."""
    if spec.explodes:
        return _explore(study, spec, runs_dir)
    planned = design(study, spec)
    return Attributed(planned, collect([planned.study], runs_dir, curves=False))


def _explore(study: Study, spec: AttributionSpec, runs_dir: Path) -> Attributed:
    """The search, replayed from the first three seeds; its cells are those asked for so far."""
    spec = spec.model_copy(update={"seeds": spec.seeds[:SEEDS_OF_A_CELL]})
    ends = design(study, spec)
    every = frozenset(ends.changes)
    sets: list[Changes] = [frozenset(), every]
    while True:
        planned = design(study, spec, sets)
        found = Attributed(planned, collect([planned.study], runs_dir))
        result = search(list(ends.changes), exploding(found))
        if not (new := [cell for cell in result.needed if cell not in sets]):
            return replace(found, search=result)
        sets += new


def exploding(found: Attributed) -> Callable[[Changes], bool | None]:
    """Changes to whether most seeds explode; None where that is open."""
    good = found.attribution.cell(frozenset())
    assert good is not None
    peaks = [peak for run in found.runs_of(good) if math.isfinite(peak := _peak_loss(run))]
    limit = EXPLODES_AT * fmean(peaks) if peaks else None

    def explodes(changes: Changes) -> bool | None:
        cell = found.attribution.cell(changes)
        if cell is None:
            return None
        if cell.impossible:
            return False
        outcomes = []
        for run in found.runs_of(cell):
            if run.state == "diverged":
                outcomes.append(True)
            elif run.state == "completed":
                peak = _peak_loss(run)
                if limit is not None or not math.isfinite(peak):
                    outcomes.append(peak == math.inf or (peak >= (limit or 0.0) and bool(changes)))
        return majority(outcomes)

    return explodes


def _peak_loss(run: Run) -> float:
    """The largest training loss; infinite where one was not finite, NaN where none was logged."""
    _, values = run.rows.series("train", "loss")
    return max((float(v) if math.isfinite(v) else math.inf for v in values), default=math.nan)


# -- in words -----------------------------------------------------------------------------------


def sentences(found: Attributed) -> list[str]:
    """The answer in plain sentences: what is decided, and what is not."""
    if found.search is not None:
        return _of_search(found, found.search)
    lines = []
    result, names = found.effects, found.attribution.changes
    for change in names:
        ends = result.of(change)
        pattern = result.pattern(change)
        if pattern == "none":
            equal = [end for end, effect in ends.items() if effect.untested]
            why = " (it does nothing there by construction)" if len(equal) == 2 else ""
            lines.append(f"{change}: no effect is shown at either end{why}.")
        elif pattern == "open":
            why = "; ".join(dict.fromkeys(e.untested for e in ends.values() if e.untested))
            lines.append(f"{change}: cannot be told ({why}).")
        else:
            lines.append(f"{change} {_PATTERNS[pattern]}. {_share(found, change)}")
    together = [c for c in names if result.pattern(c) == "with another"]
    if len(together) > 1:
        listed = " and ".join(together)
        lines.insert(0, f"{listed} act together: taking back either one restores the result.")
    either = [c for c in names if result.pattern(c) == "either"]
    if len(either) > 1:
        lines.insert(0, f"Either of {' and '.join(either)} suffices: taking back one changes nothing.")
    return lines


_PATTERNS = {
    "alone": "acts by itself",
    "with another": "acts only with another change",
    "either": "suffices by itself, but another change does the same",
}


def _share(found: Attributed, change: str) -> str:
    share = found.effects.shares.get(change)
    if share is None:
        return ""
    alone, others, interaction, whole = (_with_interval(value, found.metric) for value in share)
    z = share.interaction
    told = "" if z.low > 0 or z.high < 0 else " (not distinguishable from none)"
    unit = {"%": " points", "": ""}.get(found.metric.unit, f" {found.metric.unit}")
    return (
        f"Alone it accounts for {alone} of {whole}{unit}, the other changes alone for {others}; "
        f"their interaction is {interaction}{told}."
    )


def _with_interval(value: Summary, metric: MetricSpec) -> str:
    texts = [
        "" if math.isnan(number) else numbers.printed_signed(number, metric)
        for number in (value.mean, value.low, value.high)
    ]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if texts[1] else texts[0]


def _of_search(found: Attributed, result: Search) -> list[str]:
    if result.refusal:
        return [f"There is nothing to search for: {result.refusal}."]
    if result.needed:
        names = [_name(found, changes) for changes in result.needed]
        failed = [run.where for run in found.runs if run.state in ("failed", "cancelled")]
        budget = found.study.gpu_hours
        within = "" if budget is None else f", as far as the budget of {budget:g} GPU-hours goes"
        told = f"Not decided yet: {counted(len(names), 'cell')} to run ({', '.join(names)}){within}."
        if not failed:
            return [told]
        words = ["retry", found.attribution.parent, "--failed", "--cancelled", "--cells"]
        again = shlex.join([*words, json.dumps(found.as_submitted)])
        runs = counted(len(failed), "run")
        return [told, f"{runs} of its cells failed: {', '.join(failed)}. Again: sdtps {again}"]
    sets = [" and ".join(c for c in found.attribution.changes if c in s) for s in result.named]
    inert = [c for c in found.attribution.changes if not any(c in s for s in result.named)]
    lines = []
    if len(sets) == 1:
        together = " together" if len(result.named[0]) > 1 else ""
        lines.append(f"{sets[0]}{together} make training explode; no smaller set of changes does.")
    else:
        lines.append(f"Each of these makes training explode by itself: {'; '.join(sets)}.")
    if inert:
        lines.append(f"Inert: {', '.join(inert)}: on their own they do not make it explode.")
    return lines


def _name(found: Attributed, changes: Changes) -> str:
    cell = found.attribution.cell(changes)
    return cell.name if cell else "+".join(sorted(changes))
