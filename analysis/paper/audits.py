"""Gradient audits for the paper, as submission has kept them or made anew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.paper.macros import Macro
from analysis.tables.model import Table
from analysis.tables.study import AUDIT_PARTS, audit_table
from sdtps.audit.kept import kept_audit

if TYPE_CHECKING:
    from ablations.study.model import Study


def audited(study: Study) -> bool:
    """Whether a study has models of ours: other programs and other people's logs have no gradients."""
    return not getattr(study, "imported", False) and bool(study.models())


def document(study: Study, *, anew: bool) -> dict[str, Any]:
    """The audit of a study's variants as `sdtps audit --json` writes it."""
    made = kept_audit(study.models(), study.baseline, anew=anew)
    for row in made["variants"]:
        row["label"] = study.variants[row["variant"]].label
    return made | {"study": study.name}


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


def macros(study: Study, made: Table) -> list[Macro]:
    r"""\res{study}{variant}{audit.PART}, as the audit's table prints it."""
    return [
        Macro.of(study.name, study.variants[row.key].slug, f"audit.{column.key}", cell)
        for row in made.rows
        for column, cell in zip(made.columns, row.cells, strict=True)
        if cell.text and column.key in (*AUDIT_PARTS, "cosine", "untrained")
    ]
