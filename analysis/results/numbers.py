"""How a number becomes text. The only place that rounds: LaTeX, HTML and terminal print what comes out.

Rounding is decimal and half up, as readers expect: Python and NumPy round halves to even on binary
values, so 0.25 becomes 0.2 and 81.25 becomes 81.2 there.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ablations.study.schema import MetricSpec


def rounded(value: float | Decimal, digits: int) -> Decimal:
    """`value` at `digits` decimals, half away from zero; never minus zero.

    A float is read by its shortest text (repr), so 0.285 is meant as 0.285 and not as
    0.284999999999999975575093458246556110680103302001953125.

    Raises:
        ValueError: not finite. Such a value is a state to be named, not a number to be printed.
    """
    if isinstance(value, Decimal):
        exact = value
    else:
        value = float(value)  # NumPy scalars have another repr
        if not math.isfinite(value):
            raise ValueError(f"{value} cannot be printed as a number")
        exact = Decimal(repr(value))
    result = exact.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
    return abs(result) if result == 0 else result


def fixed(value: float | Decimal, digits: int) -> str:
    """`value` with exactly `digits` decimals and an ASCII minus."""
    return f"{rounded(value, digits):f}"


def signed(value: float | Decimal, digits: int) -> str:
    """As `fixed`, with a plus sign before positive values; what rounds to zero has no sign."""
    result = rounded(value, digits)
    return f"{result:+f}" if result != 0 else f"{result:f}"


def in_unit(value: float, metric: MetricSpec) -> Decimal:
    """`value` in the unit that the metric is printed in, exactly: 0.8125 is 81.25 %."""
    exact = Decimal(repr(float(value)))
    return exact * 100 if metric.unit == "%" else exact


def printed(value: float, metric: MetricSpec) -> str:
    """A metric's value as text, without its unit."""
    return fixed(in_unit(value, metric), metric.digits)


def printed_signed(value: float, metric: MetricSpec) -> str:
    """A difference of a metric's values as text, with its sign and without its unit."""
    return signed(in_unit(value, metric), metric.digits)


def decimals(text: str) -> int:
    """How many decimals a number printed elsewhere has: its author's precision."""
    return len(text.partition(".")[2])


def half_unit(text: str) -> float:
    """How far a number printed elsewhere may be from what was rounded: 0.05 of `81.3`."""
    return 0.5 * 10.0 ** -decimals(text)


def raised(exponent: int) -> str:
    """A whole number in raised digits: -9 is ⁻⁹."""
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def duration(seconds: float) -> str:
    """42 s, 3.5 min, 2.1 h: two or three significant figures."""
    if seconds < 99.5:
        return f"{fixed(seconds, 0)} s"
    if seconds < 99.5 * 60:
        return f"{fixed(seconds / 60, 1)} min"
    return f"{fixed(seconds / 3600, 1)} h"
