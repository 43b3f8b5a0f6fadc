"""The expression language reads what it says, and nothing outside it runs."""

from __future__ import annotations

import math

import pytest

from analysis.claims.expressions import Call, Expression, ExpressionError

VALUES = {"a": 4.0, "b": 1.5, "lost": math.inf}


def read(call: Call) -> float:
    return VALUES[call.variant]


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("peak_loss('a') >= 2 * peak_loss('b')", True),
        ("final('a', 'rank1') <= final('b', 'rank1') + 2.4", False),
        ("abs(final_loss('b') - final_loss('a')) / 2 < 1.3", True),
        ("1 < best('b', 'mAP') < 2 and not peak_loss('a') < 4", True),
        ("-final_loss('a') > 0 or max(final_loss('a'), final_loss('b')) == 4", None),
        ("peak_loss('lost') > 1e300", True),
    ],
)
def test_expressions_mean_what_python_would(text: str, truth: bool | None) -> None:
    if truth is None:  # == is left out: two measured numbers are never equal on purpose
        with pytest.raises(ExpressionError):
            Expression(text)
    else:
        assert Expression(text).value(read) is truth


def test_calls_are_listed_once_in_order() -> None:
    expression = Expression("final('b', 'mAP') < final('a', 'mAP') and final('b', 'mAP') > 0")
    assert [str(c) for c in expression.calls] == ["final(b, mAP)", "final(a, mAP)"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("peak_loss('a') >", "invalid syntax"),
        ("__import__('os').system('true') < 1", "unknown function"),
        ("open('/etc/passwd') < 1", "allowed: peak_loss, final_loss, final, best, abs, min, max"),
        ("peak_loss(a) < 1", "peak_loss('VARIANT')"),
        ("final('a') < 1", "final('VARIANT', 'METRIC')"),
        ("peak_loss('a').real < 1", "not allowed"),
        ("[peak_loss('a')] < 1", "not allowed"),
        ("peak_loss('a') < True", "not allowed"),
        ("peak_loss('a') + 1", "must be true or false"),
        ("1 < 2", "reads no run"),
        ("peak_loss('a') ** 2 < 1", "not allowed"),
    ],
)
def test_what_is_outside_the_language_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression(text)
    assert says in str(caught.value)
