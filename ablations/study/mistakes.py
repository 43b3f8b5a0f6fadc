"""Mistakes in a manifest, gathered until all are known, each with its file and line."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sdtps.config.load import tuples
from sdtps.config.wording import place as placed
from sdtps.config.wording import sentences, shown
from sdtps.config.yaml12 import Document, KeyPath, read
from sdtps.system.errors import ManifestError, YamlError, counted, did_you_mean, visible

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


@dataclass
class Source:
    """A YAML file that has been read, and the mistakes in it; `check` reads a part and never raises.

    Attributes:
        found: file, line and sentence of each mistake; of files that are read together, one list.
    """

    file: Path
    document: Document
    found: list[tuple[str, int, str]]

    @classmethod
    def read(cls, file: Path, found: list[tuple[str, int, str]] | None = None) -> Source:
        """Raises ManifestError where the file is missing or no YAML."""
        if file.is_symlink() and not file.exists():
            raise ManifestError(
                f"{file}: is a broken link (to {file.readlink()}); name the file itself"
            )
        try:
            source = cls(file, read(file), [] if found is None else found)
        except YamlError as error:
            raise ManifestError(str(error)) from None
        source.found += [(str(file), line, visible(text)) for line, text in source.document.problems]
        return source

    def mistake(self, path: KeyPath, text: str) -> None:
        where = f"{dotted(path)}: " if path else ""
        line = self.document.line(path)
        self.found.append((str(self.file), line, visible(f"{where}{text}")))

    def expect(self, path: KeyPath, name: str, allowed: Iterable[str], otherwise: str) -> bool:
        """Whether `name` is one of `allowed`; if not, `'NAME' is not a variant` with the nearest."""
        allowed = list(allowed)
        if name not in allowed:
            self.mistake(path, f"'{name}' {otherwise}. {did_you_mean(name, allowed)}")
        return name in allowed

    def check(self, path: KeyPath, model: type[Model], value: Any, **instead: Any) -> Model | None:
        """`value` as a `model`, or None with every mistake noted.

        With values for `instead`, a model without the keys that have a mistake, for reading on.
        """
        if not isinstance(value, dict):
            keys = ", ".join(model.model_fields)
            self.mistake(path, f"must be a mapping with keys {keys}; found {shown(value)}")
            return None
        try:
            return model.model_validate(tuples(value))
        except ValidationError as error:
            problems = error
        as_text = _with_texts(self.document.texts, path, value, problems)
        if as_text is not None:
            try:
                return model.model_validate(tuples(as_text))
            except ValidationError as error:
                value, problems = as_text, error
        wrong = sentences(problems, model, value)
        for place, text in wrong:
            self.mistake((*path, *place), text)
        if not instead:
            return None
        sound = value.keys() - {place[0] for place, _ in wrong if place}
        return model.model_construct(**{**instead, **{key: tuples(value[key]) for key in sound}})

    def list_of(self, key: str, value: Any) -> list[Any]:
        """The items of a section that has to be a list; none where it is not there."""
        if value is not None and not isinstance(value, list):
            self.mistake((key,), f"must be a list; found {shown(value)}")
        return value if isinstance(value, list) else []

    def raise_if_any(self) -> None:
        """Raises ManifestError with all mistakes, in the order of their lines."""
        if not self.found:
            return
        file = str(self.file)
        main_first = sorted(dict.fromkeys(self.found), key=lambda m: (m[0] != file, m[0], m[1]))
        head = f"{file}: {counted(len(main_first), 'mistake')}; nothing was done."
        lines = [
            f"{name}:{line}: {text}" if line else f"{name}: {text}" for name, line, text in main_first
        ]
        raise ManifestError("\n".join([head, *lines]))


def _with_texts(texts: dict[KeyPath, str], path: KeyPath, value: Any, error: ValidationError) -> Any:
    """A copy of `value` in which what was read as a number, but is wanted as text, is as written."""
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
