"""`sdtps compare`: what the seeds can say about two variants."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from analysis import verbs
from sdtps.system.commandline import add_json, add_runs_dir, positive
from sdtps.system.errors import SdtpsError

if TYPE_CHECKING:
    from ablations.study.schema import MetricSpec
    from analysis.results.frames import Result, Results
    from analysis.results.outcomes import Epoch, Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs.add_one_study(parser)
    first = parser.add_argument("a", metavar="A", help="variant")
    second = parser.add_argument(
        "b", nargs="?", metavar="B", help="variant; default: the study's baseline"
    )
    for argument in (first, second):
        argument.complete = dict.fromkeys(("bash", "zsh"), "_sdtps_variants")  # type: ignore[attr-defined]
    verbs.add_metrics(parser)
    parser.add_argument(
        "--epoch", choices=("last", "best"), default="last", help="the epoch to compare [last]"
    )
    parser.add_argument(
        "--margin",
        type=positive,
        metavar="M",
        help="test equivalence within M above 0, in the metric's printed unit",
    )
    add_runs_dir(parser)
    add_json(parser)
    verbs.add_allowances(parser, *verbs.CONTENTS)


def command(arguments: argparse.Namespace) -> int:
    from analysis.results.frames import results
    from analysis.runs.collect import collect

    study = verbs.load_one(arguments)
    collected = collect([study], arguments.runs_dir, curves=False)
    verbs.tell_mixed(collected, arguments.allow)
    known = list(results(collected, study).outcomes)
    a, b = verbs.choose([arguments.a, arguments.b or study.baseline], known, "variant")
    if a == b:
        raise SdtpsError(
            f"{a} is compared with itself. Name two variants: sdtps compare {study.name} A B"
        )
    found = results(collected, study, b)
    metrics = verbs.choose(arguments.metric, list(study.metrics), "metric")
    answers = {name: compare(found, a, name, arguments.epoch, arguments.margin) for name in metrics}
    code = verbs.tell_unlogged(collected, metrics)
    if arguments.json:
        verbs.print_json({"study": study.name, "epoch": arguments.epoch, "metrics": answers})
        return code
    console = verbs.console()
    labels = [found.outcomes[name].label for name in (a, b)]
    console.print(f"{labels[0]} against {labels[1]}, {arguments.epoch} epoch", markup=False)
    for name, answer in answers.items():
        console.print(f"{name}", style="bold", markup=False)
        for line in in_words(answer, study.metrics[name]):
            console.print(f"  {line}", markup=False)
    return code


def compare(found: Results, a: str, name: str, epoch: Epoch, margin: float | None) -> dict[str, Any]:
    """Each statistic of `a` and the baseline of `found`, as numbers in the metric's own scale.

    Where these seeds cannot give one, `why` says so and the numbers are NaN or None.

    Args:
        margin: in the printed unit.
    """
    from analysis.results import stats
    from analysis.results.queries import by_query

    metric = found.study.metrics[name]
    first, second = (found.get(variant, name, epoch) for variant in (a, found.baseline))
    sides = found.outcomes[a], found.outcomes[found.baseline]
    answer: dict[str, Any] = {
        "a": _side(first, sides[0]),
        "b": _side(second, sides[1]),
        "difference": {
            "mean": first.difference,
            "low": first.difference_low,
            "high": first.difference_high,
            "n": first.difference_n,
            "planned": first.difference_planned,
            "paired": first.paired,
            "why": first.why,
        },
    }
    if math.isnan(first.difference):
        return answer
    answer["t_test"] = {"p": first.p, "why": first.why}
    if first.paired:
        differences = list(first.differences.values())
        answer["sign_flip_test"] = asdict(stats.sign_flip_test(differences))
    queries = by_query(found, first) if epoch == "last" else None
    if queries is not None:
        low, high = queries.interval
        answer["queries"] = {
            "n": len(queries.difference),
            "higher": int((queries.difference > 0).sum()),
            "lower": int((queries.difference < 0).sum()),
            **{"low": low, "high": high},
        }
    if margin is not None and first.paired:
        own = margin / (100.0 if metric.unit == "%" else 1.0)
        same = stats.equivalence(first.values, second.values, own, unit=first.unit)
        answer["equivalence"] = {"margin": own, "equivalent": same.shows(), **asdict(same)}
    return answer


def _side(result: Result, outcome: Outcome) -> dict[str, Any]:
    return {
        **{key: getattr(result, key) for key in ("variant", "label", "n", "planned", "mean", "sd")},
        "values": result.values,
        "why": "" if result.whole else outcome.explanation() or "not logged",
    }


def in_words(answer: Mapping[str, Any], metric: MetricSpec) -> Iterator[str]:
    """The numbers of `compare` as lines of text, in the printed unit."""
    from analysis.results.numbers import fixed, printed, printed_signed

    for side in (answer["a"], answer["b"]):
        if math.isnan(side["mean"]):
            yield f"{side['label']}: {side['why']}"
            continue
        spread = "" if math.isnan(side["sd"]) else f" ± {printed(side['sd'], metric)}"
        n = f"{side['n']}" if side["n"] == side["planned"] else f"{side['n']} of {side['planned']}"
        why = f"; {side['why']}" if side["why"] else ""
        yield f"{side['label']}: {printed(side['mean'], metric)}{spread} (n = {n}){why}"
    d = answer["difference"]
    if math.isnan(d["mean"]):
        yield f"difference: {d['why']}"
        return
    how = "paired" if d["paired"] else "unpaired: imported seeds are not ours"
    pairs = f"{d['n']} of {d['planned']} seeds, {how}"
    text = f"difference: {printed_signed(d['mean'], metric)}"
    if math.isnan(d["low"]):
        yield f"{text} ({pairs})"
    else:
        ends = f"[{printed_signed(d['low'], metric)}, {printed_signed(d['high'], metric)}]"
        ending = ""
        if metric.direction is not None and (d["low"] > 0 or d["high"] < 0):
            better = (d["low"] > 0) == (metric.direction == "up")
            ending = f": the first is {'better' if better else 'worse'}"
        yield f"{text} {ends} (95 % t interval, {pairs}){ending}"
    if any(answer[name]["why"] for name in "ab"):
        yield "missing seeds: the finished ones may be the better ones; read no difference from them"
    alone = " (of this comparison alone; differences taken to be normally distributed)"
    for key, note in (("t_test", alone), ("sign_flip_test", "")):
        if test := answer.get(key):
            given = test["why"] or f"p = {fixed(test['p'], 4)}{note}"
            yield f"{key.replace('_', ' ')}: {given}"
    if queries := answer.get("queries"):
        yield (
            f"of {queries['n']} queries (means over seeds) the first is higher on {queries['higher']}, "
            f"lower on {queries['lower']}"
        )
        if not math.isnan(queries["low"]):
            ends = ", ".join(printed_signed(queries[end], metric) for end in ("low", "high"))
            yield f"difference on new queries of the same kind: [{ends}] (95 % interval)"
    if same := answer.get("equivalence"):
        verdict = "yes" if same["equivalent"] else "not shown"
        given = same["why"] or f"{verdict} (p = {fixed(same['p'], 4)})"
        yield f"equivalent within {printed(same['margin'], metric)}: {given}"
