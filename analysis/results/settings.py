"""What variants are set to: the value of a key in words, and rows ordered or grouped by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.results.outcomes import Outcome
from analysis.tables.model import Row
from sdtps.config import resolved
from sdtps.config.identity import NOT_IN_IDENTITY, flatten

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import TableSpec


def setting(study: Study, variant: str, key: str) -> Any:
    """The resolved value of a dotted key in a variant; None for variants without a configuration."""
    if variant not in study.variants:
        return None
    config = study.variants[variant].config
    # An imported variant has no configuration of ours but what its log printed, flat.
    return (config if isinstance(config, dict) else flatten(resolved(config))).get(key)


def readable(value: Any) -> str:
    """A configuration value as people write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"  # as a manifest has it: there, `no` is text
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(readable(v) for v in value) or "none"
    return str(value)


def on_axis(study: Study, names: Sequence[str], *axes: str) -> list[str]:
    """Of some variants those that differ in `axes` alone, in the given order: from the baseline, if any
    other does; or else as many as do from each other."""

    def others(name: str) -> str | None:
        """Every other setting that decides what a run is; None without a configuration."""
        if name not in study.variants:
            return None
        config = study.variants[name].config
        flat = config if isinstance(config, dict) else flatten(resolved(config))
        left_out = {*NOT_IN_IDENTITY, *axes}
        return repr(sorted((k, repr(v)) for k, v in flat.items() if k not in left_out))

    groups: dict[str, list[str]] = {}
    for name in names:
        if (settings := others(name)) is not None:
            groups.setdefault(settings, []).append(name)
    if not groups:
        return []
    own = groups.get(others(study.baseline) or "", [])
    return own if len(own) > 1 else max(groups.values(), key=len)


def by_axis(study: Study, rows: Sequence[Outcome], axis: str) -> list[Outcome]:
    """Rows in order of the axis; texts keep the manifest's order, behind the numbers."""

    def place(row: Outcome) -> tuple[bool, float]:
        value = setting(study, row.variant, axis)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return (not number, float(value) if number else 0.0)

    return sorted(rows, key=place)


def axis_says_all(study: Study, spec: TableSpec, rows: Sequence[Outcome]) -> bool:
    """Whether a row needs no name beside its value: no two share one, and nothing else differs."""
    names = [row.variant for row in rows]
    values = [readable(setting(study, name, str(spec.axis))) for name in names]
    return len(set(values)) == len(values) and on_axis(study, names, str(spec.axis)) == names


def grouped(study: Study, rows: Sequence[Row], key: str) -> list[Row]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(readable(setting(study, row.key, key)), []).append(row)
    grouped: list[Row] = []
    for number, (value, members) in enumerate(groups.items()):
        grouped.append(Row("", (), heading=f"{key}: {value}", rule_before=number > 0))
        grouped += members
    return grouped
