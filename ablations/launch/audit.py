"""The verb `audit`: which parts of a study's variants learn, by their gradients at toy size."""

from __future__ import annotations

import argparse
from pathlib import Path

from ablations.study.arguments import add_study
from sdtps.commandline import add_runs_dir, add_variants, at_least
from sdtps.errors import RunError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    add_variants(parser)
    parser.add_argument(
        "--steps", type=at_least(1), default=10, help="training steps before the second look"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there is a warning")
    add_runs_dir(parser)


def command(arguments: argparse.Namespace) -> int:
    """Print the findings; what a leak is worth (retrieval) is read from the study's runs."""
    from rich.console import Console

    from ablations.study.manifest import load_study
    from sdtps.audit.audit import audit as examine
    from sdtps.audit.audit import show, write
    from sdtps.config import RetrievalConfig
    from sdtps.run.folder import find_runs

    study = load_study(arguments.study)
    if study.baseline not in study.models():
        raise RunError(
            f"{study.path}: the baseline is another program: its gradients cannot be audited"
        )
    audited = examine(
        study.models(),
        study.baseline,
        study=study.name,
        labels={name: variant.label for name, variant in study.variants.items()},
        only=arguments.variant,
        steps=arguments.steps,
    )
    for name in audited.examinations:
        config = study.variants[name].config
        if isinstance(config, RetrievalConfig):
            from sdtps.audit.leak import audit_leak, leak_findings, worth

            runs = find_runs(arguments.runs_dir / study.name)
            value = worth(run for run in runs if run.run().get("variant") == name)
            audited.findings.extend(leak_findings(name, audit_leak(config), value))
    show(audited, Console())
    if arguments.json is not None:
        write(audited, arguments.json)
    return 1 if arguments.strict and audited.warnings() else 0
