"""`sdtps rounds`: what is decided of a study in rounds, and which seeds are trained next.

`sdtps submit` asks this verb, as a process of its own, for the seeds of each variant. Nothing is
remembered: `analysis.results.rounds` decides everything anew from the runs.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.study.arguments import add_study
from analysis.results.attribution import attribute
from analysis.results.outcomes import outcomes
from analysis.results.rounds import Rounds, of_outcomes
from analysis.runs.collect import collect
from sdtps.system.commandline import add_json, add_runs_dir
from sdtps.system.errors import ManifestError, counted

if TYPE_CHECKING:
    from ablations.study.model import Study


def judge(study: Study, runs_dir: Path) -> Rounds:
    """All verdicts of a study in rounds.

    Raises:
        ManifestError: the study has no rounds.
    """
    if study.rounds is None:
        raise ManifestError(
            f"{study.path}: has no rounds. Add, for example: "
            "rounds: {looks: [5, 8, 12, 20], margin: 0.5}"
        )
    everything = dataclasses.replace(
        study, seeds_of=dict.fromkeys(study.variants, study.rounds.looks[-1])
    )
    return of_outcomes(study, outcomes(collect([everything], runs_dir, curves=False), everything))


def with_seeds(study: Study, runs_dir: Path) -> Study:
    """`study` with the seeds that its rounds have come to; unchanged where it has no rounds."""
    if study.rounds is None:
        return study
    return dataclasses.replace(study, seeds_of=dict(judge(study, runs_dir).seeds_of))


def as_json(study: Study, runs_dir: Path) -> dict[str, Any]:
    """What `submit` plans next: seeds of variants, and cells of searches by explosions."""
    rounds = judge(study, runs_dir) if study.rounds is not None else Rounds({}, {})
    searches = [attribute(study, spec, runs_dir) for spec in study.attributions if spec.explodes]
    return {
        "study": study.name,
        "seeds_of": dict(rounds.seeds_of),
        "verdicts": [
            {"variant": variant, "metric": metric, **dataclasses.asdict(verdict)}
            for (variant, metric), verdict in rounds.verdicts.items()
        ],
        "cells": [found.as_submitted for found in searches],
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    add_runs_dir(parser)
    add_json(parser)


def command(arguments: argparse.Namespace) -> int:
    from ablations.study.manifest import load_study
    from analysis import verbs

    study = load_study(arguments.study)
    if arguments.json:
        verbs.print_json(as_json(study, arguments.runs_dir))
        return 0
    rounds = judge(study, arguments.runs_dir)
    assert study.rounds is not None
    out = verbs.console()
    looks = ", ".join(map(str, study.rounds.looks))
    out.print(
        f"{study.name}: looks at {looks} seeds; differences below {study.rounds.margin:g} are none"
    )
    width = max(len(name) for name in study.variants)
    for name in study.variants:
        seeds = counted(rounds.seeds_of[name], "seed")
        why = "baseline" if name == study.baseline else rounds.why(name)
        out.print(f"  {name:<{width}}  {seeds:>9}  {why}")
    return 0
