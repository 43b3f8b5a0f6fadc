"""The verbs `tables`, `collect`, `compare` and `audit-table`: numbers in the terminal, or as files."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import commands
from sdtps.system.commandline import add_runs_dir
from sdtps.system.errors import SdtpsError

if TYPE_CHECKING:
    from ablations.study.schema import MetricSpec
    from analysis.results.frames import Result, Results
    from analysis.results.outcomes import Epoch, Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands.add_study_arguments(parser)
    parser.add_argument(
        "--table", action="append", default=[], metavar="NAME", help="this table only; may be repeated"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write .tex .csv .md .html .json")
    parser.add_argument("--form", choices=("csv", "md", "html", "tex"), help="print in this format")
    parser.add_argument("--json", action="store_true", help="print the cells with the runs behind them")


def command(arguments: argparse.Namespace) -> int:
    """Show partial results too: what is missing is in the cells and below the table."""
    from analysis.runs.collect import collect
    from analysis.runs.comparable import KINDS, refuse_to_average
    from analysis.tables import forms
    from analysis.tables.model import as_json, file_name
    from analysis.tables.study import tables

    studies = commands.load(arguments)
    collected = collect(studies, arguments.runs_dir)
    marks = refuse_to_average(collected, allow=KINDS)
    made = [table for study in studies for table in tables(collected, study, marks)]
    # A table is called as its file is, or as the manifest calls it.
    files = {t.name: t.name for t in made}
    files |= {spec.name: file_name(study, spec.name) for study in studies for spec in study.tables}
    asked = [name for name in arguments.table if name not in files]
    commands.choose(asked, list(files), "table")
    names = [files[name] for name in arguments.table] or list(files)
    chosen = [t for t in made if t.name in names]
    if arguments.json:
        print(json.dumps([as_json(t) for t in chosen], indent=1, ensure_ascii=False, allow_nan=False))
        return 0
    console = commands.console()
    for table in chosen:
        if arguments.out:
            for path in forms.write(table, arguments.out):
                console.print(str(path))
        elif arguments.form:
            print(forms.FORMS[arguments.form](table))
        else:
            console.print(forms.to_terminal(table))
    return 0


# -- collect: every run of a study and what became of it ----------------------------------------


def collect_add_arguments(parser: argparse.ArgumentParser) -> None:
    commands.add_study_arguments(parser)
    parser.add_argument("--json", action="store_true", help="all columns, one JSON object a run")
    parser.add_argument("--csv", metavar="FILE", help="write all columns as CSV")


def collect_command(arguments: argparse.Namespace) -> int:
    """Print the runs; what must not be averaged is printed below, and nothing fails because of it."""
    from rich.table import Table

    from analysis.runs.collect import collect
    from analysis.runs.comparable import KINDS, refuse_to_average
    from analysis.runs.record import RECORDED, as_frame, as_rows
    from sdtps.system.errors import counted

    studies = commands.load(arguments)
    collected = collect(studies, arguments.runs_dir)
    if arguments.csv:
        as_frame(collected.runs).to_csv(arguments.csv, index=False)
    if arguments.json:
        for record in as_rows(collected.runs):
            print(json.dumps(record, ensure_ascii=False))
        return 0
    console = commands.console()
    for study in studies:
        runs = collected.runs_of(study.name)
        every = [(epoch, name) for name in study.metrics for epoch in RECORDED]
        metrics = [(e, name) for e, name in every if any(name in run.scores(e) for run in runs)]
        shown = Table(title=f"{study.name}: {counted(len(runs), 'run')}")
        for head in (
            "variant",
            "seed",
            "state",
            "epoch",
            *(f"{RECORDED[e]}/{name}" for e, name in metrics),
            "code",
            "notes",
        ):
            shown.add_column(head, overflow="fold")
        for run in runs:
            scores = [run.scores(epoch).get(name) for epoch, name in metrics]
            numbers = ["" if score is None else f"{score:.4f}" for score in scores]
            code = (run.code or "")[:8] + ("+" if run.dirty else "")
            epoch = "" if run.epoch is None else str(run.epoch)
            words = [run.variant, str(run.seed), run.state, epoch]
            notes = "; ".join(filter(None, (run.reason, *run.notes)))
            cells = [*words, *numbers, code, notes]
            shown.add_row(*(c.replace("[", r"\[") for c in cells))
        console.print(shown)
    for mark in refuse_to_average(collected, allow=KINDS):
        console.print(f"[yellow]{mark.study}: {mark.text}[/]")
    for path in collected.unplanned:
        console.print(f"[yellow]nothing plans {path}[/]")
    return 0


# -- compare: what the seeds can say about two variants -----------------------------------------


def compare_add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", metavar="STUDY", help="a manifest, or the name of an imported study")
    parser.add_argument("a", metavar="A", help="variant")
    parser.add_argument("b", nargs="?", metavar="B", help="variant; default: the study's baseline")
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="this metric; may be repeated; default: all of the study's",
    )
    parser.add_argument(
        "--epoch", choices=("last", "best"), default="last", help="the epoch to compare [last]"
    )
    parser.add_argument(
        "--margin",
        type=_margin,
        metavar="M",
        help="test equivalence within M above 0, in the metric's printed unit",
    )
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


def compare_command(arguments: argparse.Namespace) -> int:
    from analysis.results.frames import results
    from analysis.runs.collect import collect

    arguments.studies = [arguments.study]
    (study,) = commands.load(arguments)
    collected = collect([study], arguments.runs_dir, curves=False)
    known = list(results(collected, study).outcomes)
    a, b = commands.choose([arguments.a, arguments.b or study.baseline], known, "variant")
    found = results(collected, study, b)
    metrics = commands.choose(arguments.metric, list(study.metrics), "metric")
    answers = {name: compare(found, a, name, arguments.epoch, arguments.margin) for name in metrics}
    if arguments.json:
        print(json.dumps(answers, indent=1, ensure_ascii=False))
        return 0
    console = commands.console()
    labels = [found.outcomes[name].label for name in (a, b)]
    console.print(f"{labels[0]} against {labels[1]}, {arguments.epoch} epoch", markup=False)
    for name, answer in answers.items():
        console.print(f"{name}", style="bold", markup=False)
        for key, value in answer.items():
            console.print(f"  {key}: {value}", markup=False)
    return 0


def compare(found: Results, a: str, name: str, epoch: Epoch, margin: float | None) -> dict[str, Any]:
    """Each statistic of `a` and the baseline of `found` as text, or why these seeds cannot give it."""
    from analysis.results import stats
    from analysis.results.numbers import fixed, printed_signed

    metric, b = found.study.metrics[name], found.baseline
    result, other = found.get(a, name, epoch), found.get(b, name, epoch)
    answer: dict[str, Any] = {}
    for one in (result, other):
        answer[one.label] = _values(one, found.outcomes[one.variant], metric)
    if math.isnan(result.difference):
        return {**answer, "difference": result.why or "the two are one variant"}
    left, right = result.values, other.values
    pairs = f"{result.difference_n} of {result.difference_planned} seeds"
    pairs = f"{pairs}, paired" if result.paired else f"{pairs}, unpaired: imported seeds are not ours"
    answer["difference"] = printed_signed(result.difference, metric)
    if not math.isnan(result.difference_low):
        low, high = result.difference_low, result.difference_high
        interval = f"[{printed_signed(low, metric)}, {printed_signed(high, metric)}]"
        answer["difference"] += f" {interval} (95 % t interval, {pairs})"
        if metric.direction is not None and (low > 0 or high < 0):
            first = "better" if (low > 0) == (metric.direction == "up") else "worse"
            answer["difference"] += f": the first is {first}"
    else:
        answer["difference"] += f" ({pairs})"
    if not result.whole or not other.whole:
        answer["missing seeds"] = (
            "the finished seeds may be the better ones; read no difference from them"
        )
    alone = "of this comparison alone; differences taken to be normally distributed"
    answer["t test"] = result.why or f"p = {fixed(result.p, 4)} ({alone})"
    if result.paired:
        differences = list(result.differences.values())
        flipped = stats.sign_flip_test(differences)
        answer["sign-flip test"] = (
            flipped.reason if isinstance(flipped, stats.Refusal) else f"p = {fixed(flipped, 4)}"
        )
        middle = stats.bootstrap_interval(differences)
        if isinstance(middle, stats.Interval):
            ends = ", ".join(printed_signed(v, metric) for v in (middle.low, middle.high))
            answer["interquartile mean of the differences, bootstrap interval"] = f"[{ends}]"
    if metric.direction is not None:
        better = stats.probability_of_improvement(
            list(left.values()), list(right.values()), direction=metric.direction
        )
        answer["probability that a run of the first is better"] = (
            f"{fixed(better, 2)} ({len(left)} of {result.planned} against "
            f"{len(right)} of {other.planned} runs)"
        )
    if margin is not None and result.paired:
        own = margin / (100.0 if metric.unit == "%" else 1.0)
        same = stats.equivalence(left, right, own, unit=result.unit)
        answer[f"equivalent within {margin:g}"] = (
            same.reason
            if isinstance(same, stats.Refusal)
            else f"{'yes' if same.equivalent else 'not shown'} (p = {fixed(same.p, 4)})"
        )
    return answer


def _values(result: Result, outcome: Outcome, metric: MetricSpec) -> str:
    from analysis.results import stats
    from analysis.results.numbers import printed

    if not result.values:
        return outcome.explanation() or "not logged"
    spread = "" if math.isnan(result.sd) else f" ± {printed(result.sd, metric)}"
    middle = printed(stats.iqm(list(result.values.values())), metric)
    count = f"{result.n}" if result.whole else f"{result.n} of {result.planned}"
    text = f"{printed(result.mean, metric)}{spread} (n = {count}, interquartile mean {middle})"
    return text if result.whole else f"{text}; {outcome.explanation()}"


# -- audit-table: a file of `sdtps audit` as a table --------------------------------------------


def audit_add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("audit", type=Path, help="file of `sdtps audit --json`")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write .tex .csv .md .html .json")


def audit_command(arguments: argparse.Namespace) -> int:
    from analysis.tables import forms
    from analysis.tables.study import audit_table

    try:
        document = json.loads(arguments.audit.read_text(encoding="utf-8"))
        table = audit_table(document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SdtpsError(
            f"{arguments.audit}: not an audit ({error}); make one: sdtps audit STUDY --json FILE"
        ) from None
    console = commands.console()
    if arguments.out is None:
        console.print(forms.to_terminal(table))
        return 0
    for path in forms.write(table, arguments.out):
        console.print(str(path))
    return 0
