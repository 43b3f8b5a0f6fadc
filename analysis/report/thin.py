"""Fewer points for the same curve: every bin keeps its first, least, greatest and last value.

A spike of one step survives whatever the number of bins; a gap (NaN) survives as a gap.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def kept(y: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most about `most` points of `y` that show its envelope, in order.

    Args:
        y: values, NaN where the curve has a gap.
        most: wanted number of points; every bin holds up to four.
    """
    count = len(y)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, max(1, most // 4) + 1).astype(np.int64)
    chosen: set[int] = set()
    for start, end in pairwise(edges.tolist()):
        part = y[start:end]
        chosen |= {start, end - 1}
        finite = np.isfinite(part)
        if finite.any():
            chosen.add(start + int(np.argmin(np.where(finite, part, np.inf))))
            chosen.add(start + int(np.argmax(np.where(finite, part, -np.inf))))
        if not finite.all():
            bad = np.flatnonzero(~finite)
            chosen |= {start + int(bad[0]), start + int(bad[-1])}
    return np.array(sorted(chosen))
