"""The table of an attribution's cells, which `analysis.results.attribution` computes."""

from __future__ import annotations

from ablations.study.attribution import Cell
from ablations.study.model import as_written
from analysis.results.attribution import Attributed, exploding, sentences
from analysis.results.frames import results
from analysis.tables import model
from analysis.tables.model import Column, Row, Table
from sdtps.system.errors import counted


def table(found: Attributed) -> Table:
    """The cells: a check mark for each change that a cell has, its metric, and how it differs."""
    changes, metric = found.attribution.changes, found.metric
    label = metric.label or found.metric_name
    columns = [
        Column("cell", "Cell", align="l"),
        *(Column(k, f"{k.rpartition('.')[2]} = {as_written(v)}") for k, (_, v) in changes.items()),
        Column(found.metric_name, label, unit=metric.unit, direction=metric.direction),
    ]
    if found.search is not None:
        columns.append(Column("explodes", "Explodes"))
    explodes = exploding(found) if found.search is not None else None
    rows = []
    for cell in found.attribution.cells:
        marks = tuple(model.check(key in cell.changes) for key in changes)
        cells = (model.text(cell.label), *marks, _score(found, cell))
        if explodes is not None:
            outcome = {True: "yes", False: "no", None: "--"}[explodes(cell.changes)]
            cells = (*cells, model.text(outcome))
        rows.append(Row(cell.name, cells))
    seeds = len(found.study.seeds)
    caption: tuple[str, ...] = (
        f"{found.study.title}: which changes each cell has.",
        f"Mean and sample standard deviation over {counted(seeds, 'seed')}, last epoch.",
    )
    if found.search is None:
        family = 2 * len(changes)
        caption += (
            f"Each change is tested at both ends (Welch, moderated variances, Holm over {family}; "
            "normally distributed seeds are assumed).",
        )
    return Table(
        name=found.name,
        study=found.attribution.parent,
        title=f"Which change makes {found.spec.broken} differ from {found.spec.good}",
        columns=tuple(columns),
        rows=tuple(rows),
        caption=caption,
        notes=tuple(sentences(found)),
    )


def _score(found: Attributed, cell: Cell) -> model.Cell:
    if cell.impossible:
        return model.Cell("state", "cannot exist")
    if cell.equals:
        return model.Cell("state", f"equals {found.outcomes[cell.equals].label}")
    result = results(found.collected, found.study).get(cell.name, found.metric_name)
    return model.score_cell(result, found.outcomes[cell.name], found.metric)
