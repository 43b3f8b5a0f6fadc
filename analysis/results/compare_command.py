"""sdtps compare STUDY A B: everything that the seeds can say about two variants."""

from __future__ import annotations

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

from analysis import commands
from sdtps.commandline import add_runs_dir

if TYPE_CHECKING:
    from ablations.study.schema import MetricSpec
    from analysis.results.outcomes import Epoch, Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from pathlib import Path

    parser.add_argument("study", help="a manifest, or the name of an imported study")
    parser.add_argument("a", help="variant")
    parser.add_argument("b", nargs="?", help="variant; default: the study's baseline")
    parser.add_argument("--metric", action="append", default=[], help="default: all of the study's")
    parser.add_argument("--epoch", choices=("best", "final"), default="final")
    parser.add_argument(
        "--margin",
        type=_margin,
        metavar="M",
        help="test equivalence within M above 0, in the metric's printed unit",
    )
    parser.add_argument("--studies-dir", type=Path, default=Path("ablations"), metavar="FOLDER")
    add_runs_dir(parser)
    parser.add_argument("--json", action="store_true")


def _margin(text: str) -> float:
    try:
        margin = float(text)
    except ValueError:
        margin = math.nan
    if not 0 < margin < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0, such as 0.5")
    return margin


def command(arguments: argparse.Namespace) -> int:
    from analysis.results.outcomes import outcomes
    from analysis.runs.collect import collect

    arguments.studies = [arguments.study]
    (study,), _ = commands.load(arguments)
    found = outcomes(collect([study], arguments.runs_dir, curves=False), study)
    names = [arguments.a, arguments.b or study.baseline]
    a, b = (found[name] for name in commands.choose(names, list(found), "variant"))
    metrics = commands.choose(arguments.metric, list(study.metrics), "metric")
    answers = {
        name: compare(a, b, name, study.metrics[name], arguments.epoch, arguments.margin)
        for name in metrics
    }
    if arguments.json:
        print(json.dumps(answers, indent=1, ensure_ascii=False))
        return 0
    console = commands.console()
    console.print(f"{a.label} against {b.label}, {arguments.epoch} epoch", markup=False)
    for name, answer in answers.items():
        console.print(f"{name}", style="bold", markup=False)
        for key, value in answer.items():
            console.print(f"  {key}: {value}", markup=False)
    return 0


def compare(
    a: Outcome, b: Outcome, name: str, metric: MetricSpec, epoch: Epoch, margin: float | None
) -> dict[str, Any]:
    """Each statistic as text in the printed unit, or why this sample cannot give it."""
    from analysis.results import stats
    from analysis.results.numbers import fixed, printed, printed_signed

    left, right = a.values(name, epoch), b.values(name, epoch)
    answer: dict[str, Any] = {}
    for outcome, values in ((a, left), (b, right)):
        if not values:
            answer[outcome.label] = outcome.explanation() or "not logged"
            continue
        s = stats.summary(list(values.values()))
        spread = f" ± {printed(s.sd, metric)}" if s.sd is not None else ""
        middle = printed(stats.iqm(list(values.values())), metric)
        answer[outcome.label] = (
            f"{printed(s.mean, metric)}{spread} (n = {s.n}, interquartile mean {middle})"
        )
    difference = stats.paired(left, right)
    if isinstance(difference, stats.Refusal):
        return {**answer, "difference": difference.reason}
    answer["difference"] = printed_signed(difference.mean, metric)
    if difference.interval is not None:
        low, high = difference.interval.low, difference.interval.high
        answer["difference"] += (
            f" [{printed_signed(low, metric)}, {printed_signed(high, metric)}] (95 % t interval, "
            f"{difference.n} paired seeds)"
        )
    answer["t test"] = difference.refusal if difference.p is None else f"p = {fixed(difference.p, 4)}"
    flipped = stats.sign_flip_test([left[s] - right[s] for s in difference.seeds])
    answer["sign-flip test"] = (
        flipped.reason if isinstance(flipped, stats.Refusal) else f"p = {fixed(flipped, 4)}"
    )
    better = stats.probability_of_improvement(
        list(left.values()), list(right.values()), direction=metric.direction
    )
    answer["probability that a run of the first is better"] = fixed(better, 2)
    spread_of = stats.bootstrap_interval([left[s] - right[s] for s in difference.seeds])
    if isinstance(spread_of, stats.Interval):
        answer["interquartile mean of the differences, bootstrap interval"] = (
            f"[{printed_signed(spread_of.low, metric)}, {printed_signed(spread_of.high, metric)}]"
        )
    if margin is not None:
        scale = 100.0 if metric.unit == "%" else 1.0
        same = stats.equivalence(left, right, margin / scale)
        answer[f"equivalent within {margin:g}"] = (
            same.reason
            if isinstance(same, stats.Refusal)
            else f"{'yes' if same.equivalent else 'not shown'} (p = {fixed(same.p, 4)})"
        )
    return answer
