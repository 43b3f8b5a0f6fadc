"""YAML as people mean it: YAML 1.2 core scalars, string keys, and the line of everything.

PyYAML reads YAML 1.1, where `off` is False, `1e-4` a string, `1:30` ninety and `010` eight, and where
the last of two equal keys wins in silence. Only its parser is used here; scalars are resolved by us.

Deliberate limits: no tags, no non-scalar keys, one document a file; `<<` is an ordinary key.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sdtps.system.errors import YamlError

KeyPath = tuple[str | int, ...]

# In lower, upper or mixed case.
_WORDS = {
    **{"": None, "~": None, "null": None, "true": True, "false": False, ".nan": math.nan},
    **{".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf},
}
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# `{python} train.py` as a value, which YAML takes for a mapping: to its end in a flow, and the rest.
_UNQUOTED = re.compile(r"(?<=[:-] )(?=\{[^{}:]*\} *[^\s,}\]#])((?:\{[^{}]*\}|[^{},])*).*")
_MAX_NODES = 200_000  # aliases can expand without end; no honest file comes near this
_MAX_DIGITS = 400  # of an integer: more is a mistake, and Python refuses to read 4,300
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) scalar by the YAML 1.2 core schema.

    Raises:
        ValueError: an integer of more than 400 digits.
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"an integer of {len(text)} digits")
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


Loader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader  # both are safe


class _Parser(Loader):  # type: ignore[misc]
    """PyYAML's composer without its YAML 1.1 resolvers: every plain scalar stays text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own spelling)


@dataclass
class Document:
    """What a YAML text holds.

    Attributes:
        lines: of each key and item, from 1.
        problems: line and sentence of mistakes after which the rest still could be read.
        texts: the written text of every plain scalar that was read as something else: where a name is
            wanted, `1`, `6334359` or `79.10` means these characters.
    """

    text: str
    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)
    texts: dict[KeyPath, str] = field(default_factory=dict)

    def line(self, path: KeyPath) -> int:
        """The line of `path`, or of the nearest parent that is written in the file; 0 if none is."""
        return next(
            (self.lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.lines), 0
        )

    def _read(self, node: yaml.Node, path: KeyPath, above: tuple[int, ...]) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if len(self.lines) > _MAX_NODES:
            raise YamlError(f"line {line}: aliases expand to more than {_MAX_NODES} values")
        if node.tag not in _PLAIN_TAGS:
            self.problems.append((line, f"tag '{node.tag}' is not allowed: write plain values"))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, line)
        if id(node) in above:
            raise YamlError(f"line {line}: an alias that contains itself")
        above = (*above, id(node))
        if isinstance(node, yaml.SequenceNode):
            return [self._read(item, (*path, i), above) for i, item in enumerate(node.value)]
        return self._mapping(node, path, above)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath, line: int) -> Any:
        written = str(node.value)
        if node.style:  # quoted or block: text, whatever it looks like
            return written
        try:
            value = scalar(written)
        except ValueError as error:
            self.problems.append((line, f"{error}: quote it if it is a text"))
            return written
        if not isinstance(value, str):
            self.texts[path] = written
        return value

    def _mapping(self, node: yaml.Node, path: KeyPath, above: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                text = "a list or mapping cannot be a key; quote the key if it is a text"
                self.problems.append((line, text))
                continue
            place = (*path, str(key_node.value))
            if place[-1] in result:
                text = f"'{'.'.join(map(str, place))}' is given twice"
                self.problems.append(
                    (line, f"{text}: lines {self.lines[place]} and {line}; remove one")
                )
                continue
            self.lines[place] = line
            result[str(place[-1])] = self._read(value_node, place, above)
        return result


def parse(text: str) -> Document:
    """Read one YAML document from `text`.

    Duplicate keys (the first wins), tags and unusable keys are reported in `problems`.

    Raises:
        YamlError: not YAML at all, more than one document, a self-containing alias; with the line.
    """
    document = Document(text)
    try:
        parser = _Parser(text)
        try:
            node = parser.get_single_node()
        finally:
            parser.dispose()
        if node is not None:
            document.data = document._read(node, (), ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        written = text.split("\n")[mark.line] if mark else ""
        if mark and "\t" in written[: mark.column + 1]:
            raise YamlError(f"{line}a tab: YAML is indented with blanks only") from None
        context = f"{error.context}: " if error.context else ""
        if found := _UNQUOTED.search(written):
            value = (found[1] if "flow" in context else found[0]).rstrip()
            right = written.replace(value, "'" + value.replace("'", "''") + "'").strip()
            raise YamlError(f"{line}a text that begins with {{ must be quoted: {right}") from None
        raise YamlError(f"{line}{context}{error.problem}") from None
    except yaml.reader.ReaderError as error:
        line_number = text.count("\n", 0, max(error.position, 0)) + 1
        raise YamlError(f"line {line_number}: {error.reason}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise YamlError(str(error).replace("\n", " ")) from None
    except RecursionError:
        raise YamlError("nested too deeply to be read") from None
    return document


def read(path: Path) -> Document:
    """As `parse`, of a file.

    Raises:
        YamlError: as `parse`, or missing, unreadable, not UTF-8; names the file.
    """
    try:
        return parse(Path(path).read_text(encoding="utf-8-sig"))
    except YamlError as error:
        raise YamlError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        raise YamlError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise YamlError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in the path
        raise YamlError(f"{str(path)!r}: cannot be read: {error}") from None
