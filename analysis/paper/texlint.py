"""Faults that LaTeX would report late, in its own words, or not at all. Pure Python: it always runs.

Looks at main.tex with all that it inputs: balanced braces and environments, as many cells in a row as
the tabular has columns, bare specials outside of mathematics, numbers that are none, references without
a label, labels twice, inputs and pictures that do not exist, packages that a command needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from analysis.results.numbers import counted

# Commands and environments that are not LaTeX's own, with the package that must be loaded.
NEEDS = {
    "toprule": "booktabs",
    "midrule": "booktabs",
    "cmidrule": "booktabs",
    "addlinespace": "booktabs",
    "rowcolor": "colortbl",
    "includegraphics": "graphicx",
    "resizebox": "graphicx",
    "checkmark": "amssymb",
    "begin{longtable}": "longtable",
    "begin{align}": "amsmath",
    "arraybackslash": "array",
    "textquotedbl": "[T1]{fontenc}",
}
_NO_NUMBER = re.compile(
    r"(?<![\w/.-])(nan|inf|-inf|NaN|<NA>|NULL|\?\?|None(?=\s*(?:&|\\\\|[)},;]|$)))(?![\w/.-])",
    re.MULTILINE,
)
# Arguments that LaTeX does not typeset: names of labels, files, macros.
_NAMES = re.compile(
    r"\\(?:label|ref|eqref|pageref|cite|bibitem|input|includegraphics|IfFileExists|ifstudy|claimsays|claimcount"
    r"|studyavailable|begin|end|usepackage|hypersetup|definecolor)\*?(?:\[[^\]]*\])?\{[^{}]*\}"
)
_MACRO_NAMES = re.compile(r"\\(?:res|ifres|resdef)((?:\{[^{}]*\}){3})")
_ROW_NAME = re.compile(r"(\\gumbelrow\{[^{}]*\})\{[^{}]*\}")
_MATH = (
    re.compile(r"\\begin\{(equation|align|gather|displaymath)\*?\}.*?\\end\{\1\*?\}", re.DOTALL),
    re.compile(r"\\\[.*?\\\]", re.DOTALL),
    re.compile(r"\\\(.*?\\\)", re.DOTALL),
    re.compile(r"(?<!\\)\$[^$]*(?<!\\)\$", re.DOTALL),
)
_TABULAR = re.compile(
    r"\\begin\{(tabular|longtable)\}(?:\[[^\]]*\])?(\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})"
)


@dataclass(frozen=True)
class Fault:
    """One fault; `where` is file:line."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def lint(main: Path) -> list[Fault]:
    """All faults of `main` and of every file that it inputs and that exists.

    Inputs guarded by \\IfFileExists or \\ifstudy may be absent; others may not.
    """
    faults: list[Fault] = []
    texts: dict[Path, str] = {}
    _read(main, main.parent, texts, faults)
    labels: dict[str, str] = {}
    for path, text in texts.items():
        name = str(path.relative_to(main.parent))
        bare = without_comments(text)
        faults += lint_text(bare, name)
        for found in re.finditer(r"\\label\{([^{}]*)\}", bare):
            if "#" in found[1]:
                continue
            if found[1] in labels:
                faults.append(
                    Fault(_at(name, bare, found), f"label '{found[1]}' is in {labels[found[1]]} too")
                )
            labels[found[1]] = name
    everything = "\n".join(without_comments(text) for text in texts.values())
    for path, text in texts.items():
        bare, name = without_comments(text), str(path.relative_to(main.parent))
        for found in re.finditer(r"\\(?:ref|eqref|pageref)\{([^{}#]*)\}", bare):
            if found[1] not in labels and not _guarded(bare, found.start()):
                faults.append(Fault(_at(name, bare, found), f"no label '{found[1]}'"))
    for command, package in NEEDS.items():
        if f"\\{command}" in everything and package not in everything.split(r"\begin{document}")[0]:
            faults.append(Fault(main.name, f"\\{command} needs {package}"))
    return faults


def lint_text(text: str, name: str) -> list[Fault]:
    """Faults of one file's text (comments removed)."""
    faults = _braces(text, name) + _environments(text, name) + _rows(text, name)
    plain = text
    for math in _MATH:
        plain = _blank(plain, math)
    plain = _blank(plain, _NAMES)
    plain = _MACRO_NAMES.sub(lambda m: " " * len(m[0]), plain)
    plain = _ROW_NAME.sub(lambda m: m[1] + " " * (len(m[0]) - len(m[1])), plain)
    if "newcommand" not in text and "DeclareRobustCommand" not in text:
        for found in re.finditer(r"(?<!\\)[_^#]", plain):
            faults.append(Fault(_at(name, text, found), f"bare '{found[0]}' outside of mathematics"))
    for found in re.finditer(r"(?<!\\)&", plain):
        if not _inside_table(text, found.start()):
            faults.append(Fault(_at(name, text, found), "bare '&' outside of a table"))
    for found in _NO_NUMBER.finditer(plain):
        faults.append(Fault(_at(name, text, found), f"'{found[0]}' is printed"))
    for found in re.finditer(r"(?<!\\)\$", plain):
        faults.append(Fault(_at(name, text, found), "a '$' without its partner"))
    return faults


def without_comments(text: str) -> str:
    """`text` with comments blanked; every character keeps its place."""
    return re.sub(r"(?<!\\)((?:\\\\)*)%[^\n]*", lambda m: m[1] + " " * (len(m[0]) - len(m[1])), text)


def _read(path: Path, root: Path, texts: dict[Path, str], faults: list[Fault]) -> None:
    text = path.read_text(encoding="utf-8")
    texts[path] = text
    bare = without_comments(text)
    name = str(path.relative_to(root))
    for found in re.finditer(r"\\input\{([^{}#]+)\}", bare):
        target = root / found[1].replace(r"\generated", "generated")
        target = target if target.suffix == ".tex" else target.with_name(target.name + ".tex")
        if target.exists():
            if target not in texts:
                _read(target, root, texts, faults)
        elif not _guarded(bare, found.start()):
            faults.append(Fault(_at(name, bare, found), f"inputs {found[1]}, which does not exist"))
    for found in re.finditer(r"\\includegraphics(?:\[[^\]]*\])?\{([^{}#]+)\}", bare):
        if not (root / found[1].replace(r"\generated", "generated")).exists():
            faults.append(Fault(_at(name, bare, found), f"shows {found[1]}, which does not exist"))


def _guarded(text: str, position: int) -> bool:
    """Whether a place is inside the argument of a command that asks first."""
    for found in re.finditer(r"\\(IfFileExists|ifstudy|ifres|ifclaims)\b", text[:position]):
        end, start = found.end(), found.end()
        for _ in range({"IfFileExists": 3, "ifstudy": 3, "ifres": 5, "ifclaims": 2}[found[1]]):
            start = text.find("{", end)
            end = _closing(text, start)
            if start < 0 or end < 0:
                return False
        if found.end() < position < end:
            return True
    return False


def _closing(text: str, start: int) -> int:
    depth = 0
    for place in range(start, len(text)):
        if text[place] in "{}" and not _escaped(text, place):
            depth += 1 if text[place] == "{" else -1
            if depth == 0:
                return place + 1
    return -1


def _escaped(text: str, place: int) -> bool:
    backslashes = 0
    while place > 0 and text[place - 1] == "\\":
        backslashes, place = backslashes + 1, place - 1
    return backslashes % 2 == 1


def _braces(text: str, name: str) -> list[Fault]:
    open_at: list[int] = []
    for found in re.finditer(r"[{}]", text):
        if _escaped(text, found.start()):
            continue
        if found[0] == "{":
            open_at.append(found.start())
        elif not open_at:
            return [Fault(_at(name, text, found), "a '}' that closes nothing")]
        else:
            open_at.pop()
    if open_at:
        line = text.count("\n", 0, open_at[-1]) + 1
        return [Fault(f"{name}:{line}", "a '{' that is never closed")]
    return []


def _environments(text: str, name: str) -> list[Fault]:
    stack: list[str] = []
    for found in re.finditer(r"\\(begin|end)\{([^{}#]+)\}", text):
        if found[1] == "begin":
            stack.append(found[2])
        elif not stack or stack.pop() != found[2]:
            return [Fault(_at(name, text, found), f"\\end{{{found[2]}}} does not match")]
    return [Fault(name, f"\\begin{{{stack[-1]}}} is never ended")] if stack else []


def _rows(text: str, name: str) -> list[Fault]:
    faults = []
    for found in _TABULAR.finditer(text):
        columns = _columns(found[2][1:-1])
        end = text.find(rf"\end{{{found[1]}}}", found.end())
        body = text[found.end() : end]
        body = re.sub(r"\\caption\{.*?\}(?=\\label)", "", body, flags=re.DOTALL)
        position = found.end()
        for row in re.split(r"\\\\(?!\w)", body):
            cells = len(re.findall(r"(?<!\\)&", row)) + 1
            for width in re.findall(r"\\multicolumn\{(\d+)\}", row):
                cells += int(width) - 1
            content = re.sub(r"\\[a-z]*rule(\([a-z]*\))?(\{[^}]*\})?|\\end\w+|\\addlinespace", "", row)
            filled = content.strip() and not content.strip().startswith(r"\label")
            if filled and cells != columns:
                line = text.count("\n", 0, position) + 1
                held = f"{counted(cells, 'cell')} in a row of {counted(columns, 'column')}"
                faults.append(Fault(f"{name}:{line}", held))
            position += len(row) + 2
    return faults


def _columns(specification: str) -> int:
    bare = re.sub(r"[@>!<]\{(?:[^{}]|\{[^{}]*\})*\}", "", specification)
    bare = re.sub(r"([pmb])\{[^{}]*\}", r"\1", bare)
    return len(re.findall(r"[lcrpmb]", bare))


def _inside_table(text: str, position: int) -> bool:
    before = text[:position]
    for name in ("tabular", "longtable", "align", "align*", "array", "matrix"):
        if before.count(rf"\begin{{{name}}}") > before.count(rf"\end{{{name}}}"):
            return True
    return False


def _blank(text: str, pattern: re.Pattern[str]) -> str:
    return pattern.sub(lambda m: "".join("\n" if c == "\n" else " " for c in m[0]), text)


def _at(name: str, text: str, found: re.Match[str]) -> str:
    return f"{name}:{text.count(chr(10), 0, found.start()) + 1}"
