"""Which of the changes did it: the cells between two variants, planned as a study of their own.

Two variants, a good one and a broken one, differ in r settings. A cell is the good variant with some of
them as the broken one has them. Two settings have all four cells; three to eight have both ends: the
two variants, each setting changed alone, and each taken back alone. A cell in which a setting does
nothing (a temperature under Top-K) trains the network of another cell: it is shown as equal to it and
not run.

The cells are a study named STUDY.GOOD.BROKEN. Its runs have folders, states and curves like all others;
runs of the first study that are equal are linked, not trained. `analysis.results.effects` says what
the cells show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ablations.study.model import Study, Variant, slug
from ablations.study.resolve import nest
from ablations.study.schema import AttributionSpec
from sdtps.config import AnyConfig, resolved
from sdtps.config.acting import idle_settings
from sdtps.config.identity import NOT_IN_IDENTITY, flatten
from sdtps.config.load import check_config
from sdtps.system.errors import ManifestError, counted

MOST_CHANGES = 8

Changes = frozenset[str]  # dotted settings that have the broken variant's value


@dataclass(frozen=True)
class Cell:
    """One combination of changes.

    Attributes:
        label: its name in words, with the labels of the two variants.
        equals: the earlier cell that trains the same network; empty where there is none.
        impossible: why there is no such configuration; empty where there is one.
    """

    changes: Changes
    name: str
    label: str
    equals: str = ""
    impossible: str = ""


@dataclass(frozen=True)
class Attribution:
    """What `design` planned.

    Attributes:
        changes: setting to (value of the good variant, value of the broken one).
        cells: all of the design, also those that are not run.
        study: the cells that are run, as variants; its baseline is the good one.
    """

    spec: AttributionSpec
    parent: str
    changes: dict[str, tuple[Any, Any]]
    cells: tuple[Cell, ...]
    study: Study

    def cell(self, changes: Iterable[str]) -> Cell | None:
        """The cell with exactly these changes, if the design has it."""
        return next((cell for cell in self.cells if cell.changes == frozenset(changes)), None)


def cells_name(study: str, good: str, broken: str) -> str:
    """What the study of the cells between two variants is called."""
    return slug(f"{study}.{good}.{broken}")


def differing(good: Variant, broken: Variant) -> dict[str, tuple[Any, Any]]:
    """Setting to its two values, for the settings that can change a result."""
    ours, theirs = flatten(resolved(good.config)), flatten(resolved(broken.config))
    keys = [*theirs, *(key for key in ours if key not in theirs)]
    return {
        key: (ours.get(key), theirs.get(key))
        for key in keys
        if ours.get(key) != theirs.get(key) and key not in NOT_IN_IDENTITY
    }


def both_ends(changes: Sequence[str]) -> list[Changes]:
    """The sets of the design: none, each alone, all but each, all. For two settings: all four."""
    every = frozenset(changes)
    sets = [frozenset(), *(frozenset([c]) for c in changes), *(every - {c} for c in changes), every]
    return list(dict.fromkeys(sets))


def design(study: Study, spec: AttributionSpec, sets: Sequence[Changes] | None = None) -> Attribution:
    """The cells between two variants of `study`.

    Args:
        sets: which cells; None: both ends.

    Raises:
        ManifestError: two variants that differ in fewer than 2 or more than 8 settings, or are two
            different programs.
    """
    where = f"{study.path}: attribution of '{spec.broken}' against '{spec.good}'"
    good, broken = study.variants[spec.good], study.variants[spec.broken]
    changes = differing(good, broken)
    if not 2 <= len(changes) <= MOST_CHANGES or good.config.task != broken.config.task:
        listed = ", ".join(changes) or "nothing"
        raise ManifestError(
            f"{where}: they differ in {counted(len(changes), 'setting')} ({listed}); "
            f"2 to {MOST_CHANGES} can be told apart. `sdtps compare` tells the effect of one; of more, "
            "choose two that are nearer to each other"
        )
    cells: list[Cell] = []
    variants: dict[str, Variant] = {}
    for chosen in sets if sets is not None else both_ends(list(changes)):
        name = _name(spec.good, spec.broken, list(changes), chosen)
        label = _name(f"{good.label} ", f"{broken.label} ", list(changes), chosen).strip()
        config, reason = _configuration(good, broken, chosen)
        if config is None:
            cells.append(Cell(chosen, name, label, impossible=reason))
            continue
        nearest, flat = (broken if chosen else good), flatten(resolved(config))
        overrides = {key: flat[key] for key in chosen if key in flat}
        variant = Variant(
            name, slug(name), label, overrides, config, nearest.resources, line=nearest.line
        )
        same = next((v.name for v in variants.values() if v.acting == variant.acting), "")
        cells.append(Cell(chosen, name, label, equals=same))
        if not same:
            variants[name] = variant
    first = spec.metric or next(iter(study.metrics), None)
    cell_study = replace(
        study,
        name=cells_name(study.name, spec.good, spec.broken),
        parent=study,
        seeds=spec.seeds,
        baseline=spec.good,
        varies=tuple(changes),
        variants=variants,
        tables=(),
        figures=(),
        reported=(),
        attributions=(),
        rounds=None,
        title=f"What makes “{broken.label}” differ from “{good.label}”",
        metrics={first: study.metrics[first]} if first else {},
    )
    return Attribution(spec, study.name, changes, tuple(cells), cell_study)


def _configuration(good: Variant, broken: Variant, chosen: Changes) -> tuple[AnyConfig | None, str]:
    """The good variant with the broken one's values of `chosen`; idle settings at their default."""
    values, other = flatten(resolved(good.config)), flatten(resolved(broken.config))
    for key in chosen:
        values.pop(key, None)
        if key in other:
            values[key] = other[key]
    config, mistakes = check_config(nest(values), idle=True)
    if config is None:
        return None, "; ".join(f"{key}: {text}" for key, text in mistakes)
    defaults = flatten(resolved(type(config)()))
    idle = {key: defaults[key] for key, _ in idle_settings(config)}
    config, mistakes = check_config(nest({**values, **idle}))
    return config, "; ".join(f"{key}: {text}" for key, text in mistakes)


def _name(good: str, broken: str, changes: list[str], chosen: Changes) -> str:
    """GOOD, BROKEN, GOOD+mask or BROKEN-mask: whichever end is nearer."""
    ends = [key.rpartition(".")[2] for key in changes]
    short = {key: end if ends.count(end) == 1 else key for key, end in zip(changes, ends, strict=True)}
    added = [short[key] for key in changes if key in chosen]
    removed = [short[key] for key in changes if key not in chosen]
    if len(added) <= len(removed):
        return "+".join([good, *added])
    return "-".join([broken, *removed])
