"""sdtps check: whether the paper still says what the runs say.

Fails (exit code 1) when a run folder contradicts itself, a planned run is missing, code, data or
weights are mixed, a generated file is missing, edited or out of date, a verdict has changed, NaN or
infinity is printed, or the PDF is older than its sources. Each finding says how to repair it.

Nothing is built again while every input is what the last build saw. Where one has changed, the files
are built elsewhere and compared: one finding says what changed and names the files that differ.
"""

from __future__ import annotations

import argparse
import glob
import json
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import commands
from sdtps.system.commandline import add_json, add_runs_dir
from sdtps.system.errors import SdtpsError, counted

if TYPE_CHECKING:
    from ablations.study.model import Study


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: edited run, missing run, mixed code, mixed data, mixed weights, missing file, edited,
            stale, verdict, not finite, pdf.
        where: a file, a run, or what changed. repair: a command, or what to do.
        files: generated files that it concerns, below the folder of the paper.
    """

    kind: str
    where: str
    text: str
    repair: str
    files: tuple[str, ...] = ()


_NAMED = 3  # of a finding's files, in its text; --json has all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--main",
        type=Path,
        default=Path("paper/main.tex"),
        metavar="FILE.tex",
        help="the document [paper/main.tex]",
    )
    add_runs_dir(parser)
    commands.add_allowances(parser)
    parser.add_argument("--no-pdf", action="store_true", help="do not check whether the PDF is current")
    add_json(parser)


def command(arguments: argparse.Namespace) -> int:
    findings = check(
        arguments.main, arguments.runs_dir, allow=arguments.allow, pdf=not arguments.no_pdf
    )
    if arguments.json:
        print(json.dumps([asdict(f) for f in findings], indent=1, ensure_ascii=False))
        return 1 if findings else 0
    console = commands.console()
    for finding in findings:
        where, text, repair = (
            part.replace("[", r"\[") for part in (finding.where, finding.text, finding.repair)
        )
        console.print(f"[red]{finding.kind}[/]  {where}: {text}")
        console.print(f"    {repair}")
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
    ledger: Path | None = None,
) -> list[Finding]:
    """All findings.

    Args:
        pdf: ask whether the PDF is current.
        studies, others: default to those of the last build, read anew.
    """
    from ablations.study.manifest import load_study
    from analysis.claims.ledger import ledger_of
    from analysis.paper.build import INDEX, read_index
    from analysis.paper.pdf import outdated
    from analysis.runs import hints

    folder = main.parent / "generated"
    index = read_index(folder)
    rebuild = hints.build(runs_dir, main, index.get("studies", ()))
    if not index:
        return [Finding("missing file", str(folder / INDEX), "the paper was never built", rebuild)]
    try:
        if studies is None:
            studies = [_load(s, runs_dir) for s in index["studies"]]
        if others is None:
            others = [load_study(Path(s["path"])) for s in index["others"]]
    except SdtpsError as error:
        return [Finding("stale", str(folder / INDEX), str(error), f"fix the manifest, then {rebuild}")]
    findings = _runs(studies, runs_dir, allow)
    findings += _touched(index, folder, rebuild)
    told = {name for f in findings for name in f.files}
    findings += _stale(
        index, folder, studies, others, runs_dir, ledger or ledger_of(main), rebuild, told
    )
    findings += _not_finite(folder, rebuild)
    if pdf and (why := outdated(main, told)) is not None:
        findings.append(Finding("pdf", str(main.with_suffix(".pdf")), why, rebuild))
    return findings


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _NAMED
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown


def _load(entry: Mapping[str, str], runs_dir: Path) -> Any:
    from ablations.study.manifest import load_study
    from analysis.importers.store import imported_study

    path = Path(entry["path"])
    if path.suffix in (".yaml", ".yml"):
        return load_study(path)
    return imported_study(entry["name"], runs_dir)


# -- runs ---------------------------------------------------------------------------------------


def _runs(studies: Sequence[Study], runs_dir: Path, allow: Collection[str]) -> list[Finding]:
    from analysis.runs import hints
    from analysis.runs.collect import collect
    from analysis.runs.comparable import KINDS, refuse_to_average

    collected = collect(studies, runs_dir)
    findings = []
    for mark in refuse_to_average(collected, allow=KINDS):
        study = collected.study(mark.study)
        if mark.kind in allow:
            continue
        runs = {run.folder: run for run in collected.runs}
        for folder, odd in mark.runs.items():
            run = runs[folder]
            named = f"{study.name}/{run.variant} seed {run.seed}"
            one = ("--variant", glob.escape(run.variant), "--seed", str(run.seed))
            again = hints.submit(study.path, runs_dir, *one)
            if mark.kind == "missing":
                text = f"{run.state} ({mark.text})"
                findings.append(Finding("missing run", named, text, again))
                continue
            what = {"damaged": "damaged run"}.get(mark.kind, mark.kind.replace("_", " "))
            text = (
                odd if mark.kind == "damaged" else f"{what.removeprefix('mixed ')} {odd} ({mark.text})"
            )
            findings.append(Finding(what, named, text, f"delete {folder}, then {again}"))
    return findings


# -- files --------------------------------------------------------------------------------------


def _touched(index: Mapping[str, Any], folder: Path, rebuild: str) -> Iterator[Finding]:
    """Generated files that are gone, together, and each that is not what the last build wrote."""
    from analysis.paper.build import sha256

    gone = [name for name in index["files"] if not (folder / name).exists()]
    if gone:
        one = len(gone) == 1
        where = str(folder / gone[0]) if one else str(folder)
        text = "it was built and is gone" if one else f"{len(gone)} files are gone: {_listed(gone)}"
        yield Finding("missing file", where, text, rebuild, tuple(gone))
    for name, digest in index["files"].items():
        path = folder / name
        if path.exists() and sha256(path) != digest:
            text = "edited by hand: it is not what the last build wrote"
            yield Finding("edited", str(path), text, rebuild, (name,))


def _stale(
    index: Mapping[str, Any],
    folder: Path,
    studies: Sequence[Study],
    others: Sequence[Study],
    runs_dir: Path,
    ledger: Path,
    rebuild: str,
    told: Collection[str],
) -> list[Finding]:
    """What a build would write otherwise today, and which changed input is behind it."""
    from analysis.paper import audits
    from analysis.paper.build import Options, build, inputs, read_index

    now = inputs(studies, others, runs_dir, ledger)
    before = index["inputs"]
    changed = [name for name in {**before, **now} if now.get(name) != before.get(name)]
    old = [
        study.name
        for study in studies
        if study.name in index["audits"] and index["audits"][study.name] != audits.key(study)
    ]
    findings = []
    if old:
        text = "the code of sdtps/ or the manifest has changed since"
        findings.append(Finding("stale", f"gradient audit of {', '.join(old)}", text, rebuild))
    if not changed:
        return findings
    from analysis.runs.comparable import KINDS

    why = f"changed since the last build: {', '.join(changed)}"
    options = Options(**{**index["options"], "allow": tuple(KINDS)})
    if options.only is not None:
        options = Options(**{**vars(options), "only": tuple(options.only)})
    with tempfile.TemporaryDirectory() as temporary:
        again = Path(temporary) / "generated"
        build(studies, others, runs_dir, again, options, ledger=ledger, kept=folder)
        files = read_index(again)["files"]
        findings += _verdicts(folder, again, why, rebuild)
    now_and_then = sorted(files.keys() | index["files"].keys())
    differ = tuple(
        name
        for name in now_and_then
        if name not in told and not name.startswith("audits/")
        if files.get(name) != index["files"].get(name)
    )
    if differ:
        those = "this file differs" if len(differ) == 1 else f"{len(differ)} files differ"
        text = f"{why}; built again, {those}: {_listed(differ)}"
        findings.append(Finding("stale", str(folder), text, rebuild, differ))
    return findings


def _verdicts(folder: Path, again: Path, why: str, rebuild: str) -> Iterator[Finding]:
    """Claims whose verdict today is not the one that the paper prints."""
    before, now = (_claims(place / "claims.json") for place in (folder, again))
    for number, verdict in now.items():
        if number in before and before[number] != verdict:
            text = f"the paper says {before[number]}, the test now says {verdict}; {why}"
            yield Finding("verdict", f"claim {number}", text, rebuild)


def _claims(path: Path) -> dict[int, str]:
    if not path.is_file():
        return {}
    try:
        return {c["id"]: c["verdict"] for c in json.loads(path.read_text("utf-8"))["claims"]}
    except (ValueError, KeyError, TypeError):  # edited: told as such
        return {}


def _not_finite(folder: Path, rebuild: str) -> list[Finding]:
    """NaN and infinity in any generated text."""
    findings = []
    word = re.compile(r"(?<![\w/.-])(nan|NaN|inf|-inf|Infinity)(?![\w/.-])")
    for path in sorted(folder.glob("**/*")):
        if path.suffix not in (".tex", ".json", ".csv", ".md"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if path.suffix == ".json" and line.lstrip().startswith('"') and '": ' not in line:
                continue  # an element of a list of texts: a path or a name
            if found := word.search(re.sub(r'"[^"]*"', "", line) if path.suffix == ".json" else line):
                text = f"line {number} prints '{found[0]}'"
                findings.append(Finding("not finite", str(path), text, f"report it; then {rebuild}"))
                break
    return findings
