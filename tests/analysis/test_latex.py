"""Whatever a name or a measured text contains, the LaTeX compiles to the same characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from analysis.latex import escape


def test_special_characters_become_literal() -> None:
    assert escape("w/o_msa & 5% #1 {x} ~^\\") == (
        r"w/o\_msa \& 5\% \#1 \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    assert escape("a < b > c | d") == r"a \textless{} b \textgreater{} c \textbar{} d"
    assert escape("0.1 ± 0.2\nnext") == r"0.1 $\pm$ 0.2 next"
    assert escape("Müller, 数") == "Müller, ?"


@given(st.text())
def test_nothing_bare_is_left(text: str) -> None:
    out = escape(text)
    for command in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}"):
        out = out.replace(command, "")
    assert "\n" not in out
    position = 0
    while position < len(out):
        if out[position] == "\\":
            position += 2  # an escaped special character, or the start of a command
            continue
        assert out[position] not in "%&#_~^"
        position += 1
