"""`sdtps audit`: gradients of a study's variants at toy size, before it is queued."""

from __future__ import annotations

import argparse
from pathlib import Path

from ablations.study.arguments import add_study, filtered
from ablations.study.manifest import load_study
from sdtps.config import RetrievalConfig
from sdtps.system.commandline import add_variants
from sdtps.system.errors import RunError
from sdtps.system.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    add_variants(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to FILE")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there is a warning")


def command(arguments: argparse.Namespace) -> int:
    """Print the findings; of retrieval also what leaks."""
    from rich.console import Console

    from sdtps.audit.audit import audit, show

    study = load_study(arguments.study)
    if study.baseline not in study.models():
        raise RunError(
            f"{study.path}: the baseline is another program: its gradients cannot be audited"
        )
    wanted = {study.baseline, *filtered(study, arguments.variant, []).variants}
    audited = audit(
        {name: config for name, config in study.models().items() if name in wanted},
        study.baseline,
        study=study.name,
        labels={name: variant.label for name, variant in study.variants.items()},
    )
    for name in audited.examinations:
        config = study.variants[name].config
        if isinstance(config, RetrievalConfig):
            from sdtps.audit.leak import audit_leak, leak_findings

            audited.findings.extend(leak_findings(name, audit_leak(config)))
    show(audited, Console())
    if arguments.json is not None:
        write_json(arguments.json, audited.as_json())
    return 1 if arguments.strict and audited.warnings() else 0
