"""What variants are set to: the value of a key, in words too, and which variants differ in what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sdtps.config import resolved
from sdtps.config.identity import NOT_IN_IDENTITY, flatten

if TYPE_CHECKING:
    from ablations.study.model import Study


def settings(study: Study, variant: str) -> dict[str, Any] | None:
    """Dotted key to value of a variant; None for one without a configuration (imported beside ours)."""
    if variant not in study.variants:
        return None
    config = study.variants[variant].config
    # An imported study's variant has no configuration of ours but what its log printed, flat.
    return config if isinstance(config, dict) else flatten(resolved(config))


def setting(study: Study, variant: str, key: str) -> Any:
    """The resolved value of a dotted key in a variant; None where it has none."""
    return (settings(study, variant) or {}).get(key)


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


def varying(study: Study, names: Sequence[str]) -> list[str]:
    """Dotted keys in which these variants differ, among those that can change a result."""
    found = [s for s in (settings(study, name) for name in names) if s is not None]
    keys = dict.fromkeys(key for one in found for key in one if key not in NOT_IN_IDENTITY)
    return [key for key in keys if len({repr(one.get(key)) for one in found}) > 1]


def on_axis(study: Study, names: Sequence[str], *axes: str) -> list[str]:
    """Those of some variants that differ in `axes` alone, in the given order.

    From the baseline, if any other does; or else as many as differ in it alone from each other.
    """

    def others(name: str) -> str | None:
        """Every other setting that decides what a run is; None without a configuration."""
        if (found := settings(study, name)) is None:
            return None
        left_out = {*NOT_IN_IDENTITY, *axes}
        return repr(sorted((k, repr(v)) for k, v in found.items() if k not in left_out))

    groups: dict[str, list[str]] = {}
    for name in names:
        if (rest := others(name)) is not None:
            groups.setdefault(rest, []).append(name)
    if not groups:
        return []
    own = groups.get(others(study.baseline) or "", [])
    return own if len(own) > 1 else max(groups.values(), key=len)


def by_axis(study: Study, names: Sequence[str], *axes: str) -> list[str]:
    """Variants in order of some axes; texts keep the manifest's order, behind the numbers."""

    def place(name: str) -> list[tuple[bool, float]]:
        values = [setting(study, name, axis) for axis in axes]
        numbers = [isinstance(v, (int, float)) and not isinstance(v, bool) for v in values]
        return [
            (not number, float(value) if number else 0.0)
            for number, value in zip(numbers, values, strict=True)
        ]

    return sorted(names, key=place)
