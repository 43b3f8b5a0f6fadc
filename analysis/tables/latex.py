"""Text into LaTeX without surprises: a jinja2 environment that escapes everything it prints.

Delimiters are `<< >>`, `<% %>` and `<# #>`, which TeX does not use. A missing name is an error, and so
is a raw float: numbers are rounded in `analysis.results.numbers`, never by a template.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import jinja2

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
}
_MATH = {
    **dict(
        zip(
            "αβγδεζηθικλμνξπρστυφχψω",
            (
                *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota"),
                *("kappa", "lambda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "upsilon"),
                *("phi", "chi", "psi", "omega"),
            ),
            strict=True,
        )
    ),
    "Δ": "Delta",
    "Σ": "Sigma",
    "Ω": "Omega",
    "±": "pm",
    "×": "times",
    "·": "cdot",
    "≤": "leq",
    "≥": "geq",
    "≠": "neq",
    "≈": "approx",
    "→": "rightarrow",
    "←": "leftarrow",
    "↑": "uparrow",
    "↓": "downarrow",
    "∞": "infty",
    "−": "-",
    "✓": "checkmark",
    "√": "surd",
    "∈": "in",
    "†": "dagger",
}
_TEXT = {
    "–": "--",
    "—": "---",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
    "\u00a0": "~",
}


class Tex(str):
    """Text that is LaTeX already and is printed as it is."""

    __slots__ = ()


def escape(text: str) -> Tex:
    """`text` so that LaTeX prints exactly it, whatever it is.

    Characters that pdfTeX's T1 fonts lack lose their accents, or are named by their code point: a
    paper with U+1F600 in it still compiles, and says so.
    """
    out: list[str] = []
    for index, char in enumerate(text):
        if char == "-":
            out.append("-{}" if text[index + 1 : index + 2] == "-" else "-")
        elif char in _SPECIAL:
            out.append(_SPECIAL[char])
        elif char in _TEXT:
            out.append(_TEXT[char])
        elif char in _MATH:
            name = _MATH[char]
            out.append(rf"\ensuremath{{\{name}}}" if name != "-" else r"\ensuremath{-}")
        elif char in "\n\t\r":
            out.append(" ")
        elif ord(char) < 0x20 or ord(char) == 0x7F:
            out.append(f"[U+{ord(char):04X}]")
        elif ord(char) < 0x7F or 0xC0 <= ord(char) <= 0x17F:
            out.append(char)
        else:
            out.append(_plain(char))
    return Tex("".join(out))


def _plain(char: str) -> str:
    bare = "".join(c for c in unicodedata.normalize("NFKD", char) if ord(c) < 0x7F)
    if bare and all(c.isalnum() or c in " .,()/+-=" for c in bare):
        return bare
    return f"[U+{ord(char):04X}]"


def number(text: str) -> Tex:
    """A number that `analysis.results.numbers` wrote, with a real minus sign.

    Raises:
        ValueError: `text` is not one.
    """
    digits = text.lstrip("+-")
    if not digits.replace(".", "", 1).isdigit():
        raise ValueError(f"{text!r} is not a number's text")
    sign = {"-": "$-$", "+": "$+$"}.get(text[:1], "")
    return Tex(f"{sign}{digits}")


def finalize(value: Any) -> str:
    """What jinja2 prints for an expression.

    Raises:
        TypeError: a float, None or container got into a template.
    """
    if isinstance(value, Tex | jinja2.Undefined):
        return str(value)
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise TypeError(
        f"a template printed {value!r} ({type(value).__name__}): pass text of results.numbers, or Tex"
    )


def environment(templates: Path | None = None) -> jinja2.Environment:
    """The environment of paper/templates; `templates` None for templates from strings only."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates) if templates else None,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
