"""What the training loop asks of a task, and a task's loss over several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sdtps import distributed


class Task(Protocol):
    """What a task gives to the loop.

    `model` is on `device`. Batches come ready for `loss`, in an order that depends on the seed and the
    epoch alone; `first` is the index in the epoch of the first batch wanted (resume). With several
    processes each gets its own rows of the same batches, and `loss` gathers what it compares
    (`distributed.gather_batch`). `loss` runs under autocast when AMP is on.
    """

    model: nn.Module
    device: torch.device
    steps_per_epoch: int
    select_metric: str  # of evaluate(): the epoch where it is highest is the best (ties: the earliest)
    selected_on: str  # the split behind it: dev, or test as the publications do
    record: dict[str, Any]  # what run.json must know: data (name, root, fingerprint), weights (sha256)

    def train_batches(self, epoch: int, first: int) -> Iterator[Any]:
        """Batches `first`, `first` + 1, ... of `epoch` (from 1)."""

    def batch_size(self, batch: Any) -> int:
        """Samples in this process's batch, for images per second."""

    def loss(self, batch: Any, epoch: int, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise and its parts (detached scalars); `epoch` and `step` from 1."""

    def evaluate(self) -> dict[str, float]:
        """Flat metrics, fractions in [0, 1]; called in eval mode, no gradients, in every process.

        Raises:
            FloatingPointError: the model's outputs are not finite: the run has diverged.
        """

    def trunk(self) -> list[nn.Parameter]:
        """Parameters of the pretrained part, which may have a learning rate of its own."""

    def module_groups(self) -> dict[str, list[nn.Parameter]]:
        """Named parts of the model whose gradient norms are logged (`grad_norm/NAME`)."""


def whole_batch_loss(task: Task) -> Callable[[Any, int, int], tuple[Tensor, dict[str, Tensor]]]:
    """The task's loss, its gradients averaged over the processes where there are several."""
    if distributed.world_size() == 1:
        return task.loss
    # Some variants leave parameters without gradient (that is what they are studied for).
    return DistributedDataParallel(_LossModule(task), find_unused_parameters=True)


class _LossModule(nn.Module):
    """A task's loss as a module's forward pass, the shape that DistributedDataParallel understands."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model
        self._loss = task.loss

    def forward(self, batch: Any, epoch: int, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        return self._loss(batch, epoch, step)
