"""Checks that decide claims by computation, seconds each, no training. Importing registers them all."""

from analysis.claims.checks import (
    crossmodal,
    gradients,
    masks,
    memory,
    noise,
    ratio,
    reported,
    structure,
)
from analysis.claims.checks.registry import CHECKS, argument_mistake

__all__ = [
    "CHECKS",
    "argument_mistake",
    "crossmodal",
    "gradients",
    "masks",
    "memory",
    "noise",
    "ratio",
    "reported",
    "structure",
]
