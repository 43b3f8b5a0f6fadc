"""What the paper inputs: tables, figures, macros and glue, all below paper/generated, all from runs.

Nothing here is written unless every byte of it follows from manifests, run folders and the CSV files of
paper/reported. index.json says what each file was made from; `analysis.paper.check` compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.figures import figure
from analysis.paper import macros
from analysis.paper import parts as evidence
from analysis.paper.macros import Macro
from analysis.runs.collect import Collected, collect
from analysis.runs.comparable import Mark, refuse_to_average
from analysis.tables import forms, latex
from analysis.tables import study as tables
from analysis.tables.forms import write_if_changed
from analysis.tables.latex import TEMPLATES, Tex
from analysis.tables.model import Table, file_name
from analysis.tables.reported import reported_tables, studies_table

if TYPE_CHECKING:
    from ablations.study.model import Study

INDEX = "index.json"


@dataclass(frozen=True)
class Options:
    """What the build was told; part of the index, so that a check repeats exactly this build."""

    venue: str = "iclr"
    allow: tuple[str, ...] = ()  # of `averaging.KINDS`


@dataclass
class Built:
    """What a build wrote."""

    folder: Path
    files: list[Path]
    marks: list[Mark]
    macros: list[Macro]
    tables: list[Table]
    figures: list[str] = field(default_factory=list)


def build(
    studies: Sequence[Study],
    others: Sequence[Study],
    runs_dir: Path,
    folder: Path,
    options: Options = Options(),
    *,
    say: Callable[[str], None] = lambda _: None,
    collected: Collected | None = None,
) -> Built:
    """Write every generated file of the paper for `studies`; `others` are named as not run.

    Raises:
        AggregationError: missing seeds, or mixed code, data or weights, that `options` do not allow.
    """
    if collected is None:
        say("reading runs")
        collected = collect(studies, runs_dir)
    marks = refuse_to_average(collected, allow=options.allow)
    folder.mkdir(parents=True, exist_ok=True)
    built = Built(folder, [], marks, [], [])
    for study in studies:
        say(f"tables of {study.name}")
        for made in tables.tables(collected, study, marks):
            built.tables.append(made)
            built.files += forms.write(made, folder / "tables")
        for drawn in figure.figures(collected, study, marks, options.venue):
            say(f"figure {drawn.name}")
            built.figures.append(drawn.name)
            built.files += figure.write(drawn, folder / "figures")
        built.macros += macros.macros(collected, study)
    overview = studies_table(collected, studies, others)
    for made in (overview, *reported_tables()):
        built.tables.append(made)
        built.files += forms.write(made, folder / "tables")
    _glue(built, studies, others)
    _remove_strangers(built)
    _index(built, studies, others, options)
    return built


def _glue(built: Built, studies: Sequence[Study], others: Sequence[Study]) -> None:
    """numbers.tex and .json, available.tex, results.tex, appendix.tex."""
    origin = [f"study {s.name}, manifest {s.digest[:10]}" for s in studies]
    origin.append("made by sdtps paper; do not edit")
    data = {
        m.name: {"text": m.text, "runs": list(m.runs), "seeds": {str(s): v for s, v in m.seeds}}
        for m in built.macros
    }
    environment = latex.environment(TEMPLATES)
    values: dict[str, Any] = {
        "origin": [Tex(line) for line in origin],
        "studies": [_for_template(s) for s in studies],
        "others": [_for_template(s) for s in others],
        "marks": [mark.text for mark in built.marks],
    }
    texts = {
        "numbers.tex": macros.numbers_file(built.macros, origin),
        "numbers.json": json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        **{
            f"{name}.tex": environment.get_template(f"{name}.tex.j2").render(values)
            for name in ("available", "results", "appendix")
        },
    }
    for name, content in texts.items():
        write_if_changed(built.folder / name, content.encode())
        built.files.append(built.folder / name)


def _for_template(study: Study) -> dict[str, Any]:
    return {
        "name": Tex(study.name),
        "plain_name": study.name,
        "title": study.title,
        "notes": study.notes,
        "tables": [Tex(file_name(study, t.name)) for t in study.tables],
        "figures": [Tex(file_name(study, f.name)) for f in study.figures],
        "nouns": [
            noun if number == 1 else f"{noun}s"
            for noun, number in zip(("variant", "seed", "run"), _size(study), strict=True)
        ],
        "shown": Tex(" ".join(_pointers(study))),
    }


def _size(study: Study) -> tuple[int, int, int]:
    """Variants, seeds and runs of a study."""
    return len(study.variants), len(study.seeds), len(study.variants) * len(study.seeds)


def _pointers(study: Study) -> list[str]:
    """Sentences that lead to a study's tables and figures."""
    kinds = (
        ("Table", "tab", study.tables, "results"),
        ("Figure", "fig", study.figures, "course of training"),
    )
    sentences = []
    for word, prefix, specs, what in kinds:
        marks = [rf"\ref{{{prefix}:{file_name(study, spec.name)}}}" for spec in specs]
        if len(marks) == 1:
            sentences.append(f"{word}~{marks[0]} shows the {what}.")
        elif marks:
            sentences.append(f"{word}s~{', '.join(marks[:-1])} and {marks[-1]} show the {what}.")
    return sentences


def _remove_strangers(built: Built) -> None:
    """Files of an earlier build that this one did not make would be read as its results."""
    mine = {*built.files, *evidence.kept(built.folder)}
    for part in ("tables", "figures"):
        for path in (built.folder / part).glob("*.*"):
            if path not in mine:
                path.unlink()


def _index(built: Built, studies: Sequence[Study], others: Sequence[Study], options: Options) -> None:
    index = {
        "options": vars(options),
        "studies": [
            {"name": s.name, "path": str(s.path), "digest": s.digest, "slugs": _slugs(s)}
            for s in studies
        ],
        "others": [{"name": s.name, "path": str(s.path), "digest": s.digest} for s in others],
        "files": {str(p.relative_to(built.folder)): sha256(p) for p in sorted(built.files)},
    }
    content = json.dumps(index, indent=1, ensure_ascii=False) + "\n"
    write_if_changed(built.folder / INDEX, content.encode())


def _slugs(study: Study) -> dict[str, str]:
    """What numbers call the variants whose names are no names of files."""
    if getattr(study, "imported", False):
        return {}
    return {name: v.slug for name, v in study.variants.items() if v.slug != name}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
