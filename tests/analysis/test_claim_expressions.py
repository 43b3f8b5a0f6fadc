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
        ("1 < best('b', 'mAP') and not peak_loss('a') < 4", True),
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
        ("1 < peak_loss('a') < 2", "write a < b < c as a < b and b < c"),
    ],
)
def test_what_is_outside_the_language_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression(text)
    assert says in str(caught.value)


A, B = Call("final", ("a", "rank1")), Call("final", ("b", "rank1"))


@pytest.mark.parametrize(
    ("text", "a", "b", "holds"),
    [
        ("final('a', 'rank1') > final('b', 'rank1')", [0.9, 0.91, 0.92], [0.5, 0.52, 0.51], True),
        ("final('a', 'rank1') <= final('b', 'rank1')", [0.9, 0.91, 0.92], [0.5, 0.52, 0.51], False),
        ("final('a', 'rank1') > final('b', 'rank1')", [0.9, 0.5, 0.7], [0.6, 0.7, 0.65], None),
        # equivalence: shown, excluded, open
        ("abs(final('a', 'rank1') - final('b', 'rank1')) < 0.05", [0.9, 0.91], [0.901, 0.908], True),
        ("abs(final('a', 'rank1') - final('b', 'rank1')) > 0.05", [0.9, 0.91], [0.5, 0.52], True),
        ("abs(final('a', 'rank1') - final('b', 'rank1')) > 0.05", [0.9, 0.91], [0.901, 0.908], False),
        ("abs(final('a', 'rank1') - final('b', 'rank1')) > 0.05", [0.9, 0.8], [0.85, 0.86], None),
        # a diverged run is the worst; one of two says nothing
        ("final('a', 'rank1') > final('b', 'rank1')", [0.9, 0.8], [-math.inf, -math.inf], True),
        ("final('a', 'rank1') > final('b', 'rank1')", [-math.inf, 0.8], [0.7, 0.6], None),
        # one part that is false settles `and`, whatever the other
        (
            "final('a', 'rank1') < final('b', 'rank1') and final('a', 'rank1') > 0.8",
            [0.9, 0.8],
            [0.5, 0.41],
            False,
        ),
        ("not final('a', 'rank1') > final('b', 'rank1')", [0.9, 0.91], [0.5, 0.52], False),
    ],
)
def test_means_are_decided_by_intervals_or_left_open(
    text: str, a: list[float], b: list[float], holds: bool | None
) -> None:
    decision = Expression(text).decided({A: a, B: b})
    assert decision.holds is holds
    assert (decision.why != "") is (holds is None)


def test_two_variants_of_equal_truth_and_wide_seeds_are_rarely_said_to_differ() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    expression = Expression("abs(final('a', 'rank1') - final('b', 'rank1')) > 0.05")
    answers = []
    for _ in range(400):
        a, b = 0.6 + 0.08 * rng.standard_normal((2, 2))  # two seeds, sd of 8 points
        answers.append(expression.decided({A: list(a), B: list(b)}).holds)
    assert answers.count(True) <= 0.05 * len(answers)  # comparing means says so in 53 %
    assert answers.count(None) > 0.5 * len(answers)
