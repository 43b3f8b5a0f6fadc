"""A mistake that pydantic found, in our words: what was found, and what is allowed, nearest first."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from sdtps.config.yaml12 import KeyPath, scalar
from sdtps.system.errors import did_you_mean

_LONGEST = 80  # characters of a value that are quoted
_SWITCHES = {"on": True, "yes": True, "y": True, "off": False, "no": False, "n": False}


def sentences(error: ValidationError, model: type[BaseModel], value: Any) -> list[tuple[KeyPath, str]]:
    """(place inside `value`, sentence) for each mistake; those that say the same are told once.

    Args:
        value: what was to be read as a `model`.
    """
    mistakes = ((place(entry, value), _sentence(entry, model, value)) for entry in error.errors())
    return list(dict.fromkeys(mistakes))


def place(entry: Mapping[str, Any], value: Any) -> KeyPath:
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


def shown(value: Any) -> str:
    """A value as a person would have written it, not too long."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif value is None:
        text = "nothing (null)"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def allowed(annotation: Any, metadata: list[Any] | tuple[Any, ...] = ()) -> str:
    """What values a field takes: `a whole number from 1 on`, `text or null`.

    A type's own `description` is taken where it has one.
    """
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        for item in more:
            described = isinstance(item, FieldInfo) and item.description
            if described:
                return str(item.description)
            metadata = [*metadata, *(item.metadata if isinstance(item, FieldInfo) else [item])]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        options = [allowed(part, metadata) for part in parts if part is not type(None)]
        return " or ".join([*options, "null"] if type(None) in parts else options)
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin is tuple:
        return _list(parts, metadata)
    if origin is dict:
        return "a mapping" if parts[1] is Any else f"a mapping, each value {allowed(parts[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"a mapping with keys {', '.join(annotation.model_fields)}"
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    word = plain.get(annotation, "a value of another kind")
    if annotation is str and _bound(metadata, "min_length"):
        return "text that is not empty"
    return f"{word}{_range(annotation, metadata)}"


def _list(parts: tuple[Any, ...], metadata: list[Any] | tuple[Any, ...]) -> str:
    if parts[-1] is not Ellipsis:
        return f"a list of {len(parts)}: {', '.join(map(allowed, parts))}"
    least = _bound(metadata, "min_length")
    size = f"a list of at least {least} item{'' if least == 1 else 's'}" if least else "a list"
    return f"{size}, each item {allowed(parts[0])}"


def _range(annotation: Any, metadata: list[Any] | tuple[Any, ...]) -> str:
    """` from 0 to 1`, ` above 0`, ` from 1 on`."""
    ge, gt, le, lt = (_bound(metadata, name) for name in ("ge", "gt", "le", "lt"))
    if annotation is int and lt is not None:
        le, lt = lt - 1, None
    low = f" from {ge:g}" if ge is not None else f" above {gt:g}" if gt is not None else ""
    if le is not None:
        most = str(le) if isinstance(le, int) else f"{le:g}"
        return f"{low} to {most}" if ge is not None else f"{low}{',' * bool(low)} at most {most}"
    low += " on" if ge is not None else ""
    return f"{low}{',' * bool(low)} below {lt:g}" if lt is not None else low


def _bound(metadata: list[Any] | tuple[Any, ...], name: str) -> Any:
    return next((v for item in metadata if (v := getattr(item, name, None)) is not None), None)


def _sentence(entry: Mapping[str, Any], model: type[BaseModel], value: Any) -> str:
    kind, given = entry["type"], entry["input"]
    if kind == "value_error":
        return str(entry["ctx"]["error"])
    if kind == "extra_forbidden":
        owner = section_of(_field(model, entry["loc"][:-1])[0])
        name = str(entry["loc"][-1])
        return f"unknown key '{name}'. {did_you_mean(name, owner.model_fields if owner else ())}"
    if kind == "missing":
        return f"'{entry['loc'][-1]}' is missing: {allowed(*_field(model, entry['loc']))}"
    annotation, metadata = _field(model, place(entry, value))
    if kind == "literal_error":
        words = [str(w) for o in _options(annotation) if get_origin(o) is Literal for w in get_args(o)]
        return f"{shown(given)} is not allowed. {did_you_mean(str(given), words)}"
    return (
        f"{shown(given)} is not allowed. {_meant(given, annotation)}"
        f"Allowed: {allowed(annotation, metadata)}."
    )


def _field(model: type[BaseModel], path: KeyPath) -> tuple[Any, list[Any]]:
    """The annotation, and its bounds, of the place `path` in a `model`."""
    annotation: Any = model
    metadata: list[Any] = []
    for part in path:
        metadata = []
        section = section_of(annotation)
        if section is not None and part in section.model_fields:
            field = section.model_fields[str(part)]
            annotation = field.annotation
            metadata = list(field.metadata)
            if field.description:
                annotation = Annotated[annotation, FieldInfo(description=field.description)]
            continue
        inner = next((o for o in _options(annotation) if get_origin(o) in (tuple, dict)), None)
        if inner is None:
            break
        parts = get_args(inner)
        is_list = get_origin(inner) is tuple
        fixed = is_list and parts[-1] is not Ellipsis
        # A value that may be anything is never wrong: then the key is.
        inside = parts[0] if is_list or parts[1] is Any else parts[1]
        annotation = parts[int(part)] if fixed else inside
    return annotation, metadata


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model class of a field that is a section, or an optional section."""
    options = _options(annotation)
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def _options(annotation: Any) -> list[Any]:
    """The types that a field may have, without None and without bounds."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        return [o for part in get_args(annotation) for o in _options(part) if o is not type(None)]
    return [annotation]


def _meant(given: Any, annotation: Any) -> str:
    """`Did you mean 2? ` where a value differs from an allowed one only in how it is written."""
    options = _options(annotation)
    guess: Any = None
    if bool in options and isinstance(given, str):
        guess = _SWITCHES.get(given.casefold())
    elif isinstance(given, str) and (int in options or float in options) and len(given) < _LONGEST:
        guess = scalar(given)
    elif int in options and isinstance(given, float) and given.is_integer():
        guess = int(given)
    elif any(get_origin(o) is tuple for o in options) and isinstance(given, (str, int, float)):
        return f"Did you mean [{given if isinstance(given, str) else shown(given)}]? "
    if guess is None or isinstance(guess, str):
        return ""
    return f"Did you mean {shown(guess)}{', without quotes' * isinstance(given, str)}? "
