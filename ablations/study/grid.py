"""`grid:` expands into variants: products, zipped lists and exclusions, with readable names.

An example; only `product` or `zip` is needed:

    grid:
      name: "{mask}_tau{temperature}"            # default: every axis as key=value
      label: "C = {mask}, tau = {temperature}"   # default: the name
      set: {sdtps.decision: gumbel_ste}          # the same for all of the grid
      product:
        sdtps.mask: {c10: subtract_10, c1e10: subtract_1e10}    # named values, or
        sdtps.temperature: [1, 5]                               # values that name themselves
      zip: {optim.lr: [1e-3, 1e-4], train.epochs: [10, 20]}     # change together, as one axis
      exclude: [{sdtps.mask: c10, sdtps.temperature: 5}]        # by name or by value

Or one variant for each row of a CSV file; rows of one name must say the same:

    grid:
      csv: paper/reported/demo2_runs.csv         # beside the manifest or below a folder above it
      where: {seed: "1111"}                      # these rows only
      name: "{name}"                             # fields are columns
      columns: {sdtps.beta: beta}                # key: its column; an empty cell sets nothing
      words: {recipe: {cosine: {optim.schedule: cosine}}}       # column: what each of its words sets
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from ablations.study.mistakes import Mistakes, Source
from sdtps.config.common import Frozen
from sdtps.config.yaml12 import KeyPath, scalar
from sdtps.run.locations import shipped
from sdtps.system.errors import did_you_mean

_FIELD = re.compile(r"\{([^{}]*)\}")
_MOST = 20_000  # variants of one grid; more is a mistake, and memory

LABEL_IS_ENOUGH = (
    "is not a key any more: `label` is enough. Write τ, ≥ and × as they are; tables set them as "
    "mathematics"
)

Values = tuple[Any, ...] | dict[str, Any]


class GridSpec(Frozen):
    csv: str | None = None
    where: dict[str, str] = Field(default_factory=dict)
    columns: dict[str, str] = Field(default_factory=dict)
    words: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)
    name: str | None = None
    label: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    product: dict[str, Values] = Field(default_factory=dict)
    zip: dict[str, Values] = Field(default_factory=dict)
    exclude: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Point:
    """One variant of a grid."""

    name: str
    overrides: dict[str, Any]
    label: str | None


@dataclass(frozen=True)
class _Value:
    """A value of an axis and what it is called in names."""

    word: str
    value: Any


Cell = dict[str, _Value]  # axis key to value


def expand(
    mistakes: Mistakes, source: Source, path: KeyPath, value: Any
) -> tuple[list[Point], dict[str, KeyPath]]:
    """The grid's variants (the last axis changes fastest), and where each key is written."""
    if isinstance(value, dict) and "label_tex" in value:
        mistakes.add(source, (*path, "label_tex"), LABEL_IS_ENOUGH)
        value = {key: part for key, part in value.items() if key != "label_tex"}
    spec = mistakes.check(source, path, GridSpec, value)
    if spec is None:
        return [], {}
    parts = {"set": spec.set, "product": spec.product, "zip": spec.zip, "columns": spec.columns}
    places: dict[str, KeyPath] = {k: (*path, part, k) for part, keys in parts.items() for k in keys}
    if spec.csv is not None:
        for column, words in spec.words.items():
            for word, changes in words.items():
                places |= {key: (*path, "words", column, word, key) for key in changes}
        return _of_rows(mistakes, source, path, spec), places
    before = mistakes.noted
    _check_axes(mistakes, source, path, spec)
    if mistakes.noted > before:
        return [], places
    cells = _cells(mistakes, source, path, spec)
    return _named(mistakes, source, path, spec, cells), places


def read_rows(
    mistakes: Mistakes, source: Source, path: KeyPath, name: str
) -> list[dict[str, str]] | None:
    """Rows of the file beside the manifest or, failing that, below one of the folders above it."""
    folder = source.file.absolute().parent
    try:
        places = [*(above / name for above in (folder, *folder.parents)), shipped(name)]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            mistakes.add(
                source, path, f"'{name}' lies neither beside the manifest nor in a folder above it"
            )
            return None
        with file.open(newline="", encoding="utf-8") as stream:
            return [{k: v for k, v in row.items() if k is not None} for row in csv.DictReader(stream)]
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        mistakes.add(source, path, f"'{name}' cannot be read: {error}")
        return None


def known_columns(
    mistakes: Mistakes,
    source: Source,
    path: KeyPath,
    rows: list[dict[str, str]],
    wanted: Iterable[tuple[KeyPath, str]],
) -> bool:
    """Whether the file has these columns; each other one is a mistake at its place."""
    columns = list(rows[0]) if rows else []
    unknown = [(place, column) for place, column in wanted if column not in columns]
    for place, column in unknown:
        text = f"'{column}' is not a column. {did_you_mean(column, columns)}"
        mistakes.add(source, (*path, *place), text)
    return not unknown


def fields_of(template: str | None) -> list[str]:
    """The fields in braces of a template."""
    return _FIELD.findall(template or "")


def _of_rows(mistakes: Mistakes, source: Source, path: KeyPath, spec: GridSpec) -> list[Point]:
    assert spec.csv is not None
    rows = read_rows(mistakes, source, (*path, "csv"), spec.csv)
    if spec.product or spec.zip or spec.exclude:
        mistakes.add(source, path, "'csv' gives the variants: leave product, zip and exclude out")
        return []
    if spec.name is None:
        mistakes.add(source, path, "'csv' needs 'name', such as '{name}': its fields are columns")
        return []
    wanted: list[tuple[KeyPath, str]] = [(("where", column), column) for column in spec.where]
    wanted += [(("columns", key), column) for key, column in spec.columns.items()]
    wanted += [(("words", column), column) for column in spec.words]
    for kind, template in (("name", spec.name), ("label", spec.label)):
        wanted += [((kind,), column) for column in fields_of(template)]
    if rows is None or not known_columns(mistakes, source, path, rows, wanted):
        return []
    points: dict[str, Point] = {}
    for row in rows:
        if any(row[column] != text for column, text in spec.where.items()):
            continue
        overrides = dict(spec.set)
        for column, words in spec.words.items():
            if row[column] and row[column] not in words:
                text = f"says nothing of '{row[column]}'. {did_you_mean(row[column], words)}"
                mistakes.add(source, (*path, "words", column), text)
                return []
            overrides |= words.get(row[column], {})
        overrides |= {key: _cell(row[c]) for key, c in spec.columns.items() if row[c]}
        point = Point(fill(spec.name, row), overrides, spec.label and fill(spec.label, row))
        other = points.setdefault(point.name, point)
        if other.overrides != overrides:
            mistakes.add(source, path, f"two rows named '{point.name}' set different values")
    if not points:
        mistakes.add(source, (*path, "where"), f"selects no row of {spec.csv}")
    return list(points.values())


def _cell(text: str) -> Any:
    """As YAML reads it; 8e85568 is a commit and no infinity."""
    value = scalar(text)
    return text if isinstance(value, float) and not math.isfinite(value) else value


def _values(values: Values) -> list[_Value]:
    if isinstance(values, dict):
        return [_Value(word, value) for word, value in values.items()]
    return [_Value(plain(value), value) for value in values]


def _check_axes(mistakes: Mistakes, source: Source, path: KeyPath, spec: GridSpec) -> None:
    axes = [*spec.product, *spec.zip]
    if not axes:
        mistakes.add(source, path, "needs 'product' or 'zip' with at least one list of values")
    for kind, lists in (("product", spec.product), ("zip", spec.zip)):
        for key, values in lists.items():
            raw = [v.value for v in _values(values)]
            if not raw:
                mistakes.add(source, (*path, kind, key), "holds no values")
            twice = [v for i, v in enumerate(raw) if any(same(v, w) for w in raw[:i])]
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
                text = f"'{key}' is not an axis of the grid. {did_you_mean(key, axes)}"
                mistakes.add(source, (*place, key), text)


def _cells(mistakes: Mistakes, source: Source, path: KeyPath, spec: GridSpec) -> list[Cell]:
    axes: list[list[Cell]] = [[{k: v} for v in _values(values)] for k, values in spec.product.items()]
    if spec.zip:
        columns = [_values(values) for values in spec.zip.values()]
        axes.append([dict(zip(spec.zip, row, strict=True)) for row in zip(*columns, strict=True)])
    size = math.prod(len(axis) for axis in axes)
    if size > _MOST:
        mistakes.add(source, path, f"expands to {size} variants; at most {_MOST} are allowed")
        return []
    cells = [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*axes)]
    for i, excluded in enumerate(spec.exclude):
        kept = [cell for cell in cells if not _matches(cell, excluded)]
        if len(kept) == len(cells):
            mistakes.add(source, (*path, "exclude", i), "excludes nothing that is left of the grid")
        cells = kept
    if not cells:
        mistakes.add(source, path, "expands to no variant at all")
    return cells


def _matches(cell: Cell, excluded: dict[str, Any]) -> bool:
    return all(
        any(
            same(cell[key].value, w) or cell[key].word == plain(w)
            for w in (v if isinstance(v, tuple) else (v,))
        )
        for key, v in excluded.items()
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
    mistakes: Mistakes, source: Source, path: KeyPath, spec: GridSpec, cells: list[Cell]
) -> list[Point]:
    axes = [*spec.product, *spec.zip]
    short = {key: key.rpartition(".")[2] for key in axes}
    if len(set(short.values())) < len(axes):  # two keys end alike: spell them out
        short = {key: key.replace(".", "_") for key in axes}
    default = ",".join(f"{word}={{{word}}}" for word in short.values())
    before = mistakes.noted
    for kind, template in (("name", spec.name), ("label", spec.label)):
        for unknown in sorted(set(_FIELD.findall(template or "")) - set(short.values())):
            text = f"unknown field {{{unknown}}}. {did_you_mean(unknown, short.values())}"
            mistakes.add(source, (*path, kind), text)
    if mistakes.noted > before:
        return []
    points: dict[str, Point] = {}
    for cell in cells:
        words = {short[key]: v.word for key, v in cell.items()}
        name = fill(spec.name or default, words)
        if name in points:
            mistakes.add(source, path, f"two of its variants are named '{name}'; give 'name' more axes")
            return []
        overrides = {**spec.set, **{key: v.value for key, v in cell.items()}}
        points[name] = Point(name, overrides, spec.label and fill(spec.label, words))
    return list(points.values())


def fill(template: str, words: dict[str, str]) -> str:
    """Fields by their words; other braces stay."""
    return _FIELD.sub(lambda match: words.get(match[1], match[0]), template)
