"""Tables of a study: those of its manifest, its variants, the compute it used, its gradient audit.

Numbers come from the results frame. A mean is over the finished seeds and says k/N where some are not;
a variant without any says why.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ablations.study.schema import TableSpec
from analysis.results import numbers
from analysis.results.attribution import started
from analysis.results.frames import EPOCHS, Epoch, Results, differences_to, results
from analysis.results.outcomes import Outcome, cost, machines
from analysis.runs.collect import Collected
from analysis.runs.comparable import Mark, by_axis, on_axis, readable, setting, varying
from analysis.runs.record import Run
from analysis.tables import captions
from analysis.tables.attribution import table as cells_table
from analysis.tables.model import (
    EMPTY,
    Cell,
    Column,
    Row,
    Table,
    check,
    difference_cell,
    ranked,
    score_cell,
    text,
)
from analysis.tables.reported import reported_table
from sdtps.audit.table import gradient_table

if TYPE_CHECKING:
    from ablations.study.model import Study


def tables(collected: Collected, study: Study, marks: Sequence[Mark] = ()) -> list[Table]:
    """Every table of a study: the manifest's, its attributions, its variants, and its compute."""
    made = [table(collected, study, spec, marks) for spec in declared_tables(study)]
    origin = captions.origin(collected, study)
    made += [replace(cells_table(found), origin=origin) for found in started(collected, study)]
    return [*made, variants_table(collected, study), compute_table(collected, study, marks)]


def declared_tables(study: Study) -> tuple[TableSpec, ...]:
    """The manifest's tables, and that of `sdtps reproduce` where it reports numbers in none."""
    if not study.reported or any(spec.kind == "reported" for spec in study.tables):
        return study.tables
    return (*study.tables, TableSpec(name="reproduce", kind="reported"))


def table(collected: Collected, study: Study, spec: TableSpec, marks: Sequence[Mark] = ()) -> Table:
    """One declared table."""
    if spec.kind == "reported":
        return reported_table(collected, study, spec, marks)
    if spec.kind == "conditions":
        return conditions_table(collected, study, spec, marks)
    baseline = differences_to(study, spec)
    found = results(collected, study, baseline)
    chosen, slice_note = _rows(study, spec, found.outcomes)
    epochs = shown_epochs(spec, chosen)
    metrics = spec.metrics or tuple(study.metrics)
    shown = [*_names(study, spec, chosen), *_scores(found, metrics, epochs, baseline, chosen)]
    columns = [column for column, _ in shown]
    rows = [
        Row(
            outcome.key,
            tuple(cell(outcome) for _, cell in shown),
            shaded=outcome.key == study.baseline and len(chosen) > 1,
        )
        for outcome in chosen
    ]
    rows = list(ranked(rows, columns))
    return captions.declared(
        collected,
        study,
        spec,
        marks,
        title=study.title,
        columns=columns,
        rows=_grouped(study, rows, spec.group_by) if spec.group_by else rows,
        shown=chosen,
        metrics=metrics,
        epochs=epochs,
        caption=(
            captions.differences(found, baseline, rows, metrics, epochs[0]) if baseline else "",
            captions.RANKING if any(cell.rank for row in rows for cell in row.cells) else "",
        ),
        more=slice_note,
    )


def conditions_table(
    collected: Collected, study: Study, spec: TableSpec, marks: Sequence[Mark] = ()
) -> Table:
    """One variant's metrics, a row for each condition that its runs were evaluated under."""
    found = results(collected, study)
    outcome = found.outcomes[spec.rows[0]]
    epochs = shown_epochs(spec, [outcome])
    shown = spec.metrics or tuple(study.metrics)
    of = {name: name.partition("@")[::2] for name in shown}  # mAP@missing_r: mAP under missing_r
    specs = {plain: study.metrics.get(plain, study.metrics[name]) for name, (plain, _) in of.items()}
    labels = {plain: (plain in study.metrics and s.label) or plain for plain, s in specs.items()}
    columns, rows = [Column("condition", "Evaluated", align="l")], []
    for epoch in epochs:
        group = captions.epoch_name(epoch, [outcome]) if len(epochs) > 1 else ""
        columns += [
            Column(f"{epoch}/{p}", labels[p], unit=s.unit, direction=s.direction, group=group)
            for p, s in specs.items()
        ]
    for condition in dict.fromkeys(condition for _, condition in of.values()):
        names = {plain: f"{plain}@{condition}" if condition else plain for plain in specs}
        cells = [
            score_cell(found.get(outcome.key, name, epoch), outcome, study.metrics[name])
            if name in shown
            else EMPTY
            for epoch in epochs
            for name in names.values()
        ]
        own = ((labels[p], study.metrics[n].label or "") for p, n in names.items() if n in shown)
        named = (label.removeprefix(f"{of} ") for of, label in own if label.startswith(f"{of} "))
        words = next(named, condition) if condition else "as trained"  # `without RGB` of its label
        rows.append(Row(condition or "as_trained", (text(words), *cells)))
    return captions.declared(
        collected,
        study,
        spec,
        marks,
        title=f"{study.title}: {outcome.label}",
        columns=columns,
        rows=rows,
        shown=[outcome],
        metrics=shown,
        epochs=epochs,
    )


def shown_epochs(spec: TableSpec, outcomes: Sequence[Outcome]) -> tuple[Epoch, ...]:
    """The epochs of a table, the last one first; the best one only where a run selected one."""
    if spec.epoch != "both":
        return (spec.epoch,)
    done = [run for outcome in outcomes for run in outcome.completed]
    return EPOCHS if not done or any(run.scores("best") for run in done) else EPOCHS[:1]


# -- rows ---------------------------------------------------------------------------------------


def _rows(
    study: Study, spec: TableSpec, found: dict[str, Outcome]
) -> tuple[list[Outcome], tuple[str, ...]]:
    """The rows in order, and what a sweep does not show."""
    names = list(spec.rows or found)
    note: tuple[str, ...] = ()
    if spec.kind == "leave_one_out":
        baseline = str(differences_to(study, spec))
        if baseline in found:
            names = [baseline, *(name for name in names if name != baseline)]
    if spec.kind == "sweep":
        axes = _axes(study, spec, names)
        # What differs in further settings is in a sweep only where the manifest lists it.
        kept = names if spec.rows or len(axes) > 1 else on_axis(study, names, axes[0])
        names, every = by_axis(study, kept, *axes), names
        left_out = [found[name].label for name in every if name not in kept]
        note = captions.slice_of(study, axes[:1], kept, left_out)
    return [found[name] for name in names], note


def _axes(study: Study, spec: TableSpec, names: Sequence[str]) -> list[str]:
    """The axis of a sweep; and a second one, where the variants differ in these two alone."""
    axis = str(spec.axis)
    others = [key for key in varying(study, names) if key != axis]
    return [axis, *others] if len(others) == 1 else [axis]


def _grouped(study: Study, rows: Sequence[Row], key: str) -> list[Row]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(readable(setting(study, row.key, key)), []).append(row)
    grouped: list[Row] = []
    for number, (value, members) in enumerate(groups.items()):
        grouped.append(Row("", (), heading=f"{key}: {value}", rule_before=number > 0))
        grouped += members
    return grouped


# -- names --------------------------------------------------------------------------------------


# A column, and what it has in an outcome's row.
Shown = tuple[Column, Callable[[Outcome], Cell]]


def _names(study: Study, spec: TableSpec, rows: Sequence[Outcome]) -> list[Shown]:
    all_imported = all(row.imported for row in rows)

    def name(row: Outcome) -> Cell:
        mark = f" {captions.LEAK}" if captions.leaks(study, spec.metrics, row) else ""
        return text(row.label + (" (imported)" if row.imported and not all_imported else "") + mark)

    def value(axis: str, row: Outcome) -> Cell:
        return text(readable(setting(study, row.key, axis)))

    def component(part: str, row: Outcome) -> Cell:
        variant = study.variants.get(row.key)
        return check(variant.components.get(part) if variant else None)

    variant: Shown = Column("variant", "Variant", align="l"), name
    columns = [variant]
    if spec.kind == "components":
        known = [study.variants[row.key] for row in rows if row.key in study.variants]
        parts = dict.fromkeys(part for variant in known for part in variant.components)
        columns += [(Column(part, part), partial(component, part)) for part in parts]
    if spec.kind == "sweep":
        names = [row.key for row in rows]
        axes = _axes(study, spec, names)
        columns = [(Column(f"axis:{a}", a, align="l"), partial(value, a)) for a in axes]
        values = {tuple(readable(setting(study, name, a)) for a in axes) for name in names}
        if len(values) < len(names) or set(varying(study, names)) - set(axes):
            columns.append(variant)
    if len({row.dataset for row in rows if row.dataset}) > 1:
        data = Column("dataset", "Data", align="l")
        columns.append((data, lambda row: text(row.dataset or "not recorded")))
    return columns


# -- numbers ------------------------------------------------------------------------------------


def _scores(
    found: Results,
    metrics: Sequence[str],
    epochs: Sequence[Epoch],
    baseline: str | None,
    rows: Sequence[Outcome],
) -> list[Shown]:
    all_imported = all(row.imported for row in rows)

    def score(name: str, epoch: Epoch, row: Outcome) -> Cell:
        result, metric = found.get(row.key, name, epoch), found.study.metrics[name]
        return score_cell(result, row, metric, count_imported=all_imported)

    def difference(name: str, epoch: Epoch, row: Outcome) -> Cell:
        return difference_cell(found.get(row.key, name, epoch), found.study.metrics[name])

    columns: list[Shown] = []
    for epoch in epochs:
        group = captions.epoch_name(epoch, rows) if len(epochs) > 1 else ""
        for name in metrics:
            metric, key = found.study.metrics[name], f"{epoch}/{name}"
            label = metric.label or name
            head = Column(key, label, unit=metric.unit, direction=metric.direction, group=group)
            columns.append((head, partial(score, name, epoch)))
            if baseline is not None and epoch == epochs[0]:
                head = Column(f"{key}/difference", "Δ", group=group, of=label)
                columns.append((head, partial(difference, name, epoch)))
    return columns


# -- variants and compute -----------------------------------------------------------------------


def variants_table(collected: Collected, study: Study) -> Table:
    """Each variant with what it changes and where it comes from."""
    keys = {key for variant in study.variants.values() for key in variant.overrides}
    sections = {key.partition(".")[0] for key in keys}
    section = f"{sections.pop()}." if len(sections) == 1 and all("." in key for key in keys) else ""
    rows = []
    base = {key: study.flat_base[key] for key in sorted(keys) if key in study.flat_base}
    for name, variant in study.variants.items():
        changes = ", ".join(
            f"{key.removeprefix(section)} = {readable(value)}"
            for key, value in (variant.overrides or base).items()
        )
        changes = changes if variant.overrides else f"the base: {changes}"
        cells = (text(variant.label), text(changes), text(variant.source or ""))
        rows.append(Row(name, cells))
    columns = (
        Column("variant", "Variant", align="l"),
        Column("changes", "Differs from the base in", align="l"),
        Column("source", "Source", align="l"),
    )
    where = (f"All settings shown are in the section {section[:-1]}.",) if section else ()
    return Table(
        name=f"{study.name}-variants",
        study=study.name,
        title=f"Variants of {study.title}",
        columns=columns,
        rows=tuple(rows),
        caption=(f"Variants of the study {study.name}.", *where, captions.other_settings(study)),
        origin=captions.origin(collected, study),
    )


def compute_table(collected: Collected, study: Study, marks: Sequence[Mark] = ()) -> Table:
    """What each variant and the whole study cost."""
    runs = collected.runs_of(study.name)
    found = results(collected, study).outcomes
    rows = [Row(key, (text(one.label), *_costs(one.runs))) for key, one in found.items()]
    rows.append(Row("*", (text("All"), *_costs(runs)), rule_before=True))
    columns = (
        Column("variant", "Variant", align="l"),
        Column("runs", "Runs"),
        Column("time", "Time", align="r"),
        Column("wasted", "Wasted time", align="r"),
        Column("per_run", "Per finished run", align="r"),
        Column("memory", "Peak memory", unit="MiB", align="r"),
    )
    unknown = any(cell.text == "--" for row in rows for cell in row.cells)
    return Table(
        name=f"{study.name}-compute",
        study=study.name,
        title=f"Compute used by {study.title}",
        columns=columns,
        rows=tuple(rows),
        caption=(
            f"Compute used by the study {study.name} on {machines(runs)}.",
            "Time: how long all attempts held a machine. Wasted: the part of it in runs that diverged, "
            "failed or were interrupted. Peak memory: the largest of all runs.",
            *(["--: not recorded."] if unknown else []),
            *captions.warnings(marks, study.name),
        ),
        origin=captions.origin(collected, study),
    )


def _costs(runs: Sequence[Run]) -> tuple[Cell, ...]:
    spent, where = cost(runs), tuple(run.where for run in runs)

    def cell(value: float, words: Callable[[float], str]) -> Cell:
        return text("--") if math.isnan(value) else Cell("text", words(value), value=value, runs=where)

    times = (cell(value, numbers.duration) for value in (spent.seconds, spent.wasted, spent.per_run))
    memory = cell(spent.memory, lambda most: numbers.fixed(most, 0))
    return text(f"{spent.completed}/{spent.runs}"), *times, memory


# -- the gradient audit of a study --------------------------------------------------------------


# What the paper's table shows of the audit's parts.
AUDIT_PARTS = (
    "aggregation",
    "extra_token",
    "score_mlp",
    "relevance",
    "guide_weights",
    "guides",
    "selected_patches",
    "encoder",
    "text_encoder",
)
_POWER = re.compile(r"(\d+\.\d)e(-?\d+)")


def audit_table(document: Mapping[str, Any]) -> Table:
    """Gradient norms at initialisation as multiples of the baseline's, one row a variant.

    Raises:
        KeyError, TypeError: not an audit.
    """
    found = gradient_table(document, parts=AUDIT_PARTS)
    columns = [Column("variant", "Variant", align="l")]
    for key, heading in found.columns.items():
        heading, _, unit = heading.removesuffix(")").partition(" (")
        columns.append(Column(key, heading, unit=unit, align="r"))
    rows = tuple(
        Row(name, (text(found.labels[name]), *(_gradient_cell(row[key]) for key in found.columns)))
        for name, row in found.rows.items()
    )
    return Table(
        name=f"{document['study']}-audit",
        study=document["study"],
        title="Gradient audit",
        columns=tuple(columns),
        rows=rows,
        caption=found.notes,
        origin=("made by sdtps audit",),
    )


def _gradient_cell(shown: str) -> Cell:
    """5.4e9 as 5.4×10⁹."""
    power = _POWER.fullmatch(shown)
    if power is None:
        return text(shown) if shown else EMPTY
    return text(f"{power[1]}×10{numbers.raised(int(power[2]))}")
