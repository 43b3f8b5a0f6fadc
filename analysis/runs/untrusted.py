"""Values from a file that somebody edited, or another program wrote, and that may hold anything.

What has not the type that runs write is absent, not an error.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any


def mapping(value: Any) -> dict[str, Any]:
    """The value, or an empty mapping."""
    return value if isinstance(value, dict) else {}


def count(value: Any) -> int | None:
    """A whole number that fits 64 bits."""
    return value if type(value) is int and abs(value) < 2**63 else None


def amount(value: Any) -> float | None:
    """A finite number, whole or not: JSON's 1e999 is none."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number of hundreds of digits
        return None


def seconds(stamp: Any) -> float | None:
    """Seconds since 1970 of an ISO time, or of a number."""
    if isinstance(stamp, (int, float)):
        return amount(stamp)
    try:
        return datetime.fromisoformat(str(stamp).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
