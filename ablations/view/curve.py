"""A run's loss while it is being written: read on from where the last look ended, drawn as bars."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdtps.files import open_regular

BARS = "▁▂▃▄▅▆▇█"
_KEPT = 512  # points at least; where there are twice as many, every second one goes
_WIDE = 50.0  # largest over smallest from which on the heights are logarithmic


@dataclass
class LossCurve:
    """What one metrics.jsonl says so far. `update` reads only what was added since.

    Attributes:
        losses: training losses in file order, thinned where there are many.
        loss: the last one.
        evaluation: the last evaluation row.
    """

    file: Path
    losses: list[float] = field(default_factory=list)
    loss: float | None = None
    evaluation: dict[str, Any] = field(default_factory=dict)
    _offset: int = 0
    _rows: int = 0
    _stride: int = 1
    _rest: bytes = b""

    def update(self) -> None:
        """Take in new whole lines; a file that became shorter is read again."""
        try:
            with open_regular(self.file) as stream:
                if stream is None:
                    return
                size = stream.seek(0, 2)
                if size < self._offset:
                    self.losses, self._offset, self._rest = [], 0, b""
                    self._rows, self._stride = 0, 1
                stream.seek(self._offset)
                added = stream.read(size - self._offset)
        except OSError:
            return
        self._offset = size
        *lines, self._rest = (self._rest + added).split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(row, dict):
            return
        if row.get("kind") == "eval":
            self.evaluation = row
        if row.get("kind") != "train" or "loss" not in row:
            return
        loss = row["loss"]
        self.loss = value = float(loss) if isinstance(loss, (int, float)) else math.inf
        if self._rows % self._stride == 0 or not math.isfinite(value):
            self.losses.append(value)
        self._rows += 1
        if len(self.losses) > 2 * _KEPT:
            self.losses, self._stride = self.losses[::2], 2 * self._stride

    def drawn(self, width: int = 16) -> str:
        """The curve as `width` bars at most; × where the loss is not finite."""
        return sparkline(self.losses, width)


def sparkline(values: list[float], width: int = 16) -> str:
    """Bins of equal size as bars, each its mean; logarithmic where they span a factor of 50 or more.

    A bin that holds a non-finite value is drawn as ×.
    """
    if not values:
        return ""
    bins = min(width, len(values))
    edges = [round(i * len(values) / bins) for i in range(bins + 1)]
    means = [_mean(values[a:b]) for a, b in itertools.pairwise(edges)]
    finite = [m for m in means if math.isfinite(m)]
    if not finite:
        return "×" * bins
    low, high = min(finite), max(finite)
    if low > 0 and high / low > _WIDE:
        means = [math.log(m) if math.isfinite(m) else m for m in means]
        low, high = math.log(low), math.log(high)
    span = high - low or 1.0
    top = len(BARS) - 1
    return "".join(BARS[round((m - low) / span * top)] if math.isfinite(m) else "×" for m in means)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if all(map(math.isfinite, values)) else math.inf
