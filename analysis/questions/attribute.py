"""`sdtps attribute`: which of the changes between two variants did it, from the cells' runs.

The cells are planned in `ablations.study.attribution`, judged in `analysis.results.attribution`; here
their runs are read, missing ones submitted, and the answer is put into words, a table and a picture.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.study.arguments import add_study
from ablations.study.attribution import Attribution, Cell, Changes, design
from ablations.study.model import as_written
from ablations.study.schema import AttributionSpec, MetricSpec
from analysis.results import numbers
from analysis.results.attribution import SEEDS_OF_A_CELL, Effects, Search, effects, majority, search
from analysis.results.stats import Interval
from analysis.runs.collect import collect
from analysis.runs.record import Run
from analysis.tables import model
from analysis.tables.model import Column, Row, Table
from sdtps.system.commandline import add_json, add_runs_dir
from sdtps.system.errors import counted

if TYPE_CHECKING:
    from ablations.study.model import Study

EXPLODES_AT = 2.0  # times the good end's peak loss


@dataclass(frozen=True)
class Answer:
    """An attribution with its runs.

    Attributes:
        runs: cell's name to its runs, of the cells that are run.
        found: of a search by explosions; None for a graded attribution.
    """

    attribution: Attribution
    metric: MetricSpec
    runs: dict[str, list[Run]]
    found: Search | None = None

    @property
    def study(self) -> Study:
        return self.attribution.study

    @property
    def spec(self) -> AttributionSpec:
        return self.attribution.spec

    @cached_property
    def metric_name(self) -> str:
        return next(iter(self.study.metrics))

    def runs_of(self, cell: Cell) -> list[Run]:
        return self.runs.get(cell.equals or cell.name, [])

    def values(self, cell: Cell) -> dict[int, float]:
        """Seed to the metric at the last epoch, of completed runs."""
        scores = ((run.seed, run.last) for run in self.runs_of(cell) if run.state == "completed")
        return {seed: last[self.metric_name] for seed, last in scores if self.metric_name in last}

    @cached_property
    def effects(self) -> Effects:
        """What each setting does at both ends. Of a search: only the cells that it looked at."""
        cells = {c.changes: self.values(c) for c in self.attribution.cells if not c.impossible}
        networks = {c.changes: c.equals or c.name for c in self.attribution.cells if not c.impossible}

        def equal(one: Changes, other: Changes) -> bool:
            return one in networks and networks.get(one) == networks.get(other)

        return effects(list(self.attribution.changes), cells, len(self.study.seeds), equal)

    @property
    def missing(self) -> int:
        """Runs that have not ended."""
        ended = ("completed", "diverged", "failed", "cancelled")
        return sum(run.state not in ended for runs in self.runs.values() for run in runs)

    @property
    def decided(self) -> bool:
        return not self.missing and not (self.found and self.found.needed)


def answers(study: Study, runs_dir: Path) -> list[Answer]:
    """Every attribution of the manifest, as far as it has runs."""
    return [answer(study, spec, runs_dir) for spec in study.attributions]


def answer(study: Study, spec: AttributionSpec, runs_dir: Path) -> Answer:
    """The attribution of two variants of `study` with the runs that there are."""
    if spec.explodes:
        return _explore(study, spec, runs_dir)
    return _with_runs(study, design(study, spec), runs_dir, curves=False)


def _with_runs(study: Study, planned: Attribution, runs_dir: Path, *, curves: bool) -> Answer:
    collected = collect([planned.study], runs_dir, curves=curves)
    runs: dict[str, list[Run]] = {name: [] for name in planned.study.variants}
    for run in collected.runs_of(planned.study.name):
        runs.setdefault(run.variant, []).append(run)
    return Answer(planned, next(iter(planned.study.metrics.values())), runs)


def _explore(study: Study, spec: AttributionSpec, runs_dir: Path) -> Answer:
    """The search, replayed from the runs; its cells are those that it has asked for so far."""
    spec = replace_seeds(spec)
    ends = design(study, spec)
    every = frozenset(ends.changes)
    sets: list[Changes] = [frozenset(), every]
    while True:
        found = _with_runs(study, design(study, spec, sets), runs_dir, curves=True)
        result = search(list(ends.changes), _exploding(found))
        if not (new := [cell for cell in result.needed if cell not in sets]):
            return replace(found, found=result)
        sets += new


def replace_seeds(spec: AttributionSpec) -> AttributionSpec:
    """A search takes the first three seeds of each cell."""
    return spec.model_copy(update={"seeds": spec.seeds[:SEEDS_OF_A_CELL]})


def _exploding(found: Answer) -> Any:
    """Changes to whether most seeds explode; None where that is open."""
    good = found.attribution.cell(frozenset())
    assert good is not None
    peaks = [peak for run in found.runs_of(good) if (peak := _peak_loss(run)) is not None]
    limit = EXPLODES_AT * sum(peaks) / len(peaks) if peaks else None

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
            elif run.state == "completed" and limit is not None:
                peak = _peak_loss(run)
                outcomes.append(peak is None or (peak >= limit and bool(changes)))
        return majority(outcomes)

    return explodes


def _peak_loss(run: Run) -> float | None:
    """The largest training loss; None where it was not finite or not logged."""
    _, values = run.rows.series("train", "loss")
    finite = [float(v) for v in values if math.isfinite(v)]
    return max(finite) if finite and len(finite) == len(values) else None


# -- in words -----------------------------------------------------------------------------------


def sentences(found: Answer) -> list[str]:
    """The answer in plain sentences: what is decided, and what is not."""
    if found.found is not None:
        return _of_search(found, found.found)
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


def _share(found: Answer, change: str) -> str:
    share = found.effects.shares.get(change)
    if share is None:
        return ""
    alone, others, interaction, whole = (
        _with_interval(value, found.metric)
        for value in (share.alone, share.others, share.interaction, share.whole)
    )
    z = share.interaction[1]
    told = "" if z is not None and (z.low > 0 or z.high < 0) else " (not distinguishable from none)"
    unit = f" {found.metric.unit}" if found.metric.unit else ""
    return (
        f"Alone it accounts for {alone} of {whole}{unit}, the other changes alone for {others}; "
        f"their interaction is {interaction}{told}."
    )


def _with_interval(value: tuple[float, Interval | None], metric: MetricSpec) -> str:
    number, interval = value
    if math.isnan(number):
        return "an unknown part"
    text = numbers.printed_signed(number, metric)
    if interval is None:
        return text
    low, high = (numbers.printed_signed(v, metric) for v in (interval.low, interval.high))
    return f"{text} [{low}, {high}]"


def _of_search(found: Answer, result: Search) -> list[str]:
    if result.refusal:
        return [f"There is nothing to search for: {result.refusal}."]
    if result.needed:
        names = [_name(found, changes) for changes in result.needed]
        return [f"Not decided yet: {counted(len(names), 'cell')} to run ({', '.join(names)})."]
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


def _name(found: Answer, changes: Changes) -> str:
    cell = found.attribution.cell(changes)
    return cell.name if cell else "+".join(sorted(changes))


# -- as a table ---------------------------------------------------------------------------------


def table(found: Answer) -> Table:
    """The cells: a check mark for each change that a cell has, its metric, and how it differs."""
    changes, metric = found.attribution.changes, found.metric
    label = metric.label or found.metric_name
    ends = [key.rpartition(".")[2] for key in changes]
    columns = [
        Column("cell", "Cell", align="l"),
        *(
            Column(key, f"{end} = {as_written(changes[key][1])}")
            for key, end in zip(changes, ends, strict=True)
        ),
        Column(found.metric_name, label, unit=metric.unit, direction=metric.direction),
    ]
    if found.found is not None:
        columns.append(Column("explodes", "Explodes"))
    explodes = _exploding(found) if found.found is not None else None
    rows = []
    for cell in found.attribution.cells:
        marks = tuple(model.check(key in cell.changes) for key in changes)
        cells = (model.text(cell.name), *marks, _score(found, cell))
        if explodes is not None:
            outcome = {True: "yes", False: "no", None: "--"}[explodes(cell.changes)]
            cells = (*cells, model.text(outcome))
        rows.append(Row(cell.name, cells))
    seeds = len(found.study.seeds)
    caption: tuple[str, ...] = (
        f"Cells between {found.spec.good} and {found.spec.broken}: which changes each has.",
        f"Mean and sample standard deviation over {counted(seeds, 'seed')}, last epoch.",
    )
    if found.found is None:
        family = 2 * len(changes)
        caption += (
            f"Each change is tested at both ends (Welch, moderated variances, Holm over {family}; "
            "normally distributed seeds are assumed).",
        )
    return Table(
        name=f"{found.study.name}-cells",
        study=found.attribution.parent,
        title="",
        columns=tuple(columns),
        rows=tuple(rows),
        caption=caption,
        notes=tuple(sentences(found)),
    )


def _score(found: Answer, cell: Cell) -> model.Cell:
    if cell.impossible:
        return model.Cell("state", "cannot exist")
    if cell.equals:
        return model.Cell("state", f"equals {cell.equals}")
    values, runs = found.values(cell), found.runs_of(cell)
    where = tuple(run.where for run in runs)
    if not values:
        states = list(dict.fromkeys(run.word for run in runs))
        return model.Cell("state", "; ".join(states) or "not run", runs=where)
    mean = sum(values.values()) / len(values)
    spread = None
    if len(values) > 1:
        square = sum((v - mean) ** 2 for v in values.values()) / (len(values) - 1)
        spread = numbers.printed(math.sqrt(square), found.metric)
    short = f"{len(values)}/{len(runs)}" if len(values) < len(runs) else None
    return model.Cell(
        "number",
        numbers.printed(mean, found.metric),
        spread=spread,
        note=short,
        value=mean,
        metric=found.metric_name,
        runs=where,
        seeds=tuple(sorted(values.items())),
    )


def as_json(found: Answer) -> dict[str, Any]:
    """The answer with numbers, for scripts."""
    result = found.effects
    return {
        "study": found.attribution.parent,
        "cells_study": found.study.name,
        "good": found.spec.good,
        "broken": found.spec.broken,
        "metric": found.metric_name,
        "decided": found.decided,
        "missing_runs": found.missing,
        "changes": {key: list(values) for key, values in found.attribution.changes.items()},
        "cells": [
            {
                "name": cell.name,
                "changes": sorted(cell.changes),
                "equals": cell.equals or None,
                "impossible": cell.impossible or None,
                "values": found.values(cell),
                "states": [run.state for run in found.runs_of(cell)],
            }
            for cell in found.attribution.cells
        ],
        "effects": None
        if found.found is not None
        else [
            {
                "change": effect.change,
                "end": effect.end,
                "difference": None if math.isnan(effect.difference) else effect.difference,
                "interval": None
                if effect.interval is None
                else [effect.interval.low, effect.interval.high],
                "p": effect.p,
                "adjusted_p": effect.adjusted_p,
                "starred": effect.starred,
                "untested": effect.untested or None,
            }
            for effect in result.effects
        ],
        "patterns": None
        if found.found is not None
        else {change: result.pattern(change) for change in found.attribution.changes},
        "named": [sorted(s) for s in found.found.named]
        if found.found is not None
        else list(result.named),
        "sentences": sentences(found),
    }


# -- the verb -----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    parser.add_argument("good", nargs="?", metavar="GOOD", help="variant [the manifest's attributions]")
    parser.add_argument("broken", nargs="?", metavar="BROKEN", help="variant that differs from it")
    parser.add_argument("--metric", metavar="NAME", help="whose difference is explained [the first]")
    parser.add_argument(
        "--explodes",
        action="store_true",
        help="search for what makes training diverge, or its loss peak at twice the good end's",
    )
    parser.add_argument(
        "--submit", action="store_true", help="submit the runs that are missing, until it is decided"
    )
    parser.add_argument(
        "--executor", choices=("auto", "slurm", "local"), default="auto", help="as for submit [auto]"
    )
    add_runs_dir(parser)
    add_json(parser)


def command(arguments: argparse.Namespace) -> int:
    """0: decided. 1: runs are missing."""
    from ablations.study.manifest import load_study
    from sdtps.system.errors import ManifestError

    study = load_study(arguments.study)
    if (arguments.good is None) != (arguments.broken is None):
        raise ManifestError("name both variants, the good one and the broken one, or neither")
    specs: Sequence[AttributionSpec] = study.attributions
    if arguments.good is not None:
        declared = [s for s in specs if (s.good, s.broken) == (arguments.good, arguments.broken)]
        first = (
            declared[0] if declared else AttributionSpec(good=arguments.good, broken=arguments.broken)
        )
        changes: dict[str, Any] = {"explodes": arguments.explodes or first.explodes}
        if arguments.metric:
            if arguments.metric not in study.metrics:
                listed = ", ".join(study.metrics)
                raise ManifestError(f"'{arguments.metric}' is not a metric of the study: {listed}")
            changes["metric"] = arguments.metric
        specs = [first.model_copy(update=changes)]
    if not specs:
        raise ManifestError(
            f"{study.path} declares no attributions: name two variants, such as "
            f"sdtps attribute {study.name} {study.baseline} OTHER"
        )
    runs_dir = Path(arguments.runs_dir)
    found = [answer(study, spec, runs_dir) for spec in specs]
    if arguments.submit:
        found = [_run_until_decided(study, one, arguments) for one in found]
    if arguments.json:
        print(json.dumps([as_json(one) for one in found], indent=2))
    else:
        for one in found:
            _print(one, arguments)
    return 0 if all(one.decided for one in found) else 1


def _print(found: Answer, arguments: argparse.Namespace) -> None:
    from analysis.commands import console
    from analysis.tables.forms import to_terminal

    out = console()
    out.print(to_terminal(table(found)))
    if not found.decided and not arguments.submit:
        words = f"sdtps attribute {found.attribution.parent} {found.spec.good} {found.spec.broken}"
        flag = " --explodes" if found.spec.explodes else ""
        out.print(f"{counted(found.missing, 'run')} missing. To run them: {words}{flag} --submit")


def _run_until_decided(study: Study, found: Answer, arguments: argparse.Namespace) -> Answer:
    """Submit the cells that are missing. Locally this waits, and goes on with the next cells."""
    while not found.decided:
        before = found.missing
        code = _submit(found, arguments)
        found = answer(study, found.spec, Path(arguments.runs_dir))
        if code not in (0, 1) or found.missing >= before:
            return found  # refused, or on SLURM: a job that follows them goes on
    return found


def _submit(found: Answer, arguments: argparse.Namespace) -> int:
    """`sdtps submit` of the cells, as a process: analysis starts no runs by itself."""
    cells = {
        "good": found.spec.good,
        "broken": found.spec.broken,
        "metric": found.metric_name,
        "seeds": list(found.study.seeds),
        "sets": [sorted(cell.changes) for cell in found.attribution.cells],
    }
    words = [sys.executable, "-m", "ablations", "submit", str(arguments.study)]
    words += ["--cells", json.dumps(cells), "--executor", arguments.executor]
    words += ["--runs-dir", str(arguments.runs_dir)]
    if found.found is not None and arguments.executor != "local":
        again = ["sdtps", "attribute", str(arguments.study), found.spec.good, found.spec.broken]
        again += ["--explodes", "--submit", "--executor", arguments.executor]
        again += ["--runs-dir", str(arguments.runs_dir)]
        import shlex

        words += ["--then", shlex.join(again)]
    return subprocess.run(words, stdout=sys.stderr, check=False).returncode
