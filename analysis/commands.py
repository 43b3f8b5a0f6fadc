"""What the commands of `python -m analysis` share: which studies, which runs, how to print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.study.arguments import add_studies, find_study, known_studies
from sdtps.commandline import add_runs_dir

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ablations.study.model import Study

UNLIMITED = 10_000  # characters; rich wants a number


def add_study_arguments(parser: argparse.ArgumentParser) -> None:
    """[STUDY ...] and --runs-dir."""
    add_studies(parser, "names or manifests, or names of imported studies [all that have runs]")
    add_runs_dir(parser)


def add_allowances(parser: argparse.ArgumentParser) -> None:
    from analysis.runs.comparable import KINDS, option

    for kind, help_text in KINDS.items():
        parser.add_argument(
            option(kind), dest="allow", action="append_const", const=kind, default=[], help=help_text
        )


def load(arguments: argparse.Namespace) -> tuple[list[Study], list[Study]]:
    """The studies to read, and the others that are known here.

    Raises:
        ManifestError: a manifest with mistakes, or a name that is neither a study's nor imported.
    """
    from ablations.study.manifest import load_study
    from analysis.importers.study import imported_names, imported_study

    known = known_studies()
    every = {path.resolve(): load_study(path) for path in known.values()}
    imported = imported_names(arguments.runs_dir)
    chosen: list[Any] = []
    for word in arguments.studies:
        if word in imported and word not in known and not Path(word).is_file():
            chosen.append(imported_study(word, arguments.runs_dir))
        else:
            path = find_study(word, others=imported)
            chosen.append(every.get(path.resolve()) or load_study(path))
    if not arguments.studies:
        chosen = [s for s in every.values() if has_runs(s, arguments.runs_dir)]
        planned = {study.name for study in chosen}
        chosen += [imported_study(n, arguments.runs_dir) for n in imported if n not in planned]
    names = {study.name for study in chosen}
    return chosen, [study for study in every.values() if study.name not in names]


def has_runs(study: Study, runs_dir: Path) -> bool:
    return any((runs_dir / study.name).glob("*/seed*/run.json"))


def console() -> Console:
    """Standard output, which breaks no line of its own accord: paths and commands stay whole.

    A terminal wraps what is longer than itself, and copies it as one line. Tables fit the terminal;
    written to a file or a pipe, they are as wide as they are. What a name or a log holds is shown, and
    a terminal does not obey it.
    """
    from rich.console import Console

    from sdtps.errors import visible_lines

    class Shown(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible_lines(text), **options)

    width = None if sys.stdout.isatty() else UNLIMITED
    return Shown(highlight=False, soft_wrap=True, width=width)


def choose(names: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """`names`, or all that are known. Raises SdtpsError for one that is not."""
    from sdtps.errors import SdtpsError, did_you_mean

    for name in names:
        if name not in known:
            raise SdtpsError(f"no {what} '{name}'. {did_you_mean(name, known)}")
    return list(names or known)
