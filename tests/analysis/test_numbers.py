"""A number is rounded once, in decimal, and never printed as something that is no number."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.study.schema import MetricSpec
from analysis.results.numbers import fixed, in_unit, printed

PERCENT = MetricSpec(direction="up", digits=1)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.25, 1, "0.3"),  # half to even would be 0.2
        (0.35, 1, "0.4"),
        (0.285, 2, "0.29"),
        (2.5, 0, "3"),
        (-2.5, 0, "-3"),
        (81.25, 1, "81.3"),
        (-0.04, 1, "0.0"),
        (1e-9, 3, "0.000"),
        (1e9, 1, "1000000000.0"),
        (np.float64(0.25), 1, "0.3"),
        (np.float32(0.5), 1, "0.5"),
    ],
)
def test_halves_go_up_and_zero_has_no_sign(value, digits, text):
    assert fixed(value, digits) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="cannot be printed"):
        fixed(value, 1)


def test_per_cent_is_exact_before_it_is_rounded():
    assert printed(0.8125, PERCENT) == "81.3"
    assert in_unit(0.285, PERCENT) == Decimal("28.500")
    assert 0.285 * 100 != 28.5  # what multiplying floats would have printed from
    assert printed(12.345, MetricSpec(direction="down", digits=2, unit="px")) == "12.35"


@given(st.floats(-1e12, 1e12), st.integers(0, 6))
def test_printing_is_within_half_a_unit_of_the_last_place(value, digits):
    error = abs(Decimal(fixed(value, digits)) - Decimal(repr(value)))
    assert error <= Decimal(5).scaleb(-digits - 1)
