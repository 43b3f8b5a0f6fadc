"""main.tex to main.pdf with latexmk, the same bytes each time, and its complaints in plain words."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from analysis.tables.forms import write_if_changed
from sdtps.errors import SdtpsError

# Any fixed time does: the PDF has no dates, and pdfTeX seeds its identifiers with it.
ENVIRONMENT = {"SOURCE_DATE_EPOCH": "1767225600", "FORCE_SOURCE_DATE": "1"}
INPUTS = "pdf.json"


class PaperError(SdtpsError):
    """The paper cannot be built; the text says why."""


def compile_pdf(main: Path) -> Path:
    """Run latexmk on `main`; record in generated/pdf.json what went in.

    Raises:
        PaperError: no LaTeX, or LaTeX's first error with its place.
    """
    missing = [tool for tool in ("latexmk", "pdflatex") if shutil.which(tool) is None]
    if missing:
        raise PaperError(
            f"{' and '.join(missing)} not found: tables, figures and numbers are written, the PDF is "
            "not. On Debian: apt-get install --no-install-recommends texlive-latex-recommended "
            "texlive-fonts-recommended lmodern latexmk"
        )
    done = subprocess.run(
        [
            "latexmk",
            "-pdf",
            "-interaction=nonstopmode",
            "-halt-on-error",
            "-file-line-error",
            # latexmk does not look for files that LaTeX asked for and did not find.
            *(["-g"] if outdated(main) else []),
            main.name,
        ],
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
    write_if_changed(main.parent / "generated" / INPUTS, _inputs(main).encode())
    return main.with_suffix(".pdf")


def first_error(output: str) -> str:
    """The first error of a LaTeX run, with the lines that say where."""
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("!") or re.match(r"\S+\.tex:\d+: ", line):
            return " ".join(part.strip() for part in lines[number : number + 3])
    return "\n".join(lines[-5:])


def complaints(log: Path) -> list[str]:
    """Overfull boxes, undefined references and missing characters of a run's log."""
    text = log.read_text(encoding="latin-1") if log.exists() else ""
    text = re.sub(r"(?<=.{79})\n", "", text)  # TeX breaks its log's lines at 79 characters
    patterns = (
        r"Overfull \\[hv]box \([^)]*\)[^\n]*",
        r"LaTeX Warning: (?:Reference|Citation|Label)[^\n]*",
        r"LaTeX Warning: There were [^\n]*",
        r"Missing character:[^\n]*",
    )
    return [found for pattern in patterns for found in re.findall(pattern, text)]


def sources(main: Path) -> list[Path]:
    """Every file that the PDF depends on: our LaTeX, and what is generated and shown."""
    root = main.parent
    found = [main, root / "macros.tex", *root.glob("sections/*.tex"), *root.glob("generated/*.tex")]
    found += [*root.glob("generated/tables/*.tex"), *root.glob("generated/figures/*.tex")]
    found += root.glob("generated/figures/*.pdf")
    return sorted(path for path in found if path.exists())


def _inputs(main: Path) -> str:
    data = {
        "pdf": hashlib.sha256(main.with_suffix(".pdf").read_bytes()).hexdigest(),
        "inputs": {
            str(p.relative_to(main.parent)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sources(main)
        },
    }
    return json.dumps(data, indent=1) + "\n"


def outdated(main: Path) -> str | None:
    """Why main.pdf is not what its sources give; None where it is."""
    record = main.parent / "generated" / INPUTS
    pdf = main.with_suffix(".pdf")
    if not pdf.exists() or not record.exists():
        return "it was not built"
    known = json.loads(record.read_text(encoding="utf-8"))
    now = json.loads(_inputs(main))
    if known["pdf"] != now["pdf"]:
        return "it was changed after it was built"
    changed = sorted(
        name
        for name in known["inputs"].keys() | now["inputs"].keys()
        if known["inputs"].get(name) != now["inputs"].get(name)
    )
    return f"changed since: {', '.join(changed)}" if changed else None
