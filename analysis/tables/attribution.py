"""The table of an attribution's cells."""

from __future__ import annotations

import math

from ablations.study.attribution import Cell
from ablations.study.model import as_written, slug
from analysis.results import numbers
from analysis.results.cells import Attributed, exploding, sentences
from analysis.tables import model
from analysis.tables.model import Column, Row, Table
from sdtps.system.errors import counted


def table(found: Attributed) -> Table:
    """The cells: a check mark for each change that a cell has, its metric, and how it differs."""
    changes, metric = found.attribution.changes, found.metric
    label = metric.label or found.metric_name
    ends = [key.rpartition(".")[2] for key in changes]
    columns = [
        Column("cell", "Cell", align="l"),
        *(
            Column(key, f"{end} = {as_written(changes[key][1])}")
            for key, end in zip(changes, ends, strict=True)
        ),
        Column(found.metric_name, label, unit=metric.unit, direction=metric.direction),
    ]
    if found.search is not None:
        columns.append(Column("explodes", "Explodes"))
    explodes = exploding(found) if found.search is not None else None
    rows = []
    for cell in found.attribution.cells:
        marks = tuple(model.check(key in cell.changes) for key in changes)
        cells = (model.text(cell.name), *marks, _score(found, cell))
        if explodes is not None:
            outcome = {True: "yes", False: "no", None: "--"}[explodes(cell.changes)]
            cells = (*cells, model.text(outcome))
        rows.append(Row(cell.name, cells))
    seeds = len(found.study.seeds)
    caption: tuple[str, ...] = (
        f"Cells between {found.spec.good} and {found.spec.broken}: which changes each has.",
        f"Mean and sample standard deviation over {counted(seeds, 'seed')}, last epoch.",
    )
    if found.search is None:
        family = 2 * len(changes)
        caption += (
            f"Each change is tested at both ends (Welch, moderated variances, Holm over {family}; "
            "normally distributed seeds are assumed).",
        )
    return Table(
        name=f"{found.attribution.parent}-{slug(found.spec.good)}-{slug(found.spec.broken)}",
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
        return model.Cell("state", f"equals {cell.equals}")
    values, runs = found.values(cell), found.runs_of(cell)
    where = tuple(run.where for run in runs)
    if not values:
        states = list(dict.fromkeys(run.word for run in runs))
        return model.Cell("state", "; ".join(states) or "not run", runs=where)
    mean = sum(values.values()) / len(values)
    spread = None
    if len(values) > 1:
        square = sum((v - mean) ** 2 for v in values.values()) / (len(values) - 1)
        spread = numbers.printed(math.sqrt(square), found.metric)
    short = f"{len(values)}/{len(runs)}" if len(values) < len(runs) else None
    return model.Cell(
        "number",
        numbers.printed(mean, found.metric),
        spread=spread,
        note=short,
        value=mean,
        metric=found.metric_name,
        runs=where,
        seeds=tuple(sorted(values.items())),
    )
