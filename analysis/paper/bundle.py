r"""Other people's documents: what one uses of our tables and numbers; archives that compile anywhere.

A document of one's own inputs `generated/sdtps` once, which defines `\res`, `\claim` and the numbers
that it uses, and any `generated/tables/NAME` and `generated/figures/NAME`. Only these are built for it.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from analysis.paper.pdf import PaperError, sources
from analysis.tables.forms import write_if_changed
from sdtps.run.locations import shipped

MACROS = "generated/sdtps.tex"
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


def write_macros(folder: Path) -> Path:
    r"""generated/sdtps.tex: the commands with the numbers and verdicts that were built beside it."""
    commands = (shipped("paper/macros.tex")).read_text(encoding="utf-8")
    commands = commands.partition("\\newcommand{\\sg}")[0]  # the paper's own mathematics ends here
    parts = [commands.replace(r"\newcommand", r"\providecommand")]
    for name in ("numbers.tex", "audit-numbers.tex", "claims-numbers.tex"):
        if (folder / name).is_file():
            parts.append((folder / name).read_text(encoding="utf-8"))
    path = folder / "sdtps.tex"
    write_if_changed(path, "".join(parts).encode())
    return path


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
