"""YAML as people mean it: YAML 1.2 core scalars, string keys, and the line of everything.

PyYAML reads YAML 1.1, where `off` is False, `1e-4` a string, `1:30` ninety and `010` eight, and where
the last of two equal keys wins in silence. Only its parser is used here; scalars are resolved by us.

Deliberate limits: no tags, no non-scalar keys, one document a file; `<<` is an ordinary key.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sdtps.system.errors import YamlError

KeyPath = tuple[str | int, ...]

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_NODES = 200_000  # aliases can expand without end; no honest file comes near this
_MAX_DIGITS = 400  # of an integer: more is a mistake, and Python refuses to read 4,300


@dataclass(frozen=True)
class Problem:
    """A mistake with its place; `line` counts from 1, and 0 means the file as a whole."""

    line: int
    text: str


@dataclass(frozen=True)
class Document:
    """What a YAML text holds. `problems` are mistakes after which the rest still could be read.

    `texts` has the written text of every plain scalar that was read as something else: where a name is
    wanted, `1`, `6334359` or `79.10` means these characters.
    """

    data: Any
    lines: dict[KeyPath, int]
    problems: tuple[Problem, ...]
    texts: dict[KeyPath, str]

    def line(self, path: KeyPath) -> int:
        """The line of `path`, or of the nearest parent that is written in the file; 0 if none is."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 0


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) scalar by the YAML 1.2 core schema.

    Raises:
        ValueError: an integer of more than 400 digits.
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    first = text[0]
    if first not in "+-.0123456789":
        return text
    if _INT.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"an integer of {len(text)} digits")
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    special = _SPECIAL.fullmatch(text)
    if special:
        return math.nan if special[3] else math.copysign(math.inf, -1.0 if special[1] == "-" else 1.0)
    return text


class _Parser(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's composer without its YAML 1.1 resolvers: every plain scalar stays text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own spelling)


_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))


class _Builder:
    """Walks the node tree once, collecting values, lines and problems."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self.texts: dict[KeyPath, str] = {}
        self.nodes = 0

    def build(self, node: yaml.Node, path: KeyPath, above: tuple[int, ...]) -> Any:
        line = node.start_mark.line + 1
        self.nodes += 1
        if self.nodes > _MAX_NODES:
            raise YamlError(f"line {line}: aliases expand to more than {_MAX_NODES} values")
        self.lines.setdefault(path, line)
        if node.tag not in _PLAIN_TAGS:
            self._problem(line, f"tag '{node.tag}' is not allowed: write plain values")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, line)
        if id(node) in above:
            raise YamlError(f"line {line}: an alias that contains itself")
        above = (*above, id(node))
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i), above) for i, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode), node
        return self._mapping(node, path, above)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath, line: int) -> Any:
        written = str(node.value)
        if node.style:  # quoted or block: text, whatever it looks like
            return written
        try:
            value = scalar(written)
        except ValueError as error:
            self._problem(line, f"{error}: quote it if it is a text")
            return written
        if not isinstance(value, str):
            self.texts[path] = written
        return value

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, above: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(line, "a list or mapping cannot be a key; quote the key if it is a text")
                continue
            key = str(key_node.value)
            if key in first:
                where = ".".join(str(p) for p in (*path, key))
                self._problem(
                    line, f"'{where}' is given twice: lines {first[key]} and {line}; remove one"
                )
                continue
            first[key] = line
            self.lines[(*path, key)] = line
            result[key] = self.build(value_node, (*path, key), above)
        return result

    def _problem(self, line: int, text: str) -> None:
        self.problems.append(Problem(line, text))


def parse(text: str) -> Document:
    """Read one YAML document from `text`.

    Duplicate keys (the first wins), tags and unusable keys are reported in `problems`.

    Raises:
        YamlError: not YAML at all, more than one document, a self-containing alias; with the line.
    """
    try:
        parser = _Parser(text)
        try:
            node = parser.get_single_node()
        finally:
            parser.dispose()
        builder = _Builder()
        data = None if node is None else builder.build(node, (), ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        if mark and "\t" in text.split("\n")[mark.line][: mark.column + 1]:
            raise YamlError(f"{line}a tab: YAML is indented with blanks only") from None
        context = f"{error.context}: " if error.context else ""
        raise YamlError(f"{line}{context}{error.problem}") from None
    except yaml.reader.ReaderError as error:
        line_number = text.count("\n", 0, max(error.position, 0)) + 1
        raise YamlError(f"line {line_number}: {error.reason}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise YamlError(str(error).replace("\n", " ")) from None
    except RecursionError:
        raise YamlError("nested too deeply to be read") from None
    return Document(data, builder.lines, tuple(builder.problems), builder.texts)


def read_text(path: Path) -> str:
    """The file's text.

    Raises:
        YamlError: missing, unreadable, not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise YamlError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in the path
        raise YamlError(f"{str(path)!r}: cannot be read: {error}") from None


def load_yaml(source: Path | str) -> tuple[Any, dict[KeyPath, int]]:
    """(data, lines) of a file (given as Path) or of a text (given as str).

    `lines` maps key paths such as ("variants", "topk") or ("tables", 0) to lines counted from 1.

    Raises:
        YamlError: all mistakes of the file, one a line, each with its place.
    """
    if isinstance(source, Path):
        text, where = read_text(source), str(source)
    else:
        text, where = source, "text"
    try:
        document = parse(text)
    except YamlError as error:
        raise YamlError(f"{where}: {error}") from None
    if document.problems:
        raise YamlError("\n".join(f"{where}:{p.line}: {p.text}" for p in document.problems))
    return document.data, document.lines
