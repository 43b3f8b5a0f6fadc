"""From what people type to studies and runs, and back to the commands that they may type next."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdtps.run.locations import runs_root, the_one
from sdtps.system.commandline import add_json, add_runs_dir, add_seeds, add_variants
from sdtps.system.errors import ManifestError, RunError, did_you_mean
from sdtps.system.files import read_bytes

if TYPE_CHECKING:
    from ablations.study.model import RunSpec, Study
    from ablations.study.site import Site

DATA_ROOT = "SDTPS_DATA_ROOT"
SHIPPED = Path(__file__).resolve().parents[1]  # the manifests that come with the program


def known_studies() -> dict[str, Path]:
    """Name to manifest: those in ./ablations, else in the current folder, else those shipped.

    The current folder may hold any YAML; a manifest there has a key `study`.
    """
    here = [file for file in sorted(Path().glob("*.yaml")) if _says_study(file)]
    files = [*sorted(SHIPPED.glob("*.yaml")), *here, *sorted(Path("ablations").glob("*.yaml"))]
    return {file.stem: file for file in files}  # the last of a name wins


def is_shipped(manifest: Path) -> bool:
    """Whether it came with the program, rather than from the person who works here."""
    return manifest.parent == SHIPPED


def _says_study(file: Path) -> bool:
    try:
        return re.search(rb"^study\s*:", read_bytes(file) or b"", re.MULTILINE) is not None
    except OSError:
        return False


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


def add_study(parser: argparse.ArgumentParser, *, more: bool = False) -> None:
    """STUDY: one manifest, or with `more` one or several."""
    study = parser.add_argument(
        "study",
        type=find_study,
        metavar="STUDY",
        nargs="+" if more else None,
        help="name of a study, or path of its manifest",
    )
    study.complete = {"bash": "_sdtps_studies", "zsh": "_sdtps_studies"}  # type: ignore[attr-defined]


def add_studies(parser: argparse.ArgumentParser, help_text: str) -> None:
    """[STUDY ...]: any number of studies, as typed."""
    studies = parser.add_argument("studies", nargs="*", metavar="STUDY", help=help_text)
    studies.complete = {"bash": "_sdtps_studies", "zsh": "_sdtps_studies"}  # type: ignore[attr-defined]


def add_steering(parser: argparse.ArgumentParser, *, more: bool = False) -> None:
    """What every verb that steers a study takes (with `more`: one or several studies)."""
    add_study(parser, more=more)
    add_runs_dir(parser)
    add_variants(parser)
    add_seeds(parser)
    add_json(parser)


def add_site(parser: argparse.ArgumentParser) -> None:
    """--site, and the options that win over it and over the manifest."""
    parser.add_argument(
        "--site",
        metavar="FILE",
        help="what belongs to this cluster; 'none' for no site [~/.config/sdtps/site.yaml]",
    )
    parser.add_argument(
        "--partition", metavar="NAME", help="SLURM partition, in place of the site's or the study's"
    )
    parser.add_argument(
        "--account", metavar="NAME", help="SLURM account, in place of the site's or the study's"
    )
    parser.add_argument("--gpus", metavar="[TYPE:]N", help="GPUs on each node, such as a100:2")


def site_of(arguments: argparse.Namespace) -> Site:
    """What --site names; without it the site file of this person."""
    from ablations.study.site import Site, read_site

    word = arguments.site
    return Site() if word == "none" else read_site(Path(word) if word else None)


def at_site(study: Study, arguments: argparse.Namespace) -> Study:
    """`study` with the resources that it gets here: the site fills what it leaves open, options win.

    Raises:
        ManifestError: a mistake in the site file or in the options, or resources that contradict.
    """
    from pydantic import ValidationError

    from ablations.study.schema import Resources

    if not hasattr(arguments, "site"):  # a verb that starts nothing
        return study
    site = site_of(arguments)
    options = {key: getattr(arguments, key, None) for key in ("partition", "account", "gpus")}
    given = {key: value for key, value in options.items() if value is not None}

    def placed(resources: Resources) -> Resources:
        try:
            return Resources.model_validate({**site.over(resources).model_dump(), **given})
        except ValidationError as error:
            texts = "; ".join(e["msg"].removeprefix("Value error, ") for e in error.errors())
            raise ManifestError(f"{study.path}: resources at this site: {texts}") from None

    variants = {
        name: dataclasses.replace(variant, resources=placed(variant.resources))
        for name, variant in study.variants.items()
    }
    return dataclasses.replace(study, resources=placed(study.resources), variants=variants)


def add_data_root(parser: argparse.ArgumentParser) -> None:
    """--data-root: the folder that holds the benchmarks."""
    parser.add_argument(
        "--data-root",
        type=Path,
        metavar="FOLDER",
        help=f"folder that holds the data set's folder [${DATA_ROOT}]",
    )


def read_studies(arguments: argparse.Namespace) -> list[Study]:
    """The studies that a command line is about, with all of their variants and seeds, at this site.

    A study in rounds has the seeds that its runs so far ask for. The cells of its attributions are
    studies of their own, behind it; where --variant or --seed choose among runs they are left out.
    """
    from ablations.study.manifest import load_study

    root = getattr(arguments, "data_root", None) or os.environ.get(DATA_ROOT)
    manifests = arguments.study if isinstance(arguments.study, list) else [arguments.study]
    studies = []
    for manifest in manifests:
        study = load_study(manifest, data_root=root)
        if cells := getattr(arguments, "cells", None):
            try:
                studies.append(_cells(study, json.loads(cells)))
            except (ValueError, KeyError, TypeError) as error:  # pydantic's errors are ValueErrors
                raise ManifestError(
                    f"--cells: not what `sdtps attribute` gives: {error}. Call: sdtps attribute "
                    f"{manifest} GOOD BROKEN --submit"
                ) from None
            continue
        open_runs = _open_runs(study, getattr(arguments, "runs_dir", None) or runs_root())
        studies.append(dataclasses.replace(study, seeds_of=open_runs["seeds_of"]))
        if not (getattr(arguments, "variant", None) or getattr(arguments, "seed", None)):
            studies += [_cells(study, cells) for cells in open_runs["cells"]]
    return [at_site(study, arguments) for study in studies]


def _open_runs(study: Study, runs_dir: Path) -> dict[str, Any]:
    """The seeds that rounds, and the cells that attributions, have come to.

    What depends on results is asked of `python -m analysis`, as a process: this package computes no
    statistics.

    Raises:
        RunError: it failed; its words are on standard error.
    """
    plain = [spec for spec in study.attributions if not spec.explodes]
    answer = {"seeds_of": {}, "cells": [{**spec.model_dump(), "sets": None} for spec in plain]}
    if study.rounds is None and len(plain) == len(study.attributions):
        return answer
    words = [sys.executable, "-m", "analysis", "rounds", str(study.path), "--json"]
    done = subprocess.run(
        [*words, "--runs-dir", str(runs_dir)], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise RunError(f"{study.path}: which runs come next cannot be told (see above)")
    decided = json.loads(done.stdout)
    return {"seeds_of": decided["seeds_of"], "cells": answer["cells"] + decided["cells"]}


def _cells(study: Study, cells: dict[str, Any]) -> Study:
    """The study of an attribution's cells: `AttributionSpec`, and `sets` of changes (null: all)."""
    from ablations.study.attribution import design
    from ablations.study.schema import AttributionSpec

    sets = cells.pop("sets")
    spec = AttributionSpec.model_validate({**cells, "seeds": tuple(cells["seeds"])})
    return design(study, spec, None if sets is None else [frozenset(chosen) for chosen in sets]).study


def print_json(documents: Sequence[Any]) -> None:
    """One JSON document: of one study itself, of several a list."""
    print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2))


def find_run(text: str, studies: Sequence[Study]) -> RunSpec:
    """The planned run that `text` names: VARIANT/seedK, VARIANT alone (its first seed), or a part.

    Raises:
        RunError: none, or more than one, does.
    """
    runs = {run.name: run for study in studies for run in study.runs()}
    for run in runs.values():
        if text in (run.name, run.variant, run.slug, f"{run.variant}/seed{run.seed}"):
            return run
        if text in (f"{run.slug}/seed{run.seed}", f"{run.variant}/{run.seed}", str(run.folder("runs"))):
            return run
    return runs[the_one(text, runs, f"in {studies[0].path}")]


def filtered(study: Study, variants: Sequence[str], seeds: Sequence[int]) -> Study:
    """`study` reduced to variants (names, or patterns such as 'gumbel_*') and seeds; empty: all.

    Raises:
        ManifestError: a name, pattern or seed that fits nothing.
    """
    fits = {
        text: {text} & study.variants.keys() or {v for v in study.variants if fnmatchcase(v, text)}
        for text in variants
    }
    unknown = [text for text, found in fits.items() if not found]
    texts = [f"no variant '{v}' in {study.path}. {did_you_mean(v, study.variants)}" for v in unknown]
    texts += [
        f"no seed {s} in {study.path}. Allowed: {', '.join(map(str, study.seeds))}."
        for s in seeds
        if s not in study.seeds
    ]
    if texts:
        raise ManifestError("\n".join(texts))
    chosen = set().union(*fits.values()) if variants else study.variants.keys()
    return dataclasses.replace(
        study,
        parent=study.parent or study,
        variants={name: v for name, v in study.variants.items() if name in chosen},
        seeds=tuple(s for s in study.seeds if s in seeds or not seeds),
    )


# What commands take of the options that change what they are about; those that send runs, more.
_ABOUT = ("runs_dir", "variant", "seed")
_SENDING = (*_ABOUT, "data_root", "executor", "slots")


def next_command(
    arguments: argparse.Namespace,
    study: Study,
    verb: str,
    *words: str,
    data_root: str | None = None,
) -> str:
    """`sdtps VERB STUDY ...`, to type next, about the same study and with the options that were given.

    Without --runs-dir a command would look at other runs; without --data-root it would send runs
    without their data. `data_root` is taken where none was given.
    """
    parts = [str(study.path), *words]
    for name in _SENDING if verb in ("submit", "retry") else _ABOUT:
        value = getattr(arguments, name, None) or (data_root if name == "data_root" else None)
        if value and value not in (runs_root(), "auto"):
            for one in value if isinstance(value, list) else [value]:
                parts += [f"--{name.replace('_', '-')}", str(one)]
    return f"sdtps {verb} {shlex.join(parts)}"
