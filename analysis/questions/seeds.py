"""`sdtps seeds`: how many seeds settle each difference, what they cost, and where seeds cannot help."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from analysis import verbs
from analysis.results import power
from analysis.results.frames import Result, Results, results, standing
from analysis.results.numbers import fixed, in_unit, printed_signed
from analysis.results.outcomes import cost
from analysis.results.queries import by_query
from sdtps.system.commandline import add_json, add_runs_dir, positive
from sdtps.system.errors import counted

if TYPE_CHECKING:
    from ablations.study.model import Study


@dataclass(frozen=True)
class Plan:
    """One difference: what is known, and what would settle it.

    Attributes:
        now: starred, equivalent, narrow enough, open or not tested. difference: text with its unit.
        seeds: in all, for 80 % on average; None where it is decided, or more than `power.MOST`.
        hours: GPU-hours of the seeds that are missing, of the variant and the baseline together.
        queries: standard error over new queries, in the printed unit; NaN where runs keep none.
        too_few_queries: the test set is too small to show the difference, whatever the seeds.
    """

    variant: str
    metric: str
    now: str = "not tested"
    difference: str = ""
    seeds: int | None = None
    hours: float = math.nan
    queries: float = math.nan
    too_few_queries: bool = False
    why: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs.add_one_study(parser)
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument(
        "--difference", type=positive, metavar="D", help="star a difference of D, in the printed unit"
    )
    goal.add_argument(
        "--half-width", type=positive, metavar="H", help="know each difference to within H, likewise"
    )
    goal.add_argument(
        "--equivalent", type=positive, metavar="M", help="show what has no effect to be within M"
    )
    parser.add_argument(
        *("-v", "--variant"), action="append", default=[], metavar="NAME", help="only this; repeatable"
    )
    verbs.add_metrics(parser)
    add_runs_dir(parser)
    add_json(parser)


def command(arguments: argparse.Namespace) -> int:
    from analysis.runs.collect import collect

    study = verbs.load_one(arguments)
    collected = collect([study], arguments.runs_dir, curves=False)
    verbs.tell_mixed(collected, allow=verbs.CONTENTS)
    found = results(collected, study)
    others = [name for name in found.outcomes if name != study.baseline]
    variants = verbs.choose(arguments.variant, others, "variant") if arguments.variant else others
    metrics = verbs.choose(arguments.metric, list(study.metrics), "metric")
    plans = [plan(found, v, m, arguments) for v in variants for m in metrics]
    advice = _advice(study, found, plans, arguments)
    if arguments.json:
        rows = [asdict(one) for one in plans]
        verbs.print_json({"study": study.name, "plans": rows, "advice": advice})
        return 0
    _print(study, plans, advice)
    return 0


def plan(found: Results, variant: str, name: str, arguments: argparse.Namespace) -> Plan:
    """What is decided of one difference, and the seeds that would settle it."""
    result, metric = found.get(variant, name), found.study.metrics[name]
    scale = 100.0 if metric.unit == "%" else 1.0
    seeds = sorted(result.differences)
    queries = by_query(found, result)
    error = math.nan if queries is None else queries.error * scale
    smallest = arguments.difference or arguments.half_width or arguments.equivalent
    too_few = smallest < power.QUERY_ERRORS * error
    made = Plan(variant, name, queries=error, too_few_queries=too_few)
    if not math.isnan(result.difference):
        made = replace(made, difference=printed_signed(result.difference, metric))
    if len(seeds) < 2:
        return replace(made, why=result.why or "an estimate of the spread needs 2 paired seeds")
    values = [result.differences[seed] * scale for seed in seeds]
    known = power.spread(values, _scores(found, name, scale))
    if math.sqrt(known.variance) <= scale * result.unit:
        return replace(made, why="seeds differ by no more than the rounding of their values")
    now, question = _question(result, found, arguments)
    made = replace(made, now=now)
    if now != "open":
        return made
    needed = power.seeds_needed(question, known)
    if needed is None:
        return replace(made, why=f"more than {power.MOST:,} seeds")
    needed = max(needed, len(seeds))
    hours = (needed - len(seeds)) * sum(_hours(found, key) for key in (variant, found.baseline))
    return replace(made, seeds=needed, hours=hours)


def _question(
    result: Result, found: Results, arguments: argparse.Namespace
) -> tuple[str, power.Question]:
    """How the difference stands towards what is asked, and the question that seeds are to answer."""
    metric = found.study.metrics[result.metric]
    if arguments.half_width:
        half = float(in_unit((result.difference_high - result.difference_low) / 2, metric))
        done = half <= arguments.half_width
        return "narrow enough" if done else "open", power.narrow(arguments.half_width)
    margin = arguments.equivalent
    question = power.equivalent(margin) if margin else None
    if question is None:
        question = power.starred(arguments.difference, max(1, result.family_size))
    now = standing(result, metric, margin)
    return ("open" if now == "not tested" else now), question


def _scores(found: Results, metric: str, scale: float) -> np.ndarray:
    """[variants, seeds] of the seeds that all variants of ours have finished."""
    rows = [r for r in found if r.metric == metric and r.epoch == "last" and not r.imported and r.n > 1]
    shared = sorted(set.intersection(*(set(row.values) for row in rows)))
    return scale * np.array([[row.values[seed] for seed in shared] for row in rows])


def _hours(found: Results, variant: str) -> float:
    """GPU-hours of a finished run, or machine hours where it needs no GPU; NaN where none is known."""
    own = found.study.variants.get(variant)
    gpus = own.resources.gpus_of_run if own is not None else 1.0
    return cost(found.outcomes[variant].runs).per_run / 3600 * gpus


def _advice(
    study: Study, found: Results, plans: list[Plan], arguments: argparse.Namespace
) -> list[str]:
    """What to change in the manifest, what it costs, and what to know of it."""
    advice = []
    small = [one for one in plans if one.too_few_queries]
    open_ones = [one for one in plans if one.seeds is not None]
    most = max((one.seeds for one in open_ones if one.seeds and not one.too_few_queries), default=0)
    have = len(study.seeds)
    if most > have:
        hours = (most - have) * sum(_hours(found, name) for name in study.variants)
        cost = "" if math.isnan(hours) else f"; all variants: {fixed(hours, 1)} GPU-hours more"
        new = range(max(study.seeds) + 1, max(study.seeds) + 1 + most - have)
        seeds = ", ".join(map(str, [*study.seeds, *new]))
        advice.append(f"In {study.path}: seeds: [{seeds}]{cost}")
        if most >= 12 and study.rounds is None:
            margin = arguments.equivalent or arguments.difference or arguments.half_width
            looks = f"[{max(5, have)}, {most}]"
            advice.append(
                f"Or only where verdicts are open: rounds: {{looks: {looks}, margin: {margin:g}}}"
            )
        advice.append(
            "Stars at 5 % now and once more with all seeds err in 9 to 10 %: read the later ones."
        )
    if open_ones:
        advice.append(
            "Seeds are for 80 % power on average over the spread that these seeds leave open; single "
            "plans keep 64 to 91 %. The pilot's own mean plays no part."
        )
    if small:
        advice.append(
            f"More seeds cannot help in {counted(len(small), 'row')}: for new queries of the same kind "
            f"the difference must be {power.QUERY_ERRORS:g} standard errors of the queries. Test on "
            "more identities."
        )
    return advice


def _print(study: Study, plans: list[Plan], advice: list[str]) -> None:
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title=f"{study.name}: seeds that settle each difference to {study.baseline}")
    for head in ("variant", "metric", "difference", "now", "seeds", "GPU-hours", "note"):
        shown.add_column(head, overflow="fold")
    for one in plans:
        note = one.why
        if one.too_few_queries:
            note = f"the test set is too small: standard error of its queries {one.queries:.2g}"
        hours = "" if math.isnan(one.hours) else fixed(one.hours, 2)
        seeds = "" if one.seeds is None else str(one.seeds)
        cells = (one.variant, one.metric, one.difference, one.now, seeds, hours, note)
        shown.add_row(*map(escape, cells))
    console = verbs.console()
    console.print(shown)
    for line in advice:
        console.print(line, markup=False)
