"""Which learning-rate schedule a log shows, from the values that it prints."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def observed(rates: Sequence[float], *, warmup_epochs: int, finished: bool) -> str:
    """cosine, linear, multistep, constant, or constant-so-far / warmup-so-far; '' without values.

    Args:
        rates: one learning rate for each epoch, in order.
        warmup_epochs: leading epochs that may rise and are left out where rates rise in them.
        finished: the run reached its last planned epoch, so that no later drop can follow.
    """
    if not rates:
        return ""
    peak = max(range(len(rates)), key=lambda i: (rates[i], i))  # the last of equal peaks
    rising = all(a <= b for a, b in pairwise(rates[: peak + 1]))
    first = rates.index(rates[peak])
    after = list(rates[first if rising else 0 :])
    levels = [after[0]] + [b for a, b in pairwise(after) if a != b]
    if len(levels) == 1:
        if first > 0 and first == len(rates) - 1 and len(rates) <= warmup_epochs:
            return "warmup-so-far"
        return "constant" if finished else "constant-so-far"
    if any(b > a for a, b in pairwise(levels)):
        return "other"
    # Steps hold a level for several epochs; an annealed rate changes (almost) every epoch.
    if len(levels) <= 2 or len(levels) < len(after) / 2:
        return "multistep"
    drops = [a - b for a, b in pairwise(levels)]
    return "linear" if max(drops) <= 1.1 * min(drops) else "cosine"
