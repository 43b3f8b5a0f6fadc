"""sdtps check: whether the paper still says what the runs say.

Everything is made again from the bytes of the runs, into a temporary folder, and compared with what
is there, byte for byte: nothing that an earlier build noted is believed. Fails (exit code 1) when a run
was changed after it had ended, a planned run is missing, code, data or weights are mixed, a
generated file or the PDF differs or is missing, or a verdict has changed. Each finding says how to
repair it.

It protects against accidents. Whoever forges a run can forge its seal, and the paper with it.

Where other libraries made the paper than are here, the findings name them: nothing else may differ.
"""

from __future__ import annotations

import argparse
import glob
import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ablations.study.manifest import load_study
from ablations.study.model import Study
from analysis import verbs
from analysis.runs import hints
from analysis.runs.comparable import KINDS, refuse_to_average, remedy
from sdtps.run.folder import row_of
from sdtps.system.commandline import add_json, add_runs_dir
from sdtps.system.errors import SdtpsError, counted
from sdtps.system.files import read_bytes


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: damaged run, missing run, mixed code, mixed data, mixed weights, missing file, edited,
            stale, verdict, pdf.
        where: a file, a run, or what changed. repair: a command, or what to do.
        files: generated files that it concerns, below the folder of the paper.
    """

    kind: str
    where: str
    text: str
    repair: str
    files: tuple[str, ...] = ()


_NAMED = 3  # of a finding's files, in its text; --json has all
_EDITED = "it is not what the last build wrote (an editor, or sdtps curves without --out)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs.add_main(parser)
    add_runs_dir(parser)
    verbs.add_allowances(parser)
    parser.add_argument("--no-pdf", action="store_true", help="do not check whether the PDF is current")
    add_json(parser)


def command(arguments: argparse.Namespace) -> int:
    from rich.markup import escape

    console = verbs.console()
    say = (lambda _: None) if arguments.json else (lambda text: console.print(f"[dim]{text}[/]"))
    findings = check(
        arguments.main, arguments.runs_dir, allow=arguments.allow, pdf=not arguments.no_pdf, say=say
    )
    if arguments.json:
        verbs.print_json([asdict(f) for f in findings])
        return 1 if findings else 0
    for finding in findings:
        where, text, repair = map(escape, (finding.where, finding.text, finding.repair))
        console.print(f"[red]{finding.kind}[/]  {where}: {text}\n    {repair}")
    if findings:
        console.print(f"[red]{counted(len(findings), 'finding')}[/]")
    else:
        console.print("[green]The paper says what the runs say.[/]")
    return 1 if findings else 0


def check(
    main: Path,
    runs_dir: Path,
    *,
    allow: Collection[str] = (),
    pdf: bool = True,
    studies: Sequence[Study] | None = None,
    others: Sequence[Study] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Finding]:
    """All findings.

    Args:
        pdf: make the PDF again, too.
        studies, others: default to those of the last build, read anew.
    """
    from analysis.claims.ledger import ledger_of
    from analysis.paper.build import INDEX, Options, build, is_intact, made_with, read_index

    folder = main.parent / "generated"
    index = read_index(folder)
    rebuild = hints.build(runs_dir, main, index.get("studies", ()))
    if not index:
        return [Finding("missing file", str(folder / INDEX), "the paper was never built", rebuild)]
    if not is_intact(folder):
        return [Finding("edited", str(folder / INDEX), _EDITED, rebuild, (INDEX,))]
    try:
        if studies is None:
            studies = [_load(s, runs_dir) for s in index["studies"]]
        if others is None:
            others = [verbs.read_or_tell(Path(s["path"]), studies[0]) for s in index["others"]]
        options = Options(**{**index["options"], "allow": tuple(KINDS)})
    except (SdtpsError, LookupError, TypeError) as error:
        return [Finding("stale", str(folder / INDEX), str(error), f"fix the manifest, then {rebuild}")]
    say("seals of the runs")
    findings = _runs(studies, runs_dir, allow)
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary) / folder.name
        build(studies, others, runs_dir, fresh, options, say=say, ledger=ledger_of(main))
        there, here = index["made_with"], made_with()
        changed = [f"{k} {there.get(k)} (here {here[k]})" for k in here if there.get(k) != here[k]]
        versions = f"; made with {', '.join(changed)}" if changed else ""
        findings += _files(folder, fresh, versions, rebuild)
        findings += _verdicts(folder, fresh, rebuild)
        if pdf:
            say("LaTeX")
            findings += _pdf(main, fresh, versions, rebuild)
    return findings


def _load(entry: Mapping[str, str], runs_dir: Path) -> Any:
    from analysis.importers.store import imported_study

    path = Path(entry["path"])
    if path.suffix in (".yaml", ".yml"):
        return load_study(path)
    return imported_study(entry["name"], runs_dir)


# -- runs ---------------------------------------------------------------------------------------


def _runs(studies: Sequence[Study], runs_dir: Path, allow: Collection[str]) -> list[Finding]:
    from analysis.runs.collect import collect

    collected = collect(studies, runs_dir)
    findings = []
    for mark in refuse_to_average(collected, allow=KINDS):
        study = collected.study(mark.study)
        if mark.kind in allow:
            continue
        mixed = mark.kind.startswith("mixed")
        what = mark.kind.replace("_", " ") if mixed else f"{mark.kind} run"
        for run in (run for run in collected.runs if run.folder in mark.runs):
            one = ("--variant", glob.escape(run.variant), "--seed", str(run.seed))
            text, fix = f"{run.state} ({mark.text})", hints.submit(study.path, runs_dir, *one)
            if mark.kind != "missing":
                text, fix = mark.runs[run.folder], f"delete {run.folder}, then {fix}"
            if mixed:
                text = f"{what.removeprefix('mixed ')} {text} ({mark.text})"
            if mixed and mark.kind != "mixed_precision":
                fix = remedy(mark.kind, study, runs_dir)
            findings.append(Finding(what, f"{study.name}/{run.variant} seed {run.seed}", text, fix))
    return findings


# -- files --------------------------------------------------------------------------------------


def _files(folder: Path, fresh: Path, others: str, rebuild: str) -> list[Finding]:
    """Generated files that are missing, edited, or not what the runs give today.

    Args:
        others: says which libraries had another version when the paper was built.
    """
    from analysis.paper.build import content_of, read_index

    then, now = read_index(folder), read_index(fresh)
    gone, stale, findings = [], [], []
    for before, after in zip(then["others"], now["others"], strict=False):
        if before["digest"] != after["digest"]:
            text = f"the manifest of {before['name']}, which was not run, was changed after the build"
            findings.append(Finding("stale", before["path"], text, rebuild))
    for name in sorted({**then["files"], **now["files"]}):
        here = read_bytes(folder / name)
        if here is None:
            gone.append(name)
        elif then["files"].get(name, content := content_of(folder / name)) != content:
            findings.append(Finding("edited", str(folder / name), _EDITED, rebuild, (name,)))
        elif here != read_bytes(fresh / name):
            stale.append(name)
    for kind, found, text in (
        ("missing file", gone, "built and gone"),
        ("stale", stale, f"made again from the runs, the manifests and the code, they differ{others}"),
    ):
        if found:
            where = str(folder / found[0]) if len(found) == 1 else str(folder)
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            named = f"{counted(len(found), 'file')}, {text}: {', '.join(found[:_NAMED])}{more}"
            findings.append(Finding(kind, where, named, rebuild, tuple(found)))
    return findings


def _pdf(main: Path, fresh: Path, others: str, rebuild: str) -> Iterator[Finding]:
    """The PDF, made again from the document's own files and the generated files made again."""
    from analysis.paper.pdf import PaperError, compile_pdf, record, sources

    pdf, again = main.with_suffix(".pdf"), fresh.parent / main.name
    if not pdf.is_file() or not record(main).is_file():
        yield Finding("pdf", str(pdf), "it was not built", rebuild)
        return
    for path in sources(main):
        place = fresh.parent / path.relative_to(main.parent)
        if fresh not in place.parents:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    try:
        made = compile_pdf(again)
    except PaperError as error:
        yield Finding("pdf", str(pdf), f"it cannot be made again: {error}", rebuild)
        return
    if made.read_bytes() != pdf.read_bytes():
        latex, here = (
            (row_of(read_bytes(record(paper)) or b"") or {}).get("latex") for paper in (main, again)
        )
        others += f"; made with {latex} (here {here})" if latex != here else ""
        yield Finding("pdf", str(pdf), f"made again, it differs{others}", rebuild)
    elif record(main).read_bytes() != record(again).read_bytes():
        yield Finding("edited", str(record(main)), _EDITED, rebuild)


def _verdicts(folder: Path, fresh: Path, rebuild: str) -> Iterator[Finding]:
    """Claims whose verdict today is not the one that the paper prints."""
    before, now = (_claims(place / "claims.json") for place in (folder, fresh))
    for number, verdict in now.items():
        if number in before and before[number] != verdict:
            text = f"the paper says {before[number]}, the test now says {verdict}"
            yield Finding("verdict", f"claim {number}", text, rebuild)


def _claims(path: Path) -> dict[int, str]:
    if not path.is_file():
        return {}
    try:
        return {c["id"]: c["verdict"] for c in json.loads(path.read_text("utf-8"))["claims"]}
    except (ValueError, KeyError, TypeError):  # edited: told as such
        return {}
