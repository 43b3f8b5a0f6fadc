"""`sdtps reproduce`: is my number the paper's? Each reported number beside ours, and what differs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from analysis import verbs
from analysis.results import numbers
from analysis.results.frames import Results, judge, results
from analysis.tables.reported import other_than_ours, reported_table
from sdtps.system.commandline import add_json, add_runs_dir
from sdtps.system.errors import ManifestError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs.add_one_study(parser)
    parser.add_argument(
        "--epoch", choices=("last", "best"), default="last", help="the epoch of ours [last]"
    )
    add_runs_dir(parser)
    add_json(parser)


def command(arguments: argparse.Namespace) -> int:
    """0: nothing is shown to differ. 1: a number is higher or lower, or its unit is unclear."""
    from ablations.study.schema import TableSpec
    from analysis.runs.collect import collect
    from analysis.tables.forms import to_terminal

    study = verbs.load_one(arguments)
    if not study.reported:
        values = f"{{{next(iter(study.metrics))}: 79.0}}"
        raise ManifestError(
            f"{study.path}: has no reported numbers. Add, for example: reported: "
            f"[{{variant: {study.baseline}, source: 'paper, Table 3', values: {values}}}]"
        )
    collected = collect([study], arguments.runs_dir, curves=False)
    found = results(collected, study)
    rows = list(compared(found, arguments.epoch))
    if arguments.json:
        verbs.print_json(rows)
    else:
        spec = TableSpec(name="reproduce", kind="reported", epoch=arguments.epoch)
        verbs.console().print(to_terminal(reported_table(collected, study, spec)))
    return int(any(row["verdict"] in ("higher", "lower", "unit unclear") for row in rows))


def compared(found: Results, epoch: Any) -> Iterator[dict[str, Any]]:
    """Each reported number of a variant: theirs as printed, ours in the same unit, and the verdict."""
    known = [entry for entry in found.study.reported if entry.variant in found.outcomes]
    for entry, name in ((one, name) for one in known for name in one.values):
        outcome, metric = found.outcomes[str(entry.variant)], found.study.metrics[name]
        result = found.get(outcome.key, name, epoch)
        printed, sd = entry.values[name], entry.sd.get(name)
        ours = {"mean": result.mean, "sd": result.sd}
        yield {
            "variant": outcome.key,
            "metric": name,
            "source": entry.source,
            "by": entry.by,
            "reported": {"value": printed, "sd": sd, "n": entry.n, "tolerance": entry.tolerance},
            "ours": {
                **{key: float(numbers.in_unit(value, metric)) for key, value in ours.items()},
                **{"n": result.n, "planned": result.planned},
            },
            "verdict": judge(printed, result, metric, tolerance=entry.tolerance, n=entry.n, sd=sd),
            "differs": other_than_ours(found.study, entry, outcome),
        }
