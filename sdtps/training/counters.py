"""How far a run has come, as its checkpoints hold it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


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
    first_bad_step: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    skipped: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    skipped_in_a_row: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))

    def to(self, device: torch.device) -> Counters:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self
