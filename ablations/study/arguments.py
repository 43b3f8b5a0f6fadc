"""STUDY on a command line: a manifest by its path or by its name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sdtps.commandline import add_json, add_runs_dir, add_seeds, add_variants
from sdtps.errors import ManifestError, did_you_mean

if TYPE_CHECKING:
    from ablations.study.model import Study

DATA_ROOT = "SDTPS_DATA_ROOT"
SHIPPED = Path(__file__).resolve().parents[1]  # the manifests that come with the program


def known_studies() -> dict[str, Path]:
    """Name to manifest: those in ./ablations and, where no manifest there has the name, the shipped."""
    folders = (SHIPPED, Path("ablations"))  # the latter wins
    return {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))}


def find_study(word: str, others: Iterable[str] = ()) -> Path:
    """The manifest that `word` names, as a path or as its name without .yaml.

    Args:
        others: more names that would be right (imported studies), for the advice.

    Raises:
        ManifestError: neither a file nor a known name; the nearest name is given.
    """
    path = Path(word)
    if path.is_file() or (path.exists() and path.suffix in (".yaml", ".yml")):
        return path
    known = known_studies()
    if word in known:
        return known[word]
    raise ManifestError(f"there is no study '{word}'. {did_you_mean(path.stem, {*known, *others})}")


def _study(word: str) -> Path:
    try:
        return find_study(word)
    except ManifestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_study(parser: argparse.ArgumentParser) -> None:
    """STUDY: one manifest."""
    study = parser.add_argument(
        "study", type=_study, metavar="STUDY", help="name of a study, or path of its manifest"
    )
    study.complete = {"bash": "_sdtps_studies", "zsh": "_sdtps_studies"}  # type: ignore[attr-defined]


def add_studies(parser: argparse.ArgumentParser, help_text: str) -> None:
    """[STUDY ...]: any number of studies, as typed."""
    studies = parser.add_argument("studies", nargs="*", metavar="STUDY", help=help_text)
    studies.complete = {"bash": "_sdtps_studies", "zsh": "_sdtps_studies"}  # type: ignore[attr-defined]


def add_steering(parser: argparse.ArgumentParser) -> None:
    """What every verb that steers one study takes."""
    add_study(parser)
    add_runs_dir(parser)
    add_variants(parser)
    add_seeds(parser)
    add_json(parser)


def add_data_root(parser: argparse.ArgumentParser) -> None:
    """--data-root: the folder that holds the benchmarks."""
    parser.add_argument(
        "--data-root",
        type=Path,
        metavar="FOLDER",
        help=f"folder that holds the data set's folder [${DATA_ROOT}]",
    )


def read_whole(arguments: argparse.Namespace) -> Study:
    """The study that a command line is about, with all of its variants and seeds."""
    from ablations.study.manifest import load_study

    root = getattr(arguments, "data_root", None) or os.environ.get(DATA_ROOT)
    return load_study(arguments.study, data_root=root)


def read_study(arguments: argparse.Namespace) -> Study:
    """The study that a command line is about, reduced to --variant and --seed."""
    from ablations.study.runnames import filtered

    return filtered(read_whole(arguments), arguments.variant, arguments.seed)
