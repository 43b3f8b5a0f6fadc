"""sdtps check: whether the paper still says what the runs say.

Builds the paper's files again, elsewhere, from the same studies with the same options, and compares
byte by byte. Fails (exit code 1) when a file is stale, missing or edited by hand, when a planned run is
missing, when code, data or weights are mixed, when something non-finite is printed, or when main.pdf is
older than what it shows. Each finding says how to repair it.
"""

from __future__ import annotations

import argparse
import glob
import json
import re
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import commands
from analysis.runs import hints
from sdtps.commandline import add_runs_dir
from sdtps.errors import SdtpsError, counted

if TYPE_CHECKING:
    from ablations.study.model import Study


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: stale, edited, missing file, missing run, mixed code, mixed data, mixed weights,
            not finite, pdf.
        where: a file or a run. repair: a command, or what to do.
    """

    kind: str
    where: str
    text: str
    repair: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--main", type=Path, default=Path("paper/main.tex"), metavar="FILE.tex")
    parser.add_argument("--studies-dir", type=Path, default=Path("ablations"), metavar="FOLDER")
    add_runs_dir(parser)
    commands.add_allowances(parser)
    parser.add_argument("--no-pdf", action="store_true", help="do not ask whether main.pdf is current")
    parser.add_argument(
        "--no-evidence", action="store_true", help="do not ask about claims and gradient audits"
    )
    parser.add_argument("--json", action="store_true", help="print findings as JSON")


def command(arguments: argparse.Namespace) -> int:
    findings = check(
        arguments.main,
        arguments.runs_dir,
        allow=arguments.allow,
        pdf=not arguments.no_pdf,
        computed=not arguments.no_evidence,
    )
    if arguments.json:
        print(json.dumps([asdict(f) for f in findings], indent=1, ensure_ascii=False))
    else:
        console = commands.console()
        for finding in findings:
            console.print(f"[red]{finding.kind}[/]  {_plain(finding.where)}: {_plain(finding.text)}")
            console.print(f"    {_plain(finding.repair)}")
        console.print(
            f"[red]{counted(len(findings), 'finding')}[/]"
            if findings
            else "[green]The paper says what the runs say.[/]"
        )
    return 1 if findings else 0


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def check(
    main: Path,
    runs_dir: Path,
    *,
    allow: Collection[str] = (),
    pdf: bool = True,
    computed: bool = True,
    studies: Sequence[Study] | None = None,
    others: Sequence[Study] | None = None,
) -> list[Finding]:
    """All findings.

    Args:
        pdf: ask whether main.pdf is current. computed: the same of claims and gradient audits.
        studies, others: default to those of the last build, read anew.
    """
    from ablations.study.manifest import load_study
    from analysis.paper import parts as evidence
    from analysis.paper.build import INDEX
    from analysis.paper.pdf import outdated

    folder = main.parent / "generated"
    record = folder / INDEX
    rebuild = hints.build(runs_dir, main)
    if not record.exists():
        return [Finding("missing file", str(record), "the paper was never built", rebuild)]
    index = json.loads(record.read_text(encoding="utf-8"))
    findings: list[Finding] = []
    try:
        if studies is None:
            studies = [_load(s, runs_dir) for s in index["studies"]]
        if others is None:
            others = [load_study(Path(s["path"])) for s in index["others"]]
    except SdtpsError as error:
        return [Finding("stale", str(record), str(error), f"repair the manifest, then {rebuild}")]
    findings += _runs(studies, runs_dir, allow)
    findings += _files(index, folder, studies, others, runs_dir, rebuild)
    if computed:
        wanted = evidence.parts(studies, runs_dir)
        findings += [
            Finding(k, where, text, rebuild) for k, where, text in evidence.faults(folder, wanted)
        ]
    findings += _not_finite(folder, rebuild)
    if pdf and (why := outdated(main)) is not None:
        findings.append(Finding("pdf", str(main.with_suffix(".pdf")), why, rebuild))
    return findings


def _load(entry: dict[str, str], runs_dir: Path) -> Any:
    from ablations.study.manifest import load_study
    from analysis.importers.study import imported_study

    path = Path(entry["path"])
    if path.suffix in (".yaml", ".yml"):
        return load_study(path)
    return imported_study(entry["name"], runs_dir)


def _runs(studies: Sequence[Study], runs_dir: Path, allow: Collection[str]) -> list[Finding]:
    from analysis.runs.collect import collect
    from analysis.runs.comparable import KINDS, refuse_to_average

    collected = collect(studies, runs_dir, curves=False)
    findings = []
    for mark in refuse_to_average(collected, allow=KINDS):
        study = collected.study(mark.study)
        if mark.kind in allow:
            continue
        runs = collected.runs.set_index("folder")
        for folder, odd in mark.runs.items():
            run = runs.loc[folder]
            named = f"{study.name}/{run['variant']} seed {run['seed']}"
            one = ("--variant", glob.escape(str(run["variant"])), "--seed", str(run["seed"]))
            command = hints.submit(study.path, runs_dir, *one)
            if mark.kind == "missing":
                text = f"{run['state']} ({mark.text})"
                findings.append(Finding("missing run", named, text, command))
            else:
                what = mark.kind.replace("_", " ")
                text = f"{what.removeprefix('mixed ')} {odd} ({mark.text})"
                again = f"delete {folder}, then {command}"
                findings.append(Finding(what, named, text, again))
    return findings


def _files(
    index: dict,
    folder: Path,
    studies: Sequence[Study],
    others: Sequence[Study],
    runs_dir: Path,
    rebuild: str,
) -> list[Finding]:
    """Each generated file against what the last build wrote, and against what a build writes now."""
    from analysis.paper.build import INDEX, Options, build, sha256
    from analysis.runs.comparable import KINDS

    findings = []
    edited: set[str] = set()
    for name, digest in index["files"].items():
        path = folder / name
        if not path.exists():
            findings.append(Finding("missing file", str(path), "it was built and is gone", rebuild))
            edited.add(name)
        elif sha256(path) != digest:
            text = "edited by hand: it is not what the last build wrote"
            findings.append(Finding("edited", str(path), text, rebuild))
            edited.add(name)
    options = Options(index["options"]["venue"], tuple(KINDS))
    with tempfile.TemporaryDirectory() as temporary:
        again = Path(temporary) / "generated"
        build(studies, others, runs_dir, again, options)
        now = json.loads((again / INDEX).read_text(encoding="utf-8"))["files"]
    for name in sorted(now.keys() | index["files"].keys()):
        if name in edited:
            continue
        path = str(folder / name)
        if name not in index["files"]:
            findings.append(Finding("stale", path, "the runs give a file that was not built", rebuild))
        elif name not in now:
            findings.append(Finding("stale", path, "nothing asks for this file any more", rebuild))
        elif now[name] != index["files"][name]:
            findings.append(
                Finding("stale", path, "the runs or the manifest have changed since", rebuild)
            )
    return findings


def _not_finite(folder: Path, rebuild: str) -> list[Finding]:
    """Numbers that are none, in any generated text."""
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
