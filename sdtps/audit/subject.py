"""What the gradient audit examines: a model, its loss and batches that need no data on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sdtps.config import Config


@dataclass
class Subject:
    """One variant, ready for a backward pass.

    Attributes:
        batch: the batch of a step, the same for every variant.
        groups: parameters by part.
    """

    config: Config
    model: nn.Module
    loss: Callable[[Any], Tensor]
    batch: Callable[[int], Any]
    groups: dict[str, list[nn.Parameter]]
    trunk: list[nn.Parameter]
