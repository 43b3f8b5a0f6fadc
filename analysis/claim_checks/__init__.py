"""Checks that decide claims by computation, seconds each, no training. Importing registers them all."""

from analysis.claim_checks import (
    crossmodal,
    gradients,
    masks,
    memory,
    noise,
    ratio,
    reported,
    structure,
)
from analysis.claim_checks.registry import CHECKS, argument_mistake

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
