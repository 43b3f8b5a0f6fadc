"""`grid:` expands into variants: products, zipped lists and exclusions, with readable names.

grid:
  name: "tau{temperature} {mask}"          # default: every axis as key=value
  set: {sdtps.decision: gumbel_ste}        # the same for all of the grid
  product: {sdtps.temperature: [1, 5], sdtps.mask: [log, subtract_1e10]}
  zip: {optim.lr: [1e-3, 1e-4], train.epochs: [10, 20]}     # one axis: they change together
  exclude: [{sdtps.temperature: 5, sdtps.mask: log}]
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from pydantic import Field

from ablations.mistakes import Mistakes, Source
from sdtps.config.base import Frozen
from sdtps.errors import did_you_mean
from sdtps.yaml12 import KeyPath

_FIELD = re.compile(r"\{([^{}]*)\}")
_MOST = 20_000  # variants of one grid; more is a mistake, and memory


class GridSpec(Frozen):
    name: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    product: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    zip: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    exclude: tuple[dict[str, Any], ...] = ()


Named = dict[str, dict[str, Any]]


def expand(
    mistakes: Mistakes, source: Source, path: KeyPath, value: Any
) -> tuple[Named, dict[str, KeyPath]]:
    """Variant name to overrides (the last axis changes fastest), and where each key is written."""
    spec = mistakes.check(source, path, GridSpec, value)
    if spec is None:
        return {}, {}
    parts = {"set": spec.set, "product": spec.product, "zip": spec.zip}
    places = {key: (*path, part, key) for part, keys in parts.items() for key in keys}
    return _points(mistakes, source, path, spec), places


def _points(mistakes: Mistakes, source: Source, path: KeyPath, spec: GridSpec) -> Named:
    before = len(mistakes.found)
    _check_axes(mistakes, source, path, spec)
    if len(mistakes.found) > before:
        return {}
    axes = [[{key: v} for v in values] for key, values in spec.product.items()]
    if spec.zip:
        axes.append(
            [dict(zip(spec.zip, row, strict=True)) for row in zip(*spec.zip.values(), strict=True)]
        )
    size = 1
    for axis in axes:
        size *= len(axis)
    if size > _MOST:
        mistakes.add(source, path, f"expands to {size} variants; at most {_MOST} are allowed")
        return {}
    points = [{k: v for part in combo for k, v in part.items()} for combo in itertools.product(*axes)]
    for i, excluded in enumerate(spec.exclude):
        kept = [p for p in points if not _matches(p, excluded)]
        if len(kept) == len(points):
            mistakes.add(source, (*path, "exclude", i), "excludes nothing that is left of the grid")
        points = kept
    if not points:
        mistakes.add(source, path, "expands to no variant at all")
    return _named(mistakes, source, path, spec, points)


def _check_axes(mistakes: Mistakes, source: Source, path: KeyPath, spec: GridSpec) -> None:
    axes = [*spec.product, *spec.zip]
    if not axes:
        mistakes.add(source, path, "needs 'product' or 'zip' with at least one list of values")
    for kind, lists in (("product", spec.product), ("zip", spec.zip)):
        for key, values in lists.items():
            if not values:
                mistakes.add(source, (*path, kind, key), "is an empty list")
            twice = [v for i, v in enumerate(values) if any(same(v, w) for w in values[:i])]
            if kind == "product" and twice:
                mistakes.add(source, (*path, kind, key), f"holds {plain(twice[0])} twice")
    lengths = {key: len(values) for key, values in spec.zip.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {n}" for key, n in lengths.items())
        mistakes.add(source, (*path, "zip"), f"lists of unequal length: {listed}")
    for key in axes:
        if (key in spec.product and key in spec.zip) or key in spec.set:
            mistakes.add(source, path, f"'{key}' is given in more than one of set, product and zip")
    for i, excluded in enumerate(spec.exclude):
        place = (*path, "exclude", i)
        if not excluded:
            mistakes.add(source, place, "is empty and would exclude everything")
        for key in excluded:
            if key not in axes:
                text = f"'{key}' is no axis of the grid. {did_you_mean(key, axes)}"
                mistakes.add(source, (*place, key), text)


def _matches(point: dict[str, Any], excluded: dict[str, Any]) -> bool:
    return all(
        any(same(point[k], w) for w in v) if isinstance(v, tuple) else same(point[k], v)
        for k, v in excluded.items()
    )


def same(a: Any, b: Any) -> bool:
    """Equal as YAML values: 1 equals 1.0, but true does not equal 1."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def plain(value: Any) -> str:
    """A value inside a name: `1`, `0.0001`, `none`, `a+b`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return "+".join(plain(v) for v in value)
    if isinstance(value, dict):
        return "+".join(f"{k}={plain(v)}" for k, v in value.items())
    return str(value)


def _named(
    mistakes: Mistakes, source: Source, path: KeyPath, spec: GridSpec, points: list[dict[str, Any]]
) -> Named:
    axes = [*spec.product, *spec.zip]
    short = {key: key.rpartition(".")[2] for key in axes}
    if len(set(short.values())) < len(axes):  # two keys end alike: spell them out
        short = {key: key.replace(".", "_") for key in axes}
    template = spec.name or ",".join(f"{name}={{{name}}}" for name in short.values())
    unknown = sorted(set(_FIELD.findall(template)) - set(short.values()))
    if unknown:
        text = f"unknown field {{{unknown[0]}}}. {did_you_mean(unknown[0], short.values())}"
        mistakes.add(source, (*path, "name"), text)
        return {}
    named: Named = {}
    for point in points:
        name = template
        for key, word in short.items():
            name = name.replace(f"{{{word}}}", plain(point[key]))
        if name in named:
            mistakes.add(source, path, f"two of its variants are named '{name}'; give 'name' more axes")
            return {}
        named[name] = {**spec.set, **point}
    return named
