"""Gradient audits for the paper: computed once for the same code and manifest, then read.

An audit needs the model itself and takes seconds, so its document is kept in generated/audits/ together
with the key of what it depends on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.tables.forms import write_if_changed
from analysis.tables.model import Table
from analysis.tables.study import audit_table

if TYPE_CHECKING:
    from ablations.study.model import Study


def key(study: Study) -> str:
    """Changes with the sources of sdtps and with the study's manifest."""
    from sdtps.run.provenance import source_digest

    return hashlib.sha256(f"{source_digest()} {study.digest}".encode()).hexdigest()[:16]


def audited(study: Study) -> bool:
    """Whether a study has models of ours: other programs and other people's logs have no gradients."""
    return not getattr(study, "imported", False) and bool(study.models())


def path_of(folder: Path, study: Study) -> Path:
    return folder / "audits" / f"{study.name}.json"


def document(folder: Path, study: Study) -> dict[str, Any] | None:
    """The kept audit of a study, whatever it was made from; None where there is none."""
    path = path_of(folder, study)
    found: dict[str, Any] | None = json.loads(path.read_text("utf-8")) if path.is_file() else None
    return found


def update(folder: Path, study: Study, known: str | None, say: Callable[[str], None]) -> str:
    """Audit `study` unless the kept document has the right key; returns that key.

    Args:
        known: the key of the document that is there.
    """
    wanted = key(study)
    if known != wanted or document(folder, study) is None:
        say(f"gradient audit of {study.name}")
        from sdtps.audit.audit import audit, write

        labels = {name: variant.label for name, variant in study.variants.items()}
        found = audit(study.models(), study.baseline, study=study.name, labels=labels)
        path = path_of(folder, study)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(found, path)
    return wanted


def table(document: dict[str, Any], study: Study) -> Table:
    """The audit as a table whose cells name the runs of the audited configurations."""
    made = audit_table(document)
    runs: dict[str, list[str]] = {}
    for run in study.runs():
        runs.setdefault(run.variant, []).append(run.name)
    rows = tuple(
        replace(
            row, cells=tuple(replace(cell, runs=tuple(runs.get(row.key, ()))) for cell in row.cells)
        )
        for row in made.rows
    )
    return replace(made, rows=rows)


def macros_file(tables: list[tuple[Study, Table]]) -> str:
    r"""audit-numbers.tex: \res{study}{variant}{audit.PART}, as the audit's table prints it."""
    from analysis.paper.macros import definition
    from analysis.tables.latex import latex_cell
    from analysis.tables.study import AUDIT_PARTS

    lines = ["% made by sdtps paper; do not edit"]
    for study, made in tables:
        for row in made.rows:
            for column, cell in zip(made.columns, row.cells, strict=True):
                if cell.text and column.key in (*AUDIT_PARTS, "cosine", "untrained"):
                    slug = study.variants[row.key].slug
                    lines.append(definition(study.name, slug, f"audit.{column.key}", latex_cell(cell)))
    return "\n".join(lines) + "\n"


def write_macros(folder: Path, tables: list[tuple[Study, Table]]) -> Path:
    path = folder / "audit-numbers.tex"
    write_if_changed(path, macros_file(tables).encode())
    return path
