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
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from ablations.study.mistakes import Source
from ablations.study.model import as_written
from sdtps.config.common import Frozen
from sdtps.config.yaml12 import KeyPath, scalar
from sdtps.run.locations import shipped

_FIELD = re.compile(r"\{([^{}]*)\}")
_MOST = 20_000  # variants of one grid; more is a mistake, and memory

Values = Annotated[tuple[Any, ...] | dict[str, Any], Field(min_length=1)]


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
    exclude: tuple[Annotated[dict[str, Any], Field(min_length=1)], ...] = ()


Cell = dict[str, tuple[str, Any]]  # axis key to a value, and before it what it is called in names
Points = dict[str, tuple[dict[str, Any], str | None]]  # variant to its overrides and its label


def expand(source: Source, path: KeyPath, value: Any) -> tuple[Points, dict[str, KeyPath]]:
    """The grid's variants (the last axis changes fastest), and where each key is written."""
    spec = source.check(path, GridSpec, value)
    if spec is None:
        return {}, {}
    parts = {"set": spec.set, "product": spec.product, "zip": spec.zip, "columns": spec.columns}
    places: dict[str, KeyPath] = {k: (*path, part, k) for part, keys in parts.items() for k in keys}
    if spec.csv is not None:
        for column, words in spec.words.items():
            for word, changes in words.items():
                places |= {key: (*path, "words", column, word, key) for key in changes}
        return _of_rows(source, path, spec, spec.csv), places
    before = len(source.found)
    _check_axes(source, path, spec)
    cells = _cells(source, path, spec) if len(source.found) == before else []
    return _named(source, path, spec, cells), places


def read_rows(source: Source, path: KeyPath, name: str) -> list[dict[str, str]] | None:
    """Rows of the file beside the manifest or, failing that, below one of the folders above it."""
    folder = source.file.absolute().parent
    try:
        places = [*(above / name for above in (folder, *folder.parents)), shipped(name)]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            source.mistake(path, f"'{name}' lies neither beside the manifest nor in a folder above it")
            return None
        with file.open(newline="", encoding="utf-8") as stream:
            return [{k: v for k, v in row.items() if k is not None} for row in csv.DictReader(stream)]
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        source.mistake(path, f"'{name}' cannot be read: {error}")
        return None


def select_rows(
    source: Source,
    path: KeyPath,
    rows: list[dict[str, str]] | None,
    named: Mapping[str, Iterable[str]],
    where: dict[str, str],
) -> list[dict[str, str]] | None:
    """The rows whose columns have the texts of `where`; None after a mistake.

    Args:
        named: key below `path` to the columns that it names.
    """
    if rows is None:
        return None
    columns = rows[0] if rows else {}
    known = [
        source.expect((*path, key), column, columns, "is not a column")
        for key, names in {"where": where, **named}.items()
        for column in names
    ]
    if not all(known):
        return None
    return [row for row in rows if all(row[column] == text for column, text in where.items())]


def fields_of(template: str | None) -> list[str]:
    """The fields in braces of a template."""
    return _FIELD.findall(template or "")


def _of_rows(source: Source, path: KeyPath, spec: GridSpec, file: str) -> Points:
    if spec.product or spec.zip or spec.exclude or spec.name is None:
        text = "'csv' gives the variants: it needs 'name', such as '{name}' (its fields are columns), "
        source.mistake(path, f"{text}and no product, zip or exclude")
        return {}
    rows = read_rows(source, (*path, "csv"), file)
    named: dict[str, Iterable[str]] = {
        "columns": spec.columns.values(),
        "words": spec.words,
        "name": fields_of(spec.name),
        "label": fields_of(spec.label),
    }
    chosen = select_rows(source, path, rows, named, spec.where)
    points: Points = {}
    for row in chosen or []:
        overrides = dict(spec.set)
        for column, words in spec.words.items():
            place = (*path, "words", column)
            if row[column] and not source.expect(place, row[column], words, "has no changes here"):
                return {}
            overrides |= words.get(row[column], {})
        overrides |= {key: _cell(row[c]) for key, c in spec.columns.items() if row[c]}
        name = fill(spec.name, row)
        other, _ = points.setdefault(name, (overrides, spec.label and fill(spec.label, row)))
        if other != overrides:
            source.mistake(path, f"two rows named '{name}' set different values")
    if chosen == []:
        source.mistake((*path, "where"), f"selects no row of {file}")
    return points


def _cell(text: str) -> Any:
    """As YAML reads it; 8e85568 is a commit and no infinity."""
    value = scalar(text)
    return text if isinstance(value, float) and not math.isfinite(value) else value


def _values(values: Values) -> list[tuple[str, Any]]:
    return [*values.items()] if isinstance(values, dict) else [(plain(v), v) for v in values]


def _check_axes(source: Source, path: KeyPath, spec: GridSpec) -> None:
    axes = [*spec.product, *spec.zip]
    if not axes:
        source.mistake(path, "needs 'product' or 'zip' with at least one list of values")
    lengths = {key: len(values) for key, values in spec.zip.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {n}" for key, n in lengths.items())
        source.mistake((*path, "zip"), f"lists of unequal length: {listed}")
    for key in axes:
        if (key in spec.product and key in spec.zip) or key in spec.set:
            source.mistake(path, f"'{key}' is given in more than one of set, product and zip")
    for i, excluded in enumerate(spec.exclude):
        place = (*path, "exclude", i)
        for key in excluded:
            source.expect((*place, key), key, axes, "is not an axis of the grid")


def _cells(source: Source, path: KeyPath, spec: GridSpec) -> list[Cell]:
    axes: list[list[Cell]] = [[{k: v} for v in _values(values)] for k, values in spec.product.items()]
    if spec.zip:
        columns = [_values(values) for values in spec.zip.values()]
        axes.append([dict(zip(spec.zip, row, strict=True)) for row in zip(*columns, strict=True)])
    size = math.prod(len(axis) for axis in axes)
    if size > _MOST:
        source.mistake(path, f"expands to {size} variants; at most {_MOST} are allowed")
        return []
    cells = [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*axes)]
    for i, excluded in enumerate(spec.exclude):
        kept = [cell for cell in cells if not _matches(cell, excluded)]
        if len(kept) == len(cells):
            source.mistake((*path, "exclude", i), "excludes nothing that is left of the grid")
        cells = kept
    if not cells:
        source.mistake(path, "expands to no variant at all")
    return cells


def _matches(cell: Cell, excluded: dict[str, Any]) -> bool:
    return all(
        any(
            same(cell[key][1], w) or cell[key][0] == plain(w)
            for w in (v if isinstance(v, tuple) else (v,))
        )
        for key, v in excluded.items()
    )


def same(a: Any, b: Any) -> bool:
    """Equal as YAML values: 1 equals 1.0, but true does not equal 1."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def plain(value: Any) -> str:
    """A value inside a name: `1`, `0.0001`, `none`, `a+b`."""
    if isinstance(value, tuple):
        return "+".join(plain(v) for v in value)
    if isinstance(value, dict):
        return "+".join(f"{k}={plain(v)}" for k, v in value.items())
    return as_written(value, none="none")


def _named(source: Source, path: KeyPath, spec: GridSpec, cells: list[Cell]) -> Points:
    axes = [*spec.product, *spec.zip]
    short = {key: key.rpartition(".")[2] for key in axes}
    if len(set(short.values())) < len(axes):  # two keys end alike: spell them out
        short = {key: key.replace(".", "_") for key in axes}
    default = ",".join(f"{word}={{{word}}}" for word in short.values())
    known = [
        source.expect((*path, kind), name, short.values(), "is no field")
        for kind, template in (("name", spec.name), ("label", spec.label))
        for name in fields_of(template)
    ]
    points: Points = {}
    for cell in cells if all(known) else []:
        words = {short[key]: word for key, (word, _) in cell.items()}
        name = fill(spec.name or default, words)
        if name in points:
            source.mistake(path, f"two of its variants are named '{name}'; give 'name' more axes")
            return {}
        overrides = {**spec.set, **{key: value for key, (_, value) in cell.items()}}
        points[name] = overrides, spec.label and fill(spec.label, words)
    return points


def fill(template: str, words: dict[str, str]) -> str:
    """Fields by their words; other braces stay."""
    return _FIELD.sub(lambda match: words.get(match[1], match[0]), template)
