"""Whatever a variant is called, LaTeX prints that and nothing else."""

from __future__ import annotations

import re

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.tables.latex import Tex, environment, escape, number


def render(template: str, **values):
    return environment().from_string(template).render(**values)


def test_latex_given_as_such_is_left_alone():
    assert render(r"\textbf{<< name >>}", name=Tex(r"w/o $\mathcal{L}_{ce}$")) == (
        r"\textbf{w/o $\mathcal{L}_{ce}$}"
    )
    assert escape("$x$") == r"\$x\$"


@pytest.mark.parametrize("value", [0.1, None, float("nan"), True, [1]])
def test_a_raw_float_or_nothing_cannot_be_printed(value):
    with pytest.raises(TypeError, match="a template printed"):
        render("<< value >>", value=value)


def test_a_missing_name_is_an_error_and_no_empty_cell():
    with pytest.raises(jinja2.UndefinedError, match="mAP"):
        render("<< mAP >>")
    with pytest.raises(jinja2.UndefinedError):
        render("<< row.mAP >>", row={})


def test_minus_is_a_minus():
    assert (number("-1.2"), number("+0.4"), number("81.3")) == ("$-$1.2", "$+$0.4", "81.3")
    with pytest.raises(ValueError, match="not a number"):
        number("nan")


def test_characters_without_a_glyph_are_named():
    assert escape("τ=5 – 😀 é") == r"\ensuremath{\tau}=5 -- [U+1F600] é"
    assert escape("a--b") == "a-{}-b"


@given(st.text())
def test_no_bare_special_survives(text):
    formula = r"ensuremath\{([_^]\{)?(\\[a-zA-Z]+|[-+=()a-z0-9])\}?\}"
    bare = re.sub(rf"\\([{{}}$&#%_,]|[a-zA-Z]+\{{\}}|{formula})", "", escape(text))
    assert not set(bare.replace("-{}", "").replace("~", "")) & set("\\{}$&#%_^")
