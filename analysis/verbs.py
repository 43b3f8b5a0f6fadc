"""What the commands of `python -m analysis` share: which studies, which runs, how to print."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.study.arguments import add_studies, find_study, is_shipped, known_studies
from ablations.study.manifest import load_study
from analysis.venues import VENUES
from sdtps.system.commandline import add_runs_dir
from sdtps.system.errors import ManifestError, SdtpsError, did_you_mean, visible_lines
from sdtps.system.files import finite_tree

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ablations.study.model import Study
    from analysis.runs.collect import Collected
    from analysis.runs.comparable import Mark

MAIN = Path("paper/main.tex")  # what commands use unless told otherwise
UNLIMITED = 10_000  # characters; rich wants a number
CONTENTS = ("mixed_data", "mixed_weights")  # never averaged unless allowed, not even for a look


def add_study_arguments(parser: argparse.ArgumentParser) -> None:
    """[STUDY ...] and --runs-dir."""
    add_studies(parser, "names or manifests, or names of imported studies [all that have runs]")
    add_runs_dir(parser)


def add_one_study(parser: argparse.ArgumentParser) -> None:
    """STUDY, which may be imported."""
    study = parser.add_argument(
        "study", metavar="STUDY", help="a manifest, or the name of an imported study"
    )
    study.complete = dict.fromkeys(("bash", "zsh"), "_sdtps_studies")  # type: ignore[attr-defined]


def add_main(parser: argparse.ArgumentParser, more: str = "") -> None:
    """--main: the LaTeX document."""
    text = f"the LaTeX document [{MAIN}]{more}"
    parser.add_argument("--main", type=Path, default=MAIN, metavar="FILE.tex", help=text)


def add_venue(parser: argparse.ArgumentParser, what: str, default: str = "article") -> None:
    """--venue: of `analysis.venues`."""
    parser.add_argument("--venue", choices=sorted(VENUES), default=default, help=f"{what} [{default}]")


def add_metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="this metric; may be repeated; default: all of the study's",
    )


def add_allowances(parser: argparse.ArgumentParser, *only: str) -> None:
    """An option for each kind of mark (of `only`) that would be refused."""
    from analysis.runs.comparable import KINDS, option

    for kind in only or KINDS:
        parser.add_argument(
            option(kind), dest="allow", action="append_const", const=kind, default=[], help=KINDS[kind]
        )


def load(arguments: argparse.Namespace, *, needs_runs: bool = True) -> list[Study]:
    """The studies to read: those that are named, and no other manifest is read for them.

    Where none is named, all that have runs are read; runs that no manifest here plans are named on
    standard error.

    Args:
        needs_runs: without a named study, one with runs is needed.

    Raises:
        ManifestError: a manifest with mistakes, a name that is neither a study's nor imported, or
            no study with runs where one is needed.
    """
    from analysis.importers.store import imported_names, imported_study
    from analysis.questions.rounds import with_seeds

    runs_dir = arguments.runs_dir
    imported = imported_names(runs_dir)
    known = known_studies() if arguments.studies else {}
    chosen: list[Any] = []
    for word in arguments.studies:
        if word in imported and word not in known and not Path(word).is_file():
            chosen.append(imported_study(word, runs_dir))
        else:
            study = load_study(find_study(word, others=imported))
            chosen.append(with_seeds(study, runs_dir))
            if not has_runs(runs_dir / study.name):
                print(study.no_runs(runs_dir.absolute()), file=sys.stderr)
    if not arguments.studies:
        chosen = [with_seeds(s, runs_dir) for s in _known(load_study) if has_runs(runs_dir / s.name)]
        planned = {study.name for study in chosen}
        chosen += [imported_study(name, runs_dir) for name in imported if name not in planned]
        for folder in sorted(runs_dir.glob("*")):
            if folder.name not in planned.union(imported) and has_runs(folder):
                text = "left out: no manifest here plans these runs. Name the manifest that does."
                print(f"{folder}: {text}", file=sys.stderr)
        if needs_runs and not chosen:
            raise ManifestError(
                f"no study known here has runs in {runs_dir.absolute()}. Name a study or its "
                "manifest, go to the folder that holds runs/, or give --runs-dir"
            )
    return chosen


def load_one(arguments: argparse.Namespace) -> Study:
    """The study of `add_one_study`. Raises ManifestError, as `load`."""
    (study,) = load(argparse.Namespace(studies=[arguments.study], runs_dir=arguments.runs_dir))
    return study


def read_or_tell(path: Path, like: Study) -> Study:
    """The study of a manifest that was not asked for.

    Mistakes in it go to standard error; what stands for it then is `like` without variants.
    """
    try:
        return load_study(path)
    except ManifestError as error:
        head, *mistakes = str(error).split("\n")
        what = f"{path}: not asked for, and left out as unreadable:"
        print(what, *(mistakes or [head]), sep="\n  ", file=sys.stderr)
        return replace(like, name=path.stem, path=path, title="", digest="", variants={}, seeds=())


def others(studies: Sequence[Study]) -> list[Study]:
    """The studies known here that are not among `studies`, by `read_or_tell`."""
    names = {study.name for study in studies}
    every = _known(partial(read_or_tell, like=studies[0]))
    return [study for study in every if study.name not in names]


def _known(read: Callable[[Path], Study]) -> list[Study]:
    """Every study known here: one's own in place of a shipped one of the same name."""
    every = [read(path) for path in known_studies().values()]
    own = {study.name for study in every if not is_shipped(study.path)}
    return [study for study in every if study.name not in own or not is_shipped(study.path)]


def has_runs(folder: Path) -> bool:
    """Of a study: below the runs folder."""
    return any(folder.glob("*/seed*/run.json"))


def console() -> Console:
    """Standard output, which breaks no line of its own accord: paths and commands stay whole.

    A terminal wraps what is longer than itself, and copies it as one line. Tables fit the terminal;
    written to a file or a pipe, they are as wide as they are. What a name or a log holds is shown, and
    a terminal does not obey it.
    """
    from rich.console import Console

    class Shown(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible_lines(text), **options)

    width = None if sys.stdout.isatty() else UNLIMITED
    return Shown(highlight=False, soft_wrap=True, width=width)


def print_json(document: Any) -> None:
    """A document on standard output, as one value; what is no finite number is null."""
    print(json.dumps(finite_tree(document), indent=1, ensure_ascii=False))


def tell_mixed(collected: Collected, allow: Collection[str]) -> list[Mark]:
    """The marks of a look at results; mixtures averaged all the same go to standard error, too.

    Args:
        allow: besides missing runs and other code, which a look may have.

    Raises:
        AggregationError: see `refuse_to_average`.
    """
    from analysis.runs.comparable import KINDS, refuse_to_average

    marks = refuse_to_average(collected, allow={*KINDS} - {*CONTENTS} | {*allow})
    for mark in (mark for mark in marks if mark.kind.startswith("mixed")):
        print(f"{mark.study}: {mark.text}. They may not be comparable.", file=sys.stderr)
    tell_not_fractions(collected)
    return marks


def tell_not_fractions(collected: Collected) -> None:
    """Name on standard error the metrics that were logged in per cent and are printed as fractions."""
    of = {study.name: study.not_fractions for study in collected.studies}
    told = (text for run in collected.runs for text in of[run.study](run.variant, run.last))
    for text in dict.fromkeys(told):
        print(text, file=sys.stderr)


def tell_unlogged(collected: Collected, names: Sequence[str] = ()) -> int:
    """Name on standard error the metrics that no finished run has; returns 1 where there is one."""
    from analysis.runs.comparable import unlogged

    missing = list(unlogged(collected, names))
    print(*missing, sep="\n", end="\n" * bool(missing), file=sys.stderr)
    return 1 if missing else 0


def choose(names: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """`names`, or all that are known. Raises SdtpsError with all that are not."""
    wrong = [f"no {what} '{name}'. {did_you_mean(name, known)}" for name in names if name not in known]
    if wrong:
        raise SdtpsError("\n".join(dict.fromkeys(wrong)))
    return list(names or known)
