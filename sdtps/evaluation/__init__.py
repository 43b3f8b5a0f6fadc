"""Rankings and recalls from features and similarities. Evaluators yield (name, value)."""

from __future__ import annotations

from collections.abc import Callable

# Called after each block with (blocks done, blocks in all); it may raise to end the evaluation there.
Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Nobody watches."""
