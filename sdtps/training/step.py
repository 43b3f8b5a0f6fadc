"""One step of training, for both tasks: loss, gradients, clipping, update. The host never waits in it.

What a run must know afterwards (the epoch's loss, the first step without a number, steps the AMP scaler
skipped) is counted on the device and read where a row is logged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sdtps.config import Config
from sdtps.training.counters import Counters
from sdtps.training.optim import build_optimizer, parameter_groups
from sdtps.training.task import Task, whole_batch_loss


class TrainingStep:
    """A task's model, its optimiser and AMP scaler. Compiles the model where the run asks for it."""

    def __init__(self, task: Task, config: Config) -> None:
        self.settings = config.train
        self.device = task.device
        self.model = task.model
        self.counters = Counters().to(self.device)
        self.optimizer = build_optimizer(
            parameter_groups(task.model, task.trunk(), config.optim), config.optim
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.settings.amp == "fp16")
        self.module_groups = task.module_groups()
        if self.settings.compile:
            task.model.compile()  # in place: names in checkpoints stay as they are
        self.compute_loss = whole_batch_loss(task)

    def forward_backward(self, batch: Any, epoch: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of `batch` and its parts, on the device; gradients are left in the parameters."""
        amp, counters = self.settings.amp, self.counters
        dtype = torch.float16 if amp == "fp16" else torch.bfloat16
        with torch.autocast(self.device.type, dtype=dtype, enabled=amp != "off"):
            loss, parts = self.compute_loss(batch, epoch, counters.step + 1)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        loss = loss.detach()
        counters.epoch_sum += loss
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
        }

    def load(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scaler.load_state_dict(saved["scaler"])
        self.counters = Counters(**saved["counters"]).to(self.device)
