"""Identity sampling: P identities x K instances a batch, a function of seed and epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class PkSampler:
    """Batches of `batch_size / instances` identities with `instances` images each.

    Follows DeMo's RandomIdentitySampler: each identity's images are shuffled and cut into groups of K
    (an identity with fewer than K images is filled by drawing again), a batch takes one group of each
    of P identities drawn at random. Two deliberate differences: the order is a function of (seed,
    epoch) alone, and every epoch has the same number of batches: where fewer than P identities have
    groups left, the others are shuffled anew (DeMo ends the epoch there).

    Args:
        labels: identity of each training sample.

    Raises:
        ValueError: fewer identities than a batch needs.
    """

    def __init__(self, labels: Sequence[int], batch_size: int, instances: int, seed: int) -> None:
        self.instances = instances
        self.identities_per_batch = batch_size // instances
        self.seed = seed
        self.members: dict[int, np.ndarray] = {
            label: np.flatnonzero(np.asarray(labels) == label) for label in sorted(set(labels))
        }
        if len(self.members) < self.identities_per_batch:
            raise ValueError(
                f"batch_size {batch_size} with {instances} instances needs "
                f"{self.identities_per_batch} identities, the training split has {len(self.members)}"
            )
        groups = sum(max(1, len(m) // instances) for m in self.members.values())
        self.batches = max(1, groups // self.identities_per_batch)

    def epoch(self, epoch: int) -> np.ndarray:
        """Sample indices [batches, batch_size] of `epoch` (from 1)."""
        rng = np.random.default_rng([self.seed, epoch, 101])
        groups = {label: self._groups(label, rng) for label in self.members}
        order = []
        for _ in range(self.batches):
            open_labels = [label for label, left in groups.items() if left]
            if len(open_labels) < self.identities_per_batch:
                for label, left in groups.items():
                    if not left:
                        groups[label] = self._groups(label, rng)
                open_labels = list(groups)
            chosen = rng.choice(len(open_labels), self.identities_per_batch, replace=False)
            order.append(np.concatenate([groups[open_labels[i]].pop() for i in chosen]))
        return np.stack(order)

    def _groups(self, label: int, rng: np.random.Generator) -> list[np.ndarray]:
        members = self.members[label]
        if len(members) < self.instances:
            return [rng.choice(members, self.instances, replace=True)]
        shuffled = rng.permutation(members)
        whole = len(members) // self.instances
        return np.split(shuffled[: whole * self.instances], whole)
