"""The verb `retry`: submit runs again that ended badly, by their states or by name."""

from __future__ import annotations

import argparse

from ablations.launch.plan import RETRY_WORDS
from ablations.launch.submit import add_sending
from ablations.study.arguments import add_steering, read_study
from sdtps.errors import RunError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_steering(parser)
    parser.add_argument(
        "run", nargs="*", metavar="RUN", help="VARIANT/seedK, or enough of the name to be the only one"
    )
    for word in RETRY_WORDS:
        parser.add_argument(f"--{word}", action="store_true", help=f"every run that is {word}")
    add_sending(parser)


def command(arguments: argparse.Namespace) -> int:
    """Raises RunError where neither runs nor states are named."""
    from ablations.launch.submit import submit
    from ablations.study.arguments import find_run
    from ablations.view.hints import Again

    words = [w for w in RETRY_WORDS if getattr(arguments, w)]
    study = read_study(arguments)
    named = tuple(find_run(text, study).name for text in arguments.run)
    if not words and not named:
        options = ", ".join(f"--{word}" for word in RETRY_WORDS)
        raise RunError(
            f"retry what? Name runs, or give one of {options} "
            f"(see: {Again.of(arguments).control('status')})"
        )
    arguments.retry = words
    return submit(arguments, named, only_again=True)
