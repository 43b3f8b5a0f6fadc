r"""main.tex to main.pdf with latexmk, the same bytes each time, and LaTeX's complaints in plain words.

What a document inputs is read from LaTeX's own record of the files that it opened (-recorder). From it
follows an archive that compiles anywhere.

A document of one's own inputs `generated/sdtps` once, which defines `\res`, `\claim` and the numbers
that it uses, and any `generated/tables/NAME` and `generated/figures/NAME`. Only these are built for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

from analysis.tables.forms import write_if_changed
from sdtps.run.folder import row_of
from sdtps.run.locations import shipped
from sdtps.system.errors import SdtpsError
from sdtps.system.files import digest, read_bytes

# Any fixed time does: the PDF has no dates, and pdfTeX seeds its identifiers with it.
ENVIRONMENT = {"SOURCE_DATE_EPOCH": "1767225600", "FORCE_SOURCE_DATE": "1"}


class PaperError(SdtpsError):
    """The paper cannot be built; the text says why."""


def record(main: Path) -> Path:
    """Digests of what the PDF of `main` was made from, and of itself."""
    return main.parent / "generated" / ("pdf.json" if main.stem == "main" else f"pdf-{main.stem}.json")


def compile_pdf(main: Path) -> Path:
    """Run latexmk (pdfLaTeX and BibTeX) on `main`; record what went in.

    Raises:
        PaperError: no LaTeX, or LaTeX's first error with its place.
    """
    missing = [tool for tool in ("latexmk", "pdflatex") if shutil.which(tool) is None]
    if missing:
        raise PaperError(
            f"{' and '.join(missing)} not found: tables, figures and numbers are written, the PDF is "
            "not. On Debian: apt-get install --no-install-recommends texlive-latex-recommended "
            "texlive-latex-extra texlive-fonts-recommended lmodern latexmk"
        )
    words = ["latexmk", "-pdf", "-bibtex", "-interaction=nonstopmode", "-halt-on-error"]
    # latexmk does not look for files that LaTeX asked for and did not find.
    words += ["-file-line-error", "-recorder", *([] if is_current(main) else ["-g"]), main.name]
    done = subprocess.run(
        words,
        cwd=main.parent,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        raise PaperError(
            f"{main}: LaTeX stopped. {first_error(done.stdout)}\n  Log: {main.with_suffix('.log')}"
        )
    write_if_changed(record(main), json.dumps(_made(main), indent=1).encode() + b"\n")
    return main.with_suffix(".pdf")


def _made(main: Path) -> dict[str, str]:
    log = main.with_suffix(".log").read_text(encoding="latin-1")
    inputs = [f"{p.relative_to(main.parent)} {digest(p.read_bytes())}" for p in sources(main)]
    return {
        "latex": " ".join(re.findall(r"This is (\S+, Version \S+)", log)[:1]),
        "inputs": digest("\n".join(inputs).encode()),
        "pdf": digest(main.with_suffix(".pdf").read_bytes()),
    }


def is_current(main: Path) -> bool:
    """Whether LaTeX would change nothing: the PDF and all that it was made from are as it left them."""
    pdf, made = main.with_suffix(".pdf"), record(main)
    logged = main.with_suffix(".log").is_file()
    return pdf.is_file() and logged and row_of(read_bytes(made) or b"") == _made(main)


def first_error(output: str) -> str:
    """The first error of a LaTeX run, with the lines that say where."""
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("!") or re.match(r"\S+\.tex:\d+: ", line):
            return " ".join(part.strip() for part in lines[number : number + 3])
    return "\n".join(lines[-5:])


def complaints(main: Path) -> list[str]:
    """Overfull boxes, undefined references, missing characters; none stops the build."""
    log = main.with_suffix(".log")
    text = log.read_text(encoding="latin-1") if log.exists() else ""
    text = re.sub(r"(?<=.{79})\n", "", text)  # TeX breaks its log's lines at 79 characters
    patterns = (
        r"Overfull \\[hv]box \([^)]*\)[^\n]*",
        r"(?:LaTeX|Package natbib) Warning: (?:Reference|Citation|Label)[^\n]*",
        r"LaTeX Warning: There were [^\n]*",
        r"Missing character:[^\n]*",
    )
    return [found for pattern in patterns for found in re.findall(pattern, text)]


def sources(main: Path) -> list[Path]:
    """Every file beside or below `main` that LaTeX reads, and those that it looks for.

    By its own record of the last run where there is one; by main.tex's folder before the first.
    """
    root = main.parent.resolve()
    listed = main.with_suffix(".fls")
    found = {main.resolve()}
    if listed.is_file():
        for line in listed.read_text(encoding="utf-8", errors="replace").splitlines():
            kind, _, name = line.partition(" ")
            path = (root / name).resolve()
            if kind == "INPUT" and path.is_relative_to(root):
                found.add(path)
    else:
        found.update(root.glob("*.tex"), root.glob("sections/*.tex"))
    found.update(root.glob("*.bib"))
    # Looked for with \IfFileExists and not there at the last run: their coming changes the PDF.
    found.update(root.glob("generated/*.tex"))
    made = {".aux", ".log", ".out", ".toc", ".bbl", ".blg", ".fls"}
    keep = [p for p in found if p.suffix not in made and p.is_file()]
    return sorted(main.parent / path.relative_to(root) for path in keep)


# -- other people's documents and archives ------------------------------------------------------


_INPUT = re.compile(r"\\(?:input|include|subfile)\s*\{([^{}#]+)\}")
_PICTURE = re.compile(r"\\includegraphics\s*(?:\[[^\]]*\])?\s*\{([^{}#]+)\}")
_NUMBER = re.compile(r"\\(?:res|ifres)\s*\{([^{}#]*)\}\s*\{([^{}#]*)\}\s*\{([^{}#]*)\}")
_COMMENT = re.compile(r"(?<!\\)%[^\n]*")
# Of the folder generated/, besides what LaTeX reads: where every number comes from.
PROVENANCE = ("index.json", "numbers.json", "claims.json")


def used(main: Path) -> tuple[str, ...] | None:
    r"""Tables, figures and numbers (`study/variant/key`) that a document names; None: all of them.

    None is for our own paper, which inputs generated/results and so whatever was run.

    Raises:
        PaperError: the document does not exist.
    """
    if not main.is_file():
        raise PaperError(f"{main}: there is no such document")
    names: dict[str, None] = {}
    waiting, seen = [main], set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        text = _COMMENT.sub("", path.read_text(encoding="utf-8", errors="replace"))
        for found in (*_INPUT.findall(text), *_PICTURE.findall(text)):
            target = Path(found.replace(r"\generated", "generated"))
            if target.with_suffix("").as_posix() == "generated/results":
                return None
            if target.parent.name in ("tables", "figures"):
                names[target.stem if target.suffix in (".tex", ".pdf") else target.name] = None
            else:
                own = main.parent / (
                    target if target.suffix else target.with_name(f"{target.name}.tex")
                )
                if own.is_file() and own not in seen and "generated" not in target.parts:
                    waiting.append(own)
        names.update({"/".join(number): None for number in _NUMBER.findall(text)})
    return tuple(names)


def own_macros(folder: Path) -> str:
    r"""generated/sdtps.tex: the commands with the numbers and verdicts that were built beside it."""
    commands = shipped("paper/macros.tex").read_text(encoding="utf-8")
    commands = commands.partition("\\newcommand{\\sg}")[0]  # the paper's own mathematics ends here
    parts = [commands.replace(r"\newcommand", r"\providecommand")]
    for name in ("numbers.tex", "claims-numbers.tex"):
        if (folder / name).is_file():
            parts.append((folder / name).read_text(encoding="utf-8"))
    return "".join(parts)


def bundle(main: Path, out: Path) -> list[str]:
    """Write an archive with which pdflatex and bibtex make the PDF in an empty folder, offline.

    Returns:
        The names in it.

    Raises:
        PaperError: the PDF was not built, or a file in it names a place on this machine.
    """
    if not main.with_suffix(".fls").is_file():
        raise PaperError(f"{main}: build the PDF first; the archive holds what LaTeX read for it")
    files = {p.relative_to(main.parent).as_posix(): p for p in sources(main)}
    for name, path in list(files.items()):
        beside = path.with_suffix(".json")
        if path.parent.name in ("tables", "figures") and beside.is_file():
            files[str(Path(name).with_suffix(".json").as_posix())] = beside
    for name in PROVENANCE:
        path = main.parent / "generated" / name
        if path.is_file():
            files[f"generated/{name}"] = path
    for ending in (".bbl", ".pdf"):
        if main.with_suffix(ending).is_file():
            files[main.with_suffix(ending).name] = main.with_suffix(ending)
    named = [
        f"{name}: names {place}"
        for name, path in files.items()
        if path.suffix != ".pdf"
        for place in _places(main, path)
    ]
    if named:
        raise PaperError(
            "not written, because it would hold paths of this machine:\n" + "\n".join(named)
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            # A fixed date: the same paper gives the same archive.
            entry = zipfile.ZipInfo(name, date_time=(2026, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name].read_bytes())
    return sorted(files)


def _places(main: Path, path: Path) -> list[str]:
    """Folders of this machine that a file names, and absolute paths in the JSON beside numbers."""
    text = path.read_text(encoding="utf-8", errors="replace")
    here = {str(Path.cwd()), str(main.parent.resolve()), str(Path.home())}
    found = [place for place in sorted(here) if len(Path(place).parts) > 1 and place in text]
    return [*found, *(re.findall(r'"(/[^"/]+/[^"]*)"', text)[:3] if path.suffix == ".json" else [])]
