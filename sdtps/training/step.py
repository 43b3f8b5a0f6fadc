"""One step of training, for both tasks: loss, gradients, clipping, update. The host never waits in it.

What a run must know afterwards (the epoch's loss, the first step without a finite loss, the steps that
the AMP scaler skipped) is counted on the device and read where a row is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sdtps.config import Config
from sdtps.evaluation import Progress, no_progress
from sdtps.system import distributed
from sdtps.training.optim import build_optimizer, parameter_groups


class StepTask(Protocol):
    """What one training step asks of a task."""

    model: nn.Module
    device: torch.device

    def loss(self, batch: Any, epoch: int, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to minimise and its parts (detached scalars); `epoch` and `step` from 1.

        A part `accuracy` is none of the loss: the share of the batch that the first head is right on.
        """

    def trunk(self) -> list[nn.Parameter]:
        """Parameters of the pretrained part, which may have a learning rate of its own."""

    def module_groups(self) -> dict[str, list[nn.Parameter]]:
        """Named parts of the model whose gradient norms are logged (`grad_norm/NAME`)."""


class Task(StepTask, Protocol):
    """What a task gives to the training loop.

    `model` is on `device`. Batches come ready for `loss`, in an order that depends on the seed and the
    epoch alone; `first` is the index in the epoch of the first batch wanted (resume). With several
    processes each gets its own rows of the same batches, and `loss` gathers what it compares
    (`distributed.gather_batch`). `loss` runs under autocast when AMP is on.
    """

    steps_per_epoch: int
    queries: Mapping[str, Tensor]  # of each query of the last evaluation, by name
    select_metric: str  # of evaluate(): the epoch where it is highest is the best (ties: the earliest)
    conditions: tuple[str, ...]  # under which the selected and the last weights are scored too
    selected_on: str  # the split behind it: dev, or test as the publications do
    record: dict[str, Any]  # what run.json must know: data (name, root, digest), weights

    def train_batches(self, epoch: int, first: int) -> Iterator[Any]:
        """Batches `first`, `first` + 1, ... of `epoch` (from 1)."""

    def batch_size(self, batch: Any) -> int:
        """Samples in this process's batch, for images per second."""

    def evaluate(
        self, conditions: Sequence[str] = ("",), progress: Progress = no_progress
    ) -> dict[str, float]:
        """Flat metrics, fractions in [0, 1]; called in eval mode, no gradients, in every process.

        Args:
            conditions: "" = the configuration's own evaluation, which selects the best epoch; others
                are known to the task, and their metrics carry the name as a suffix.
            progress: called after each block; what it raises ends the evaluation.

        Raises:
            FloatingPointError: the model's outputs are not finite: the run has diverged.
        """


@dataclass
class Counters:
    """Where a run is. Tensors stay on the device: nothing is read from it inside a step."""

    step: int = 0  # optimiser steps done
    epoch: int = 0  # epochs finished
    seconds: float = 0.0  # spent in steps, over all attempts
    samples: int = 0
    best: dict[str, Any] | None = None  # evaluation rows
    final: dict[str, Any] | None = None
    evaluated: int = 0  # last epoch evaluated
    epoch_sum: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    accuracy_sum: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    first_bad_step: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    skipped: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    skipped_in_a_row: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))

    def to(self, device: torch.device) -> Counters:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self


class TrainingStep:
    """A task's model, its optimiser and AMP scaler. Compiles the model where the run asks for it."""

    def __init__(self, task: StepTask, config: Config) -> None:
        self.settings = config.train
        self.device = task.device
        self.model = task.model
        self.counters = Counters().to(self.device)
        self.optimizer = build_optimizer(
            parameter_groups(task.model, task.trunk(), config.optim), config.optim
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.settings.amp == "fp16")
        self.module_groups = task.module_groups()
        if self.settings.compile is True:  # auto is decided before: `device.for_machine`
            task.model.compile()  # in place: names in checkpoints stay as they are
        self.compute_loss = whole_batch_loss(task)
        self.trunk = [p for p in task.trunk() if p.requires_grad]
        self.trained = [p for p in task.model.parameters() if p.requires_grad]
        self.average: list[Tensor] | None = None  # of `trained`
        if self.settings.ema is not None:
            self.average = [p.detach().clone() for p in self.trained]

    def freeze_trunk(self, frozen: bool) -> None:
        """Leave the pretrained trunk out of training, or take it in again."""
        for parameter in self.trunk:
            parameter.requires_grad_(not frozen)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model with its averaged weights, where the run keeps an average."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for parameter, mean in zip(self.trained, self.average or (), strict=False):
            parameter.data, mean.data = mean.data, parameter.data

    def forward(self, batch: Any, epoch: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of `batch` and its parts, on the device, in the run's precision."""
        amp = self.settings.amp
        dtype = torch.float16 if amp == "fp16" else torch.bfloat16
        with torch.autocast(self.device.type, dtype=dtype, enabled=amp != "off"):
            return self.compute_loss(batch, epoch, self.counters.step + 1)

    def backward(self, loss: Tensor, *, adds: bool = False) -> None:
        """Leave the loss's gradients, scaled for fp16, in the parameters, or add them."""
        if not adds:
            self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()

    def forward_backward(
        self, batch: Any, epoch: int, *, share: float = 1.0, adds: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`forward` and `backward`, and what the counters keep of the loss.

        Args:
            share: weight of this batch's gradients among those that one update takes together.
            adds: earlier batches of the update have left gradients.
        """
        counters = self.counters
        loss, parts = self.forward(batch, epoch)
        self.backward(loss if share == 1.0 else loss * share, adds=adds)
        loss = loss.detach()
        counters.epoch_sum += loss
        if "accuracy" in parts:
            counters.accuracy_sum += parts["accuracy"]
        bad = ~torch.isfinite(loss) & (counters.first_bad_step == 0)
        counters.first_bad_step += bad * (counters.step + 1)
        return loss, parts

    def update(self, *, measure: bool) -> dict[str, Tensor]:
        """Clip and step; the gradient norms before clipping when they are to be measured."""
        counters = self.counters
        limit = self.settings.clip_grad_norm
        norms: dict[str, Tensor] = {}
        if measure or limit is not None or self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
            total = self.norm(self.model.parameters())
            norms["grad_norm"] = total
            if measure:
                norms |= self.group_norms()
            if limit is not None:
                nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, total)
            if self.scaler.is_enabled():
                skips = (~torch.isfinite(total)).long()
                counters.skipped += skips
                counters.skipped_in_a_row = (counters.skipped_in_a_row + skips) * skips
        self.scaler.step(self.optimizer)
        self.scaler.update()
        decay = self.settings.ema
        if self.average is not None and decay is not None:
            torch._foreach_lerp_(self.average, [p.detach() for p in self.trained], 1 - decay)
        return norms

    def group_norms(self) -> dict[str, Tensor]:
        """`grad_norm/NAME` of each named part of the model."""
        return {f"grad_norm/{name}": self.norm(group) for name, group in self.module_groups.items()}

    def norm(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """Euclidean norm of these gradients together, on the device; 0 where there is none."""
        grads = [p.grad for p in parameters if p.grad is not None]
        return nn.utils.get_total_norm(grads) if grads else torch.zeros((), device=self.device)

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "counters": dict(vars(self.counters)),
            "average": self.average,
        }

    def load(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scaler.load_state_dict(saved["scaler"])
        self.counters = Counters(**saved["counters"]).to(self.device)
        for mean, kept in zip(self.average or (), saved.get("average") or (), strict=False):
            mean.copy_(kept)


def whole_batch_loss(task: StepTask) -> Callable[[Any, int, int], tuple[Tensor, dict[str, Tensor]]]:
    """The task's loss, its gradients averaged over the processes where there are several."""
    if distributed.world_size() == 1:
        return task.loss
    # Some variants leave parameters without gradient (that is what they are studied for).
    return DistributedDataParallel(_LossModule(task), find_unused_parameters=True)


class _LossModule(nn.Module):
    """A task's loss as a module's forward pass, the shape that DistributedDataParallel understands."""

    def __init__(self, task: StepTask) -> None:
        super().__init__()
        self.model = task.model
        self._loss = task.loss

    def forward(self, batch: Any, epoch: int, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        return self._loss(batch, epoch, step)
