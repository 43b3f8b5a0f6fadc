"""A finished figure and its files: PDF, SVG, PNG, the LaTeX around it and the JSON beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from analysis.tables import latex
from analysis.tables.latex import Tex
from analysis.tables.latextable import TEMPLATES
from analysis.tables.render import write_if_changed


@dataclass(frozen=True)
class Drawn:
    """A finished figure: its files' bytes by ending, its caption, and what it was drawn from."""

    name: str
    study: str
    files: dict[str, bytes]
    caption: tuple[str, ...]
    notes: tuple[str, ...]
    origin: tuple[str, ...]
    runs: dict[str, list[str]]  # variant to folders below runs/
    width: float  # inches


def write(drawn: Drawn, folder: Path) -> list[Path]:
    """PDF, SVG, PNG, the figure environment and the JSON beside it; unchanged files are left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    template = latex.environment(TEMPLATES).get_template("figure.tex.j2")
    caption = " ".join(s for s in (*drawn.caption, *drawn.notes) if s)
    text = template.render(
        origin=[Tex(line) for line in drawn.origin],
        file=Tex(f"{folder.name}/{drawn.name}.pdf"),
        caption=caption,
        label=Tex(f"fig:{drawn.name}"),
    )
    data = {
        "figure": drawn.name,
        "study": drawn.study,
        "caption": caption,
        "origin": list(drawn.origin),
        "runs": drawn.runs,
        "width_inches": drawn.width,
    }
    files = {
        **drawn.files,
        "tex": text.encode(),
        "json": (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode(),
    }
    paths = []
    for ending, content in files.items():
        paths.append(folder / f"{drawn.name}.{ending}")
        write_if_changed(paths[-1], content)
    return paths
