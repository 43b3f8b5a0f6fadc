r"""Whether a piece of LaTeX, such as a variant's `label_tex`, can stand in a cell of a table.

LaTeX itself would say so when the paper is built, after the runs: far from the mistake, in its own
words, or by a table whose rows are cut. What cannot be told here is a command that nobody has defined.
"""

from __future__ import annotations

import re

_COMMAND = re.compile(r"\\(?:[A-Za-z]+\*?|.|$)", re.DOTALL)
# What ends a row or a cell, reads or writes files, or changes what follows.
_FORBIDDEN = frozenset(
    {
        *("\\", "tabularnewline", "newline", "linebreak", "cr", "crcr", "par", "hline", "noalign"),
        *(
            "begin",
            "end",
            "item",
            "verb",
            "label",
            "footnote",
            "caption",
            "omit",
            "span",
            "multicolumn",
        ),
        *(
            "input",
            "include",
            "openin",
            "openout",
            "read",
            "write",
            "immediate",
            "special",
            "directlua",
        ),
        *("def", "edef", "gdef", "xdef", "let", "futurelet", "newcommand", "renewcommand", "csname"),
        *("providecommand", "catcode", "expandafter", "usepackage", "documentclass", "endinput"),
    }
)
_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma "
    "tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
_ONLY_IN_MATH = frozenset(
    [
        *_GREEK.split(),
        *("times", "cdot", "pm", "leq", "geq", "le", "ge", "neq", "approx", "sim", "infty", "to"),
        *("rightarrow", "leftarrow", "uparrow", "downarrow", "frac", "sqrt", "sum", "log", "exp"),
        *("mathrm", "mathbf", "mathcal", "hat", "bar", "tilde", "odot", "oplus", "in"),
    ]
)
_TYPESET = 0x180  # Latin letters with accents; beyond it LaTeX knows few characters
_ALSO = frozenset("–—‘’“”…")


def faults(text: str) -> list[str]:
    """What LaTeX would stumble over in `text`, each with what to write; empty where nothing."""
    if not text.isprintable():
        return ["must be one line of printable characters"]
    found: list[str] = []
    depth, opened = 0, False  # open braces; inside $...$
    ensured = r"\ensuremath" in text  # its braces may hold mathematics; not looked at more closely
    outer: list[int] = []  # depth at which the mathematics began
    place = 0
    while place < len(text):
        char = text[place]
        if char == "\\":
            match = _COMMAND.match(text, place)
            assert match is not None
            found += _of_command(match[0], opened or ensured)
            place = match.end()
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth < 0:
                found.append("'}' closes nothing: write \\} for the character")
                depth = 0
        elif char == "$":
            if opened and depth != outer.pop():
                found.append("'$' and braces overlap")
            elif not opened:
                outer.append(depth)
            opened = not opened
        elif char in "&#%":
            found.append(f"'{char}' has a meaning of its own: write \\{char}")
        elif char in "_^" and not (opened or ensured):
            plain = "\\_" if char == "_" else "\\textasciicircum{}"
            found.append(f"'{char}' outside of mathematics: write {plain}, or put it between $ and $")
        elif ord(char) >= _TYPESET and char not in _ALSO:
            found.append(f"'{char}' is no character of LaTeX's: write a command, such as $\\tau$ for τ")
        place += 1
    if depth:
        found.append("'{' is never closed: write \\{ for the character")
    if opened:
        found.append("'$' without its partner: write \\$ for the character")
    return list(dict.fromkeys(found))


def _of_command(command: str, in_math: bool) -> list[str]:
    name = command[1:].rstrip("*")
    if not name:
        return ["ends with a single backslash: write \\textbackslash{} for the character"]
    if name in _FORBIDDEN:
        return [f"'{command}' cannot stand in a cell of a table: leave it out"]
    if name in "()[]" and len(name) == 1:
        return [f"'{command}': put mathematics between $ and $"]
    if name in _ONLY_IN_MATH and not in_math:
        return [f"'{command}' outside of mathematics: put it between $ and $"]
    return []
