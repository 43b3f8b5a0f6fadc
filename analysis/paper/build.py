"""What the paper inputs: tables, figures, macros, findings and verdicts, all below paper/generated.

Every byte follows from manifests, run folders, the claims ledger, the templates, the CSV files of
paper/reported and the code: nothing is remembered from an earlier build. index.json holds the digest of
every file. `analysis.paper.check` does not trust it, and builds again.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.claims.ledger import Answer, evaluate, ledger_of, load, studies_named
from analysis.claims.report import as_json
from analysis.claims.report import write as write_claims
from analysis.figures import figure
from analysis.figures.published_logs import NAME, record_figure
from analysis.paper import audits, macros
from analysis.paper.findings import findings
from analysis.paper.macros import Macro
from analysis.paper.pdf import own_macros
from analysis.paper.setup import least_significant, setups
from analysis.report.verb import write as write_report
from analysis.results.attribution import started
from analysis.results.frames import results
from analysis.runs.collect import Collected, collect
from analysis.runs.comparable import Mark, refuse_to_average, unlogged
from analysis.tables import forms, latex
from analysis.tables import study as tables
from analysis.tables.forms import write_if_changed
from analysis.tables.latex import TEMPLATES, Tex
from analysis.tables.model import Table, file_name
from analysis.tables.reported import reported_tables, studies_table
from sdtps.run.folder import is_sealed, row_of, sealed
from sdtps.system.files import digest, read_bytes

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import FigureSpec

INDEX = "index.json"
# The libraries whose versions change a build's bytes.
_LIBRARIES = ("torch", "numpy", "scipy", "pandas", "matplotlib")
_CLAIM = re.compile(r"\[claim (\d+)\]")


@dataclass(frozen=True)
class Options:
    """What the build was told; part of the index, so that a check repeats exactly this build.

    Attributes:
        allow: of `comparable.KINDS`.
        only: names of the tables and figures to make, and `study/variant/key` of the numbers; None is
            everything.
        evidence: evaluate claims and audit gradients. report: write report.html.
    """

    venue: str = "article"
    allow: tuple[str, ...] = ()
    evidence: bool = True
    report: bool = True
    only: tuple[str, ...] | None = None

    def wants(self, name: str) -> bool:
        return self.only is None or name in self.only

    def wants_audit(self, study: str) -> bool:
        """Its table, or one of its numbers."""
        numbers = (name for name in self.only or () if f"{study}/" in name and "/audit." in name)
        return self.wants(f"{study}-audit") or any(numbers)


@dataclass
class Built:
    """What a build wrote; `problems`: figures that could not be drawn, metrics that no run logged."""

    folder: Path
    files: list[Path] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    macros: list[Macro] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def write(self, name: str, content: str) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        write_if_changed(self.folder / name, content.encode())
        self.files.append(self.folder / name)

    def add(self, drawn: figure.Drawn) -> None:
        self.figures.append(drawn.name)
        self.files += figure.write(drawn, self.folder / "figures")
        if drawn.problem:
            self.problems.append(f"figure {drawn.name}: {drawn.problem}")


def build(
    studies: Sequence[Study],
    others: Sequence[Study],
    runs_dir: Path,
    folder: Path,
    options: Options = Options(),
    *,
    say: Callable[[str], None] = lambda _: None,
    ledger: Path | None = None,
) -> Built:
    """Write every generated file of the paper for `studies`; `others` are named as not run.

    Args:
        others: those without variants are unreadable.

    Raises:
        AggregationError: missing seeds, or mixed code, data or weights, that `options` do not allow.
    """
    ledger = ledger or ledger_of(folder.parent / "main.tex")
    say("reading runs")
    collected = collect(studies, runs_dir)
    built = Built(folder, marks=refuse_to_average(collected, allow=options.allow))
    built.problems += unlogged(collected)
    folder.mkdir(parents=True, exist_ok=True)
    if options.evidence:
        say("claims")
        built.answers = _claims(collected, others, ledger)
        studies = [with_verdicts(study, built.answers) for study in studies]
        collected = replace(collected, studies=list(studies), computed={})
    for study in studies:
        _study(built, collected, study, options, say)
    for made in (studies_table(collected, studies, others), *reported_tables()):
        _add_table(built, made, options)
    if options.wants(NAME):
        built.add(record_figure(options.venue))
    if options.evidence:
        built.files += write_claims(built.answers, built.folder)
        for study in filter(audits.audited, studies):
            if options.wants_audit(study.name):
                say(f"gradient audit of {study.name}")
                _add_audit(built, study, options)
    _glue(built, collected, studies, others, options)
    if options.report and options.only is None:
        say("report.html")
        claims = as_json(built.answers)["claims"] if built.answers else None
        examined = [json.loads(p.read_text()) for p in built.files if p.parent.name == "audits"]
        write_report(collected, folder / "report.html", claims=claims, audits=examined)
        built.files.append(folder / "report.html")
    _remove_strangers(built)
    _index(built, studies, others, options)
    return built


def _study(
    built: Built,
    collected: Collected,
    study: Study,
    options: Options,
    say: Callable[[str], None],
) -> None:
    say(f"tables of {study.name}")
    for made in tables.tables(collected, study, built.marks):
        _add_table(built, made, options)
    forest = figure.differences_figure(study)
    for spec in dict.fromkeys((*study.figures, *([forest] if forest else []))):
        name = file_name(study, spec.name)
        if options.wants(name):
            say(f"figure {name}")
            built.add(figure.try_to_draw(collected, study, spec, built.marks, options.venue))
    for found in started(collected, study):
        if options.wants(found.name):
            built.add(figure.draw_cells(collected, study, found, options.venue))
    built.macros += [m for m in macros.macros(collected, study) if options.wants(m.name)]


def _add_table(built: Built, made: Table, options: Options) -> None:
    if options.wants(made.name):
        built.tables.append(made)
        # Without --venue a document of somebody else's may be of any class.
        foreign = options.only is not None and options.venue == "article"
        venue = "any" if foreign else options.venue
        built.files += forms.write(made, built.folder / "tables", venue)


# -- claims and audits --------------------------------------------------------------------------


def _claims(collected: Collected, others: Sequence[Study], ledger: Path) -> list[Answer]:
    """Every claim's answer, by the runs of these studies and of the others that claims name."""
    claims = load(ledger)
    named = studies_named(claims)
    more = collect([s for s in others if s.name in named and s.variants], collected.runs_dir)
    studies, runs = [*collected.studies, *more.studies], (*collected.runs, *more.runs)
    return evaluate(claims, replace(collected, studies=studies, runs=runs, computed={}))


def with_verdicts(study: Study, answers: Iterable[Answer]) -> Study:
    """`study` with `[claim ID]` in its texts replaced by the sentence of the claim's verdict.

    Raises:
        SdtpsError: a text names a claim that has no sentences.
    """
    from sdtps.system.errors import SdtpsError

    known = {answer.claim.id: answer.sentence for answer in answers}

    def said(text: str) -> str:
        for number in map(int, _CLAIM.findall(text)):
            if not known.get(number):
                raise SdtpsError(f"{study.path}: [claim {number}]: the ledger has no sentences for it")
        return _CLAIM.sub(lambda found: known[int(found[1])], text)

    def spoken(spec: Any) -> Any:
        texts = {key: getattr(spec, key, None) for key in ("title", "caption", "notes")}
        return spec.model_copy(update={key: said(text) for key, text in texts.items() if text})

    return replace(
        study,
        title=said(study.title),
        notes=said(study.notes),
        tables=tuple(map(spoken, study.tables)),
        figures=tuple(map(spoken, study.figures)),
    )


def _add_audit(built: Built, study: Study, options: Options) -> None:
    document = audits.document(study)
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    built.write(f"audits/{study.name}.json", text)
    made = audits.table(document, study)
    _add_table(built, made, options)
    built.macros += [m for m in audits.macros(study, made) if options.wants(m.name)]


# -- what holds it together ---------------------------------------------------------------------


def _glue(
    built: Built,
    collected: Collected,
    studies: Sequence[Study],
    others: Sequence[Study],
    options: Options,
) -> None:
    """numbers.tex and .json, and the files that main.tex inputs for whatever was run."""
    origin = [f"study {s.name}, manifest {s.digest[:10]}" for s in studies]
    origin.append("made by sdtps paper; do not edit")
    data = {
        m.name: {"text": m.text, "runs": list(m.runs), "seeds": {str(s): v for s, v in m.seeds}}
        for m in built.macros
    }
    built.write("numbers.tex", macros.numbers_file(built.macros, origin))
    built.write("numbers.json", json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    if options.only is not None:
        built.write("sdtps.tex", own_macros(built.folder))
        return
    values: dict[str, Any] = {
        "origin": [Tex(line) for line in origin],
        "studies": [_for_template(s, collected) for s in studies],
        "setups": setups(collected),
    }
    environment = latex.environment(TEMPLATES)
    for name in ("available", "setup", "results", "appendix"):
        built.write(f"{name}.tex", environment.get_template(f"{name}.tex.j2").render(values))


def _for_template(study: Study, collected: Collected) -> dict[str, Any]:
    size = len(study.variants), len(study.seeds), len(study.variants) * len(study.seeds)
    values = {
        "name": Tex(study.name),
        "plain_name": study.name,
        "title": study.title,
        "notes": study.notes,
        "attributions": started(collected, study),
        "nouns": [
            noun if number == 1 else f"{noun}s"
            for noun, number in zip(("variant", "seed", "run"), size, strict=True)
        ],
    }
    if getattr(study, "imported", False):
        return {**values, "shown": _shown(collected, study, study.figures)}
    found, forest = results(collected, study), figure.differences_figure(study)
    figures = study.figures if forest is None or forest in study.figures else (forest, *study.figures)
    return {
        **values,
        "least": least_significant(found),
        "sentences": findings(found, forest.margin if forest else None),
        "shown": _shown(collected, study, figures),
    }


def _shown(
    collected: Collected, study: Study, figures: Sequence[FigureSpec]
) -> list[tuple[Tex, list[Tex]]]:
    """Sentences on what tables and figures of a study show, each with the files of those it names."""
    placed = [("tables", file_name(study, s.name), "the scores") for s in tables.declared_tables(study)]
    for spec in sorted(figures, key=lambda spec: spec.kind != "differences"):
        placed.append(("figures", file_name(study, spec.name), figure.SHOWS[spec.kind]))
    # More would stand too far from the sentence.
    groups = [placed[at : at + 2] for at in range(0, len(placed), 2)]
    for found in started(collected, study):
        changes = latex.escape(found.study.title.replace("What", "what", 1))
        groups.append([(place, found.name, str(changes)) for place in ("tables", "figures")])
    shown = []
    for group in groups:
        of: dict[str, list[str]] = {}
        for place, name, what in group:
            of.setdefault(what, []).append(rf"{place[:-1].title()}~\ref{{{place[:3]}:{name}}}")
        parts = [f"{' and '.join(named)} for {what}" for what, named in of.items()]
        files = [Tex(f"{place}/{name}") for place, name, _ in group]
        shown.append((Tex(f"See {', '.join(parts)}."), files))
    return shown


def _remove_strangers(built: Built) -> None:
    """Remove files of an earlier build: they would be read as results of this one."""
    for part in ("tables", "figures", "audits"):
        for path in (built.folder / part).glob("*.*"):
            if path not in built.files:
                path.unlink()


# -- the record of a build ----------------------------------------------------------------------


def content_of(path: Path) -> str:
    """Digest of a file's contents; empty without one, the reason where it cannot be read."""
    try:
        content = read_bytes(path)
    except OSError as error:  # it may be readable later
        return str(error)
    return "" if content is None else digest(content)


def made_with() -> dict[str, str]:
    """Versions of what computes and draws."""
    return {"python": sys.version.split()[0], **{name: version(name) for name in _LIBRARIES}}


def _index(built: Built, studies: Sequence[Study], others: Sequence[Study], options: Options) -> None:
    index = {
        "options": vars(options),
        "studies": [
            {"name": s.name, "path": _short(s.path), "digest": s.digest, "slugs": _slugs(s)}
            for s in studies
        ],
        "others": [{"name": s.name, "path": _short(s.path), "digest": s.digest} for s in others],
        "made_with": made_with(),
        "files": {
            str(path.relative_to(built.folder)): content_of(path) for path in sorted(set(built.files))
        },
    }
    built.write(INDEX, sealed(index, {}, indent=1) + "\n")


def read_index(folder: Path) -> dict[str, Any]:
    """index.json of the last build; empty where nothing was built."""
    return row_of(read_bytes(folder / INDEX) or b"") or {}


def is_intact(folder: Path) -> bool:
    """Whether index.json is as the last build wrote it."""
    text = read_bytes(folder / INDEX) or b""
    return is_sealed(text, row_of(text) or {})


def _short(path: Path) -> str:
    """A manifest's path from the current folder where it lies below it: papers are moved."""
    here = Path.cwd()
    return str(path.resolve().relative_to(here)) if path.resolve().is_relative_to(here) else str(path)


def _slugs(study: Study) -> dict[str, str]:
    """What numbers call the variants whose names are no names of files."""
    if getattr(study, "imported", False):
        return {}
    return {name: v.slug for name, v in study.variants.items() if v.slug != name}
