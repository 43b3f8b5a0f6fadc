"""The checks that claims name: functions of plain arguments that return statements."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from analysis.claims.verdicts import Statement

Check = Callable[..., list[Statement]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Register a check under its own name.

    Raises:
        ValueError: the name is taken.
    """
    name = function.__name__
    if name in CHECKS:
        raise ValueError(f"two checks are named {name}")
    CHECKS[name] = function
    return function


def argument_mistake(name: str, arguments: dict[str, Any]) -> str | None:
    """What is wrong with a call of check `name`, or None."""
    try:
        inspect.signature(CHECKS[name]).bind(**arguments)
    except TypeError as error:
        return f"check {name}{inspect.signature(CHECKS[name])}: {error}"
    return None
