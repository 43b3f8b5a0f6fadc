"""Mistakes in a manifest, gathered until all are known, each with its file and line."""

from __future__ import annotations

import copy
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from sdtps.errors import ManifestError, YamlError, did_you_mean, visible
from sdtps.yaml12 import Document, KeyPath, parse, read_text

Model = TypeVar("Model", bound=BaseModel)


def dotted(path: KeyPath) -> str:
    """`tables[0].rows[2]` for ("tables", 0, "rows", 2)."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f"{'.' if text else ''}{part if part.isprintable() and part else repr(part)}"
    return text


@dataclass(frozen=True)
class Source:
    """One YAML file that has been read."""

    file: Path
    text: str
    document: Document

    @classmethod
    def read(cls, file: Path) -> Source:
        """Raises ManifestError where the file is missing or no YAML."""
        try:
            text = read_text(file)
        except YamlError as error:
            raise ManifestError(str(error)) from None
        try:
            return cls(file, text, parse(text))
        except YamlError as error:
            raise ManifestError(f"{file}: {error}") from None


@dataclass
class Mistakes:
    """A growing list of mistakes; `check` reads one part of a manifest and never raises."""

    found: list[tuple[str, int, str]] = field(default_factory=list)
    noted: int = 0  # calls of `add`, repetitions included

    def add(self, source: Source, path: KeyPath, text: str) -> None:
        self.noted += 1
        where = f"{dotted(path)}: " if path else ""
        entry = (str(source.file), source.document.line(path), visible(f"{where}{text}"))
        if entry not in self.found:
            self.found.append(entry)

    def add_problems(self, source: Source) -> None:
        """What the YAML reader noticed: duplicate keys above all."""
        self.found += [(str(source.file), p.line, visible(p.text)) for p in source.document.problems]

    def check(self, source: Source, path: KeyPath, model: type[Model], value: Any) -> Model | None:
        """`value` as a `model`, or None with every mistake noted."""
        if not isinstance(value, dict):
            keys = ", ".join(model.model_fields)
            self.add(source, path, f"must be a mapping with keys {keys}; found {shown(value)}")
            return None
        try:
            return model.model_validate(tuples(value))
        except ValidationError as error:
            entries = error.errors()
        as_text = _with_texts(source, path, value, entries)
        if as_text is not None:
            try:
                return model.model_validate(tuples(as_text))
            except ValidationError as error:
                value, entries = as_text, error.errors()
        for entry in entries:
            self.add(source, (*path, *_place(entry, value)), sentence(entry, model))
        return None

    def raise_if_any(self, file: Path) -> None:
        """Raises ManifestError with all mistakes, in the order of their lines."""
        if not self.found:
            return
        count = len(self.found)
        head = f"{file}: {count} mistake{'s' * (count > 1)}; nothing was queued."
        main_first = sorted(self.found, key=lambda m: (m[0] != str(file), m[0], m[1]))
        lines = [
            f"{name}:{line}: {text}" if line else f"{name}: {text}" for name, line, text in main_first
        ]
        raise ManifestError("\n".join([head, *lines]))


def tuples(value: Any) -> Any:
    """Lists become tuples, which strict frozen models ask for."""
    if isinstance(value, list):
        return tuple(tuples(v) for v in value)
    if isinstance(value, dict):
        return {k: tuples(v) for k, v in value.items()}
    return value


def shown(value: Any) -> str:
    """A value as a person would have written it, not too long."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif value is None:
        text = "nothing (null)"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _place(entry: Mapping[str, Any], value: Any) -> KeyPath:
    """The error's location, without the parts that only pydantic knows."""
    path: list[str | int] = []
    for part in entry["loc"]:
        is_key = isinstance(value, dict) and part in value
        is_item = isinstance(value, (list, tuple)) and isinstance(part, int) and part < len(value)
        if not is_key and not is_item:
            break
        path.append(part)
        value = value[part]
    return tuple(path)


def _with_texts(source: Source, path: KeyPath, value: Any, entries: list[Any]) -> Any:
    """A copy of `value` in which what was read as a number, but is wanted as text, is as written."""
    texts = source.document.texts
    places = [_place(e, value) for e in entries if e["type"] in ("string_type", "literal_error")]
    places = [place for place in places if place and (*path, *place) in texts]
    if not places:
        return None
    value = copy.deepcopy(value)
    for place in places:
        below = value
        for part in place[:-1]:
            below = below[part]
        below[place[-1]] = texts[(*path, *place)]
    return value


def sentence(entry: Mapping[str, Any], model: type[BaseModel]) -> str:
    """What is wrong, what is allowed (the nearest first)."""
    loc, kind = entry["loc"], entry["type"]
    owner = _owner(model, loc)
    if kind == "extra_forbidden":
        return f"unknown key '{loc[-1]}'. {did_you_mean(str(loc[-1]), owner.model_fields)}"
    if kind == "missing":
        options = _options(owner.model_fields[loc[-1]].annotation)
        return f"'{loc[-1]}' is missing{': ' + ' or '.join(options) if options else ''}"
    if kind == "literal_error":
        found = entry["input"]
        allowed = [
            part.strip("'") for part in entry["ctx"]["expected"].replace(" or ", ", ").split(", ")
        ]
        return f"{shown(found)} is not allowed. {did_you_mean(str(found), allowed)}"
    if kind == "value_error":
        return str(entry["ctx"]["error"])
    text = entry["msg"].replace("Input should", "should")
    text = text.replace("valid tuple", "list").replace("valid dictionary", "mapping")
    return f"{text[0].lower()}{text[1:]}; found {shown(entry['input'])}"


def _owner(model: type[BaseModel], loc: tuple[Any, ...]) -> type[BaseModel]:
    """The model in which the last part of `loc` lies."""
    for part in loc[:-1]:
        model_field = model.model_fields.get(part) if isinstance(part, str) else None
        inner = model_field.annotation if model_field else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return model


def _options(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(option) for option in get_args(annotation)]
    if get_origin(annotation) in (Union, types.UnionType):
        return [option for part in get_args(annotation) for option in _options(part)]
    return []
