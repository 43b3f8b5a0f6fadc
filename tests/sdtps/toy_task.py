"""A task of a few hundred parameters with dropout, for tests of the training loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sdtps.evaluation import Progress, no_progress
from sdtps.system import distributed
from sdtps.training.loop import Loop


def train(*task_folder_config: Any, **options: Any) -> str:
    """One attempt of the training loop."""
    return Loop(*task_folder_config, **options).run()


class ToyTask:
    """Three classes of points in 8 dimensions; `blow_up_at` makes one step's loss infinite."""

    select_metric = "accuracy"
    selected_on = "test"
    conditions: tuple[str, ...] = ()
    record: ClassVar[dict[str, Any]] = {}
    queries: ClassVar[dict[str, Tensor]] = {}

    def __init__(self, seed: int = 0, *, steps: int = 5, blow_up_at: int | None = None) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.0 if steps < 0 else 0.2), nn.Linear(16, 3)
        )
        self.device = torch.device("cpu")
        self.steps_per_epoch = abs(steps)
        self.seed = seed
        self.blow_up_at = blow_up_at
        self.seen: list[tuple[int, int]] = []

    def train_batches(self, epoch: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(first, self.steps_per_epoch):
            self.seen.append((epoch, index))
            generator = torch.Generator().manual_seed(1000 * self.seed + 100 * epoch + index)
            labels = torch.arange(12) % 3
            points = torch.randn(12, 8, generator=generator) + labels[:, None]
            mine = slice(distributed.rank(), None, distributed.world_size())
            yield points[mine], labels[mine]

    def batch_size(self, batch: tuple[Tensor, Tensor]) -> int:
        return len(batch[0])

    def loss(
        self, batch: tuple[Tensor, Tensor], epoch: int, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        points, labels = batch
        scores = distributed.gather_batch(self.model[:3](points))
        labels = distributed.gather_batch(labels.float()).long()
        logits = self.model[3](scores).float()
        loss = nn.functional.cross_entropy(logits, labels)
        if self.blow_up_at is not None and step >= self.blow_up_at:
            loss = loss * float("inf")
        accuracy = (logits.detach().argmax(dim=1) == labels).double().mean()
        return loss, {"ce": loss.detach(), "accuracy": accuracy}

    def evaluate(
        self, conditions: Sequence[str] = ("",), progress: Progress = no_progress
    ) -> dict[str, float]:
        metrics = {}
        for name in conditions:
            metrics |= self._scored(name, progress)
        return metrics

    def _scored(self, condition: str, progress: Progress) -> dict[str, float]:
        """A condition's name is how much its points are moved."""
        suffix = f"@{condition}" if condition else ""
        points = torch.randn(30, 8, generator=torch.Generator().manual_seed(5))
        points = points + float(condition or 0)
        labels = torch.arange(30) % 3
        correct = (self.model(points + labels[:, None]).argmax(1) == labels).float().mean()
        for done in (1, 2, 3):
            progress(done, 3)
        return {f"accuracy{suffix}": correct.item(), f"noise{suffix}": torch.rand(()).item()}

    def trunk(self) -> list[nn.Parameter]:
        return list(self.model[0].parameters())

    def module_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"trunk": self.trunk(), "head": list(self.model[3].parameters())}
