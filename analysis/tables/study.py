"""Tables of a study, as its manifest declares them: main, components, leave-one-out, sweep.

`results.reproduction` makes the reported-against-reproduced table, `results.costs` the compute
table. Cells are honest: a mean is over finished seeds and says k/N, a variant without any says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.results import costs as resources
from analysis.results import numbers, reproduction
from analysis.results.cells import difference_cell, score_cell
from analysis.results.outcomes import Epoch, Outcome, outcomes
from analysis.results.settings import axis_says_all, by_axis, grouped, on_axis, readable, setting
from analysis.runs.averaging import Mark
from analysis.runs.collect import Collected
from analysis.tables import captions, leakmark
from analysis.tables.filenames import file_name
from analysis.tables.model import Cell, Column, Row, Table, check, ranked, text

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import MetricSpec, TableSpec


def tables(collected: Collected, study: Study, marks: Sequence[Mark] = ()) -> list[Table]:
    """Every table of a study: those of its manifest, its variants, and the compute it used."""
    made = [table(collected, study, spec, marks) for spec in study.tables]
    return [*made, variants_table(collected, study), resources.compute_table(collected, study, marks)]


def table(collected: Collected, study: Study, spec: TableSpec, marks: Sequence[Mark] = ()) -> Table:
    """One declared table."""
    if spec.kind == "reported":
        return reproduction.reported_table(collected, study, spec, marks)
    found = outcomes(collected, study)
    chosen = [found[name] for name in spec.rows] if spec.rows else list(found.values())
    others: list[str] = []
    baseline = spec.baseline or (study.baseline if spec.kind == "leave_one_out" else None)
    if spec.kind == "leave_one_out" and baseline in found:
        chosen = [found[baseline], *(row for row in chosen if row.variant != baseline)]
    if spec.kind == "sweep":
        axis = str(spec.axis)
        # What differs in other settings, too, is in a sweep only where the manifest lists it.
        kept = spec.rows or on_axis(study, list(found), axis)
        others = [row.label for name, row in found.items() if name not in kept and not spec.rows]
        chosen = by_axis(study, [found[name] for name in kept], axis)
    metrics = {name: study.metrics[name] for name in spec.metrics or study.metrics}
    epochs: tuple[Epoch, ...] = ("best", "final") if spec.epoch == "both" else (spec.epoch,)
    differences = found.get(baseline) if baseline else None
    columns = [
        *_name_columns(study, spec, chosen),
        *_metric_columns(metrics, epochs, differences),
    ]
    rows = [
        Row(
            row.variant,
            (
                *_name_cells(study, spec, chosen, row),
                *_metric_cells(row, metrics, epochs, differences, chosen),
            ),
            shaded=row.variant == study.baseline and len(chosen) > 1,
        )
        for row in chosen
    ]
    rows = list(ranked(rows, columns))
    marked = any(cell.rank for row in rows for cell in row.cells)
    if spec.group_by:
        rows = grouped(study, rows, spec.group_by)
    title = spec.title or study.title
    caption = (
        captions.sentence(spec.caption or title),
        captions.statistic(chosen),
        captions.epochs(spec, collected, study),
        _difference_sentence(differences, rows),
        captions.ranking(marked),
        captions.ceiling(chosen, metrics, epochs),
        captions.data(collected, study),
        *captions.warnings(marks, study.name),
    )
    return Table(
        name=file_name(study, spec.name),
        study=study.name,
        title=title,
        columns=tuple(columns),
        rows=tuple(rows),
        caption=tuple(sentence for sentence in caption if sentence),
        notes=(
            *captions.notes(collected, study, chosen),
            *leakmark.note(study, spec, chosen),
            *captions.left_out("Not in the table", others),
            *([spec.notes] if spec.notes else []),
        ),
        origin=captions.origin(collected, study),
        marks=captions.warnings(marks, study.name),
        shading=captions.shading(found, study),
    )


# -- columns ------------------------------------------------------------------------------------


def _name_columns(study: Study, spec: TableSpec, rows: Sequence[Outcome]) -> list[Column]:
    if spec.kind == "components":
        names = _components(study, rows)
        return [Column("variant", "Variant", align="l"), *(Column(n, n, align="c") for n in names)]
    if spec.kind == "sweep":
        return [
            Column("axis", str(spec.axis), align="l"),
            *(
                [Column("variant", "Variant", align="l")]
                if not axis_says_all(study, spec, rows)
                else []
            ),
        ]
    return [Column("variant", "Variant", align="l")]


def _name_cells(study: Study, spec: TableSpec, rows: Sequence[Outcome], row: Outcome) -> list[Cell]:
    told_apart = row.imported and not all(r.imported for r in rows)
    name = text(row.label + (" (imported)" if told_apart else ""))
    if leakmark.leaks(study, spec, row):
        name = leakmark.marked(name)
    variant = study.variants.get(row.variant)
    if spec.kind == "components":
        own = variant.components if variant else {}
        return [name, *(check(own.get(c)) for c in _components(study, rows))]
    if spec.kind == "sweep":
        value = text(readable(setting(study, row.variant, str(spec.axis))))
        return [value] if axis_says_all(study, spec, rows) else [value, name]
    return [name]


def _components(study: Study, rows: Sequence[Outcome]) -> list[str]:
    names: dict[str, None] = {}
    for row in rows:
        if row.variant in study.variants:
            names.update(dict.fromkeys(study.variants[row.variant].components))
    return list(names)


def _metric_columns(
    metrics: dict[str, MetricSpec], epochs: Sequence[Epoch], baseline: Outcome | None
) -> list[Column]:
    columns = []
    for epoch in epochs:
        group = {"best": "best epoch", "final": "last epoch"}[epoch] if len(epochs) > 1 else ""
        for name, metric in metrics.items():
            label = metric.label or name
            columns.append(
                Column(
                    f"{epoch}/{name}", label, unit=metric.unit, direction=metric.direction, group=group
                )
            )
            if baseline is not None:
                columns.append(Column(f"{epoch}/{name}/difference", "Δ", tex=r"$\Delta$", group=group))
    return columns


# -- cells --------------------------------------------------------------------------------------


def _metric_cells(
    row: Outcome,
    metrics: dict[str, MetricSpec],
    epochs: Sequence[Epoch],
    baseline: Outcome | None,
    rows: Sequence[Outcome],
) -> list[Cell]:
    cells = []
    all_imported = all(r.imported for r in rows)
    for epoch in epochs:
        for name, metric in metrics.items():
            cells.append(score_cell(row, name, metric, epoch, count_imported=all_imported))
            if baseline is not None:
                others = [r for r in rows if r.variant != baseline.variant]
                cells.append(difference_cell(row, baseline, name, metric, epoch, others))
    return cells


def _difference_sentence(baseline: Outcome | None, rows: Sequence[Row]) -> str:
    """What Δ is, and what stands behind it in this table."""
    if baseline is None:
        return ""
    others = [row for row in rows if row.cells and row.key != baseline.variant]
    cells = [cell for row in others for cell in row.cells if cell.signed]
    if not cells:
        return f"Δ: difference to {baseline.label}, empty where no seed is finished in both."
    text = f"Δ: mean difference to {baseline.label}, paired by seed, from unrounded values"
    if any(cell.spread is not None for cell in cells):
        test = f"paired t test, Holm-corrected over {numbers.counted(len(others), 'row')}"
        text += ", ± half its 95 % t interval; "
        starred = any(cell.note == "*" for cell in cells)
        text += f"*: p < 0.05 in a {test}" if starred else f"none has p < 0.05 in a {test}"
    if any(not any(cell.signed for cell in row.cells) for row in others):
        text += "; empty where no seed is finished in both"
    return f"{text}."


def variants_table(collected: Collected, study: Study) -> Table:
    """Each variant with what it changes and where it comes from."""
    rows = []
    for name, variant in study.variants.items():
        changes = ", ".join(f"{k} = {readable(v)}" for k, v in variant.overrides.items())
        rows.append(
            Row(
                name,
                (
                    text(variant.label),
                    text(changes or "the base"),
                    text(variant.source or ""),
                ),
            )
        )
    columns = (
        Column("variant", "Variant", align="l"),
        Column("changes", "Differs from the base in", align="l", width=0.42),
        Column("source", "Source", align="l", width=0.25),
    )
    return Table(
        name=f"{study.name}-variants",
        study=study.name,
        title=f"Variants of {study.title}",
        columns=columns,
        rows=tuple(rows),
        caption=(f"Variants of the study {study.name}. {captions.other_settings(study)}",),
        origin=captions.origin(collected, study),
    )
