"""Gradient audits for the paper, which need the models themselves and take seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.paper.macros import Macro
from analysis.tables.model import Table
from analysis.tables.study import AUDIT_PARTS, audit_table

if TYPE_CHECKING:
    from ablations.study.model import Study


def audited(study: Study) -> bool:
    """Whether a study has models of ours: other programs and other people's logs have no gradients."""
    return not getattr(study, "imported", False) and bool(study.models())


def document(study: Study) -> dict[str, Any]:
    """The audit of a study's variants as `sdtps audit --json` writes it."""
    from sdtps.audit.audit import audit, one_thread

    labels = {name: variant.label for name, variant in study.variants.items()}
    with one_thread():  # more threads would round the last digits otherwise
        return audit(study.models(), study.baseline, study=study.name, labels=labels).as_json()


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
