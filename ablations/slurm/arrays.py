"""Runs as job arrays: how many, how large, and how many jobs of each run at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ablations.study.model import RunSpec
from ablations.study.schema import Resources


@dataclass(frozen=True)
class Chunk:
    """One array.

    Attributes:
        throttle: runs of this array at once; None: no limit.
        after_previous: starts when the array before it has ended.
        chained: the class's arrays wait for each other.
    """

    runs: tuple[RunSpec, ...]
    resources: Resources
    throttle: int | None = None
    after_previous: bool = False
    chained: bool = False

    def jobs(self) -> list[tuple[RunSpec, ...]]:
        """The runs of each job: one, or with resources.runs_per_gpu up to so many."""
        together = self.resources.runs_per_gpu
        return [self.runs[k : k + together] for k in range(0, len(self.runs), together)]


def halves(chunk: Chunk) -> list[Chunk]:
    """Two arrays for one, for a cluster that does not take so many jobs at once."""
    parts = _parts(chunk.jobs(), -(-len(chunk.jobs()) // 2))
    limit = chunk.throttle
    # Side by side they would be more than the limit; the array after them waits for one of them only.
    chained = chunk.chained or (limit is not None and limit < len(parts))
    shares = [limit] * len(parts) if chained else _shares(limit, [len(part) for part in parts])
    return [
        Chunk(tuple(part), chunk.resources, share, chunk.after_previous or (chained and k > 0), chained)
        for k, (part, share) in enumerate(zip(parts, shares, strict=True))
    ]


def chunks(runs: Sequence[RunSpec], max_array_size: int) -> list[Chunk]:
    """Arrays of nearly equal size, each of less than `max_array_size` jobs (the index's limit)."""
    classes: dict[tuple[str, str], list[RunSpec]] = {}
    for run in runs:
        classes.setdefault((run.study, run.resources.key()), []).append(run)
    found = []
    for members in classes.values():
        resources = members[0].resources
        parts = _parts(Chunk(tuple(members), resources).jobs(), max(1, max_array_size - 1))
        limit = resources.max_parallel
        shares = _shares(limit, [len(part) for part in parts])
        chained = limit is not None and limit < len(parts)
        found += [
            Chunk(tuple(part), resources, limit if chained else share, chained and number > 0, chained)
            for number, (part, share) in enumerate(zip(parts, shares, strict=True))
        ]
    return found


def _parts(jobs: list[tuple[RunSpec, ...]], size: int) -> list[list[RunSpec]]:
    """The runs of `jobs` in as few parts of `size` jobs as hold them; no job is cut."""
    count = -(-len(jobs) // size)
    bounds = [len(jobs) * k // count for k in range(count + 1)]
    return [[run for job in jobs[a:b] for run in job] for a, b in pairwise(bounds)]


def _shares(limit: int | None, sizes: list[int]) -> list[int | None]:
    """`limit` split over arrays by size. Each gets at least one; the sum is `limit` where it can be."""
    if limit is None:
        return [None] * len(sizes)
    bounds = [limit * sum(sizes[:k]) // sum(sizes) for k in range(len(sizes) + 1)]
    return [max(1, b - a) for a, b in pairwise(bounds)]
