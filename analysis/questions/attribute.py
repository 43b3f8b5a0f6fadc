"""`sdtps attribute`: which of the changes between two variants did it.

`analysis.results.attribution` has the answer; this verb prints it, and submits missing runs if asked.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.study.arguments import add_study
from ablations.study.schema import AttributionSpec
from analysis import verbs
from analysis.results.attribution import Attributed, attribute, sentences
from analysis.tables.attribution import table
from sdtps.system.commandline import add_json, add_runs_dir
from sdtps.system.errors import ManifestError, counted

if TYPE_CHECKING:
    from ablations.study.model import Study


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

    study = load_study(arguments.study)
    if (arguments.good is None) != (arguments.broken is None):
        raise ManifestError("name both variants, the good one and the broken one, or neither")
    specs: Sequence[AttributionSpec] = study.attributions
    if arguments.good is not None:
        verbs.choose([arguments.good, arguments.broken], list(study.variants), "variant")
        ends = {"good": arguments.good, "broken": arguments.broken}
        declared = (s for s in specs if (s.good, s.broken) == tuple(ends.values()))
        first = next(declared, AttributionSpec(**ends))
        changes: dict[str, Any] = {"explodes": arguments.explodes or first.explodes}
        if arguments.metric:
            (changes["metric"],) = verbs.choose([arguments.metric], list(study.metrics), "metric")
        specs = [first.model_copy(update=changes)]
    if not specs:
        raise ManifestError(
            f"{study.path} declares no attributions: name two variants, such as "
            f"sdtps attribute {study.name} {study.baseline} OTHER"
        )
    runs_dir = Path(arguments.runs_dir)
    found = [attribute(study, spec, runs_dir) for spec in specs]
    if arguments.submit:
        found = [_run_until_decided(study, one, arguments) for one in found]
    if arguments.json:
        verbs.print_json([as_json(one) for one in found])
    else:
        for one in found:
            _print(one, arguments)
    return 0 if all(one.decided for one in found) else 1


def _print(found: Attributed, arguments: argparse.Namespace) -> None:
    from analysis.tables.forms import to_terminal

    out = verbs.console()
    out.print(to_terminal(table(found)))
    if found.missing and not arguments.submit:
        words = f"sdtps attribute {found.attribution.parent} {found.spec.good} {found.spec.broken}"
        flag = " --explodes" if found.spec.explodes else ""
        out.print(f"{counted(len(found.missing), 'run')} missing. To run them: {words}{flag} --submit")


def _run_until_decided(study: Study, found: Attributed, arguments: argparse.Namespace) -> Attributed:
    """Submit the cells that are missing. Locally this waits, and goes on with the next cells."""
    while not found.decided:
        before = set(found.missing)
        code = _submit(found, arguments)
        found = attribute(study, found.spec, Path(arguments.runs_dir))
        if code not in (0, 1, 5) or before <= set(found.missing):
            return found  # refused, beyond the budget, or on SLURM: a job that follows them goes on
    return found


def _submit(found: Attributed, arguments: argparse.Namespace) -> int:
    """`sdtps submit` of the cells, as a process: analysis starts no runs by itself."""
    words = [sys.executable, "-m", "ablations", "submit", str(arguments.study)]
    words += ["--cells", json.dumps(found.as_submitted), "--executor", arguments.executor]
    words += ["--runs-dir", str(arguments.runs_dir)]
    if found.search is not None and arguments.executor != "local":
        ends = [str(arguments.study), found.spec.good, found.spec.broken]
        then = [sys.executable, "-m", "analysis", "attribute", *ends, "--explodes", "--submit"]
        then += ["--executor", arguments.executor, "--runs-dir", str(arguments.runs_dir)]
        words += ["--then", shlex.join(then)]
    return subprocess.run(words, stdout=sys.stderr, check=False).returncode


def as_json(found: Attributed) -> dict[str, Any]:
    """The answer with numbers, for scripts."""
    answer = {
        "study": found.attribution.parent,
        "cells_study": found.study.name,
        "good": found.spec.good,
        "broken": found.spec.broken,
        "metric": found.metric_name,
        "decided": found.decided,
        "missing_runs": len(found.missing),
        "changes": found.attribution.changes,
        "cells": [
            asdict(cell)
            | {
                "changes": sorted(cell.changes),
                "values": found.values(cell),
                "states": [run.state for run in found.runs_of(cell)],
            }
            for cell in found.attribution.cells
        ],
        "sentences": sentences(found),
    }
    if found.search is not None:
        return {**answer, "named": [sorted(changes) for changes in found.search.named]}
    result = found.effects
    return {
        **answer,
        "named": result.named,
        "effects": [{**asdict(effect), "starred": effect.starred} for effect in result.effects],
        "patterns": {change: result.pattern(change) for change in found.attribution.changes},
    }
