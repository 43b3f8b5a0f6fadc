"""Characters of labels and titles that the paper can print.

pdfLaTeX prints no character that its fonts lack. A label with such a character is refused when the
manifest is read, and not when the paper is built. `analysis.tables.latex.escape` prints the others.
"""

from __future__ import annotations

import unicodedata

_GREEK = {
    **dict(
        zip(
            "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩϵϑϕ",
            (
                *("alpha", "beta", "gamma", "delta", "varepsilon", "zeta", "eta", "theta", "iota"),
                *("kappa", "lambda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "upsilon"),
                *("varphi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi"),
                *("Sigma", "Phi", "Psi", "Omega", "epsilon", "vartheta", "phi"),
            ),
            strict=True,
        )
    ),
    "µ": "mu",
    "ς": "varsigma",
}
_SYMBOLS = {
    **{"±": "pm", "∓": "mp", "×": "times", "÷": "div", "·": "cdot", "∗": "ast", "∘": "circ"},
    **{"≤": "leq", "≥": "geq", "≠": "neq", "≈": "approx", "≡": "equiv", "≪": "ll", "≫": "gg"},
    **{"∼": "sim", "≃": "simeq", "∝": "propto", "∥": "parallel", "‖": "Vert", "√": "surd"},
    **{"→": "rightarrow", "←": "leftarrow", "↑": "uparrow", "↓": "downarrow", "↔": "leftrightarrow"},
    **{"⇒": "Rightarrow", "⇐": "Leftarrow", "↦": "mapsto", "∞": "infty", "∂": "partial", "∇": "nabla"},
    **{"∑": "sum", "∏": "prod", "∫": "int", "∈": "in", "∉": "notin", "∅": "emptyset", "∀": "forall"},
    **{"∃": "exists", "∩": "cap", "∪": "cup", "⊂": "subset", "⊆": "subseteq", "∧": "wedge", "∨": "vee"},
    **{
        "⊕": "oplus",
        "⊗": "otimes",
        "⊙": "odot",
        "⟨": "langle",
        "⟩": "rangle",
        "ℓ": "ell",
        "†": "dagger",
    },
    **{"‡": "ddagger", "✓": "surd", "•": "bullet", "★": "star", "⋆": "star", "⋯": "cdots"},
    **{"¬": "neg", "′": "prime"},
}
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "0123456789+-=()ni", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₒₓₕₖₗₘₙₚₛₜᵢⱼ", "0123456789+-=()aeoxhklmnpstij", strict=True))
# Character to what follows the backslash, or to the whole of a formula, inside `\ensuremath`.
MATH = {
    **{char: f"\\{name}" for char, name in (*_GREEK.items(), *_SYMBOLS.items())},
    **{char: f"^{{{plain}}}" for char, plain in _RAISED.items()},
    **{char: f"_{{{plain}}}" for char, plain in _LOWERED.items()},
    "−": "-",
    "°": r"^{\circ}",
}
TEXT = {
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
    '"': "''",
    "`": r"\textasciigrave{}",
    "–": "--",
    "—": "---",
    "‐": "-",
    "‑": "-",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
    "\u00a0": "~",
    "\u2009": r"\,",
    "\u202f": r"\,",
    "§": r"\S{}",
    "¶": r"\P{}",
    "©": r"\copyright{}",
    "£": r"\pounds{}",
}
# Latin letters that LaTeX composes in every font encoding, whatever the document loads.
_ACCENTS = frozenset("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327")
_LETTERS = frozenset("ßæÆœŒøØåÅłŁı")


def composed(char: str) -> bool:
    """Whether it is a Latin letter that LaTeX composes of a letter and one accent."""
    parts = unicodedata.normalize("NFD", char)
    return char in _LETTERS or (len(parts) == 2 and parts[0].isascii() and parts[1] in _ACCENTS)


def unprintable(text: str) -> list[str]:
    """Characters of `text` that the paper cannot print, each with its code point: `基 (U+57FA)`."""
    found = dict.fromkeys(char for char in text if not _printable(char))
    return [f"{char if char.isprintable() else '?'} (U+{ord(char):04X})" for char in found]


def _printable(char: str) -> bool:
    ascii_text = 0x20 <= ord(char) < 0x7F or char in "\n\t"
    return ascii_text or char in TEXT or char in MATH or composed(char)
