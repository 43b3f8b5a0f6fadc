"""Plain text as LaTeX that prints the same characters."""

from __future__ import annotations

import unicodedata

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
    "'": r"\textquotesingle{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "→": r"$\rightarrow$",
    "Δ": r"$\Delta$",
    "ρ": r"$\rho$",
    "τ": r"$\tau$",
    "β": r"$\beta$",
    "λ": r"$\lambda$",
}


def escape(text: str) -> str:
    """`text` with every special character made literal; line ends become spaces.

    Needs T1 fonts and textcomp for quotes. A character that pdflatex cannot print by itself and that is
    not in the table above becomes its closest plain form, or a question mark: a table must compile.
    """
    out = []
    for character in " ".join(text.splitlines()):
        if character in _SPECIAL:
            out.append(_SPECIAL[character])
        elif character.isascii():
            out.append(character if character.isprintable() else " ")
        elif "\u00c0" <= character <= "\u017f":  # Latin letters with marks: utf8 input knows them
            out.append(character)
        else:
            plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
            out.append("".join(_SPECIAL.get(c, c) for c in plain) or "?")
    return "".join(out)
