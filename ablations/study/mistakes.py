"""Mistakes in a manifest, gathered until all are known, each with its file and line."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sdtps.config.load import tuples
from sdtps.config.wording import place as placed
from sdtps.config.wording import sentences, shown
from sdtps.config.yaml12 import Document, KeyPath, read
from sdtps.system.errors import ManifestError, YamlError, counted, visible

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
    document: Document

    @classmethod
    def read(cls, file: Path) -> Source:
        """Raises ManifestError where the file is missing or no YAML."""
        if file.is_symlink() and not file.exists():
            raise ManifestError(
                f"{file}: is a broken link (to {file.readlink()}); name the file itself"
            )
        try:
            return cls(file, read(file))
        except YamlError as error:
            raise ManifestError(str(error)) from None


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
        problems = source.document.problems
        self.found += [(str(source.file), line, visible(text)) for line, text in problems]

    def check(self, source: Source, path: KeyPath, model: type[Model], value: Any) -> Model | None:
        """`value` as a `model`, or None with every mistake noted."""
        if not isinstance(value, dict):
            keys = ", ".join(model.model_fields)
            self.add(source, path, f"must be a mapping with keys {keys}; found {shown(value)}")
            return None
        try:
            return model.model_validate(tuples(value))
        except ValidationError as error:
            problems = error
        as_text = _with_texts(source, path, value, problems)
        if as_text is not None:
            try:
                return model.model_validate(tuples(as_text))
            except ValidationError as error:
                value, problems = as_text, error
        for place, text in sentences(problems, model, value):
            self.add(source, (*path, *place), text)
        return None

    def raise_if_any(self, file: Path) -> None:
        """Raises ManifestError with all mistakes, in the order of their lines."""
        if not self.found:
            return
        head = f"{file}: {counted(len(self.found), 'mistake')}; nothing was queued."
        main_first = sorted(self.found, key=lambda m: (m[0] != str(file), m[0], m[1]))
        lines = [
            f"{name}:{line}: {text}" if line else f"{name}: {text}" for name, line, text in main_first
        ]
        raise ManifestError("\n".join([head, *lines]))


def _with_texts(source: Source, path: KeyPath, value: Any, error: ValidationError) -> Any:
    """A copy of `value` in which what was read as a number, but is wanted as text, is as written."""
    texts = source.document.texts
    places = [placed(e, value) for e in error.errors() if e["type"] in ("string_type", "literal_error")]
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
