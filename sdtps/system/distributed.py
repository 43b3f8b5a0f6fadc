"""Several processes as one: each holds a share of the batch, the loss sees all of it.

A share may go through the encoders in pieces, which the loss does not see either (`in_pieces`).

Launched by setting torch's own variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
Losses that compare samples (batch-hard triplet, hardest negative, batch normalisation) must see the
whole batch, or two processes train something else than one: tasks pass features through `gather_batch`.
Dropout is the exception: each process draws it for its own rows, from a generator that its rank seeds
(`sdtps.training.attempt`). Two processes draw other dropout than one, and never the same as each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

T = TypeVar("T")


def world_size() -> int:
    """Number of processes; 1 where none were launched together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number; 0 writes the run folder."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def start(device: torch.device) -> None:
    """Join the processes that the environment describes, if it describes more than this one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


def stop() -> None:
    """Leave the group that `start` joined."""
    if dist.is_initialized():
        dist.destroy_process_group()


class _GatherBatch(torch.autograd.Function):
    """All processes' rows in order of rank; the gradient of our own rows, times the world size.

    Every process computes the same whole-batch loss, and gradients are averaged afterwards. The factor
    makes that average a sum for what lies before the gather (each process holds its own part) and
    leaves what lies after it (the same in every process) as it is.
    """

    @staticmethod
    def forward(context: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(world_size())]
        dist.all_gather(parts, rows.contiguous())
        context.rows = rows.shape[0]
        return torch.cat(parts)

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> Tensor:
        begin = rank() * context.rows
        return grads[0][begin : begin + context.rows] * world_size()


def gather_batch(rows: Tensor) -> Tensor:
    """`rows` (b, ...) of every process as one (b x world, ...), differentiable; equal b everywhere."""
    return _GatherBatch.apply(rows) if world_size() > 1 else rows


class _GatherRows(_GatherBatch):
    """All processes' rows in order of rank; the sum of all processes' gradients of our own rows."""

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous()
        dist.all_reduce(total)
        begin = rank() * context.rows
        return total[begin : begin + context.rows]


class _WholeBatch(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation over the batches of all processes, for features before `gather_batch`.

    Each process goes on with its own rows. torch's SyncBatchNorm does the same on GPUs only.
    """

    def forward(self, features: Tensor) -> Tensor:
        """[b, C, ...] -> the same shape; equal b everywhere in training."""
        if not self.training or world_size() == 1:
            return super().forward(features)
        begin = rank() * len(features)
        whole = super().forward(_GatherRows.apply(features))
        return whole[begin : begin + len(features)]


class BatchNorm1d(_WholeBatch, nn.BatchNorm1d):
    """Of vectors [b, C]."""


class BatchNorm2d(_WholeBatch, nn.BatchNorm2d):
    """Of maps [b, C, h, w]."""


def from_first_process(values: Tensor) -> Tensor:
    """The first process's `values` in every process, without gradient; shapes are equal everywhere.

    For draws that concern the whole batch: the first process's generator is the one that a single
    process would have, so that several processes draw what one does.
    """
    if world_size() > 1:
        dist.broadcast(values, 0)
    return values


def draws(rows: int, *shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uniform draws in [0, 1) for this process's `rows` of the batch, (rows, *shape).

    They are drawn for the whole batch and shared out, so that they do not depend on the number of
    processes.
    """
    whole = torch.rand((rows * world_size(), *shape), dtype=dtype, device=device)
    begin = rank() * rows
    return from_first_process(whole)[begin : begin + rows]


def gather_objects(value: Any) -> list[Any]:
    """`value` of every process, in order of rank (pickled: small things only)."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def gather_parts(part: Tensor, device: torch.device) -> list[Tensor]:
    """`part` of every process, in order of rank, without gradient; sizes may differ."""
    if world_size() == 1:
        return [part]
    parts = []
    for source, shape in enumerate(gather_objects(tuple(part.shape))):
        own = source == rank()
        held = (
            part.to(device).contiguous() if own else torch.empty(shape, dtype=part.dtype, device=device)
        )
        dist.broadcast(held, source)
        parts.append(held.to(part.device))
    return parts


def any_process(flag: bool, device: torch.device) -> bool:
    """True in every process when it is true in one."""
    if world_size() == 1:
        return flag
    vote = torch.tensor(int(flag), device=device)
    dist.all_reduce(vote, op=dist.ReduceOp.MAX)
    return bool(vote.item())


def barrier() -> None:
    """Wait for the others."""
    if world_size() > 1:
        dist.barrier()


def in_pieces(run: Callable[..., T], size: int | None, *tensors: Tensor, dim: int = 0) -> list[T]:
    """`run` on pieces of `tensors`, whose activations are computed again in the backward pass.

    Memory is that of one piece; gradients are those of the whole, as in GradCache (Gao et al., 2021).

    Args:
        size: samples of a piece; None or as many as there are: one piece, computed once.
        dim: of the first tensor, along which samples lie; of the others it is 0.
    """
    count = tensors[0].shape[dim]
    if size is None or size >= count or not torch.is_grad_enabled():
        return [run(*tensors)]
    first = tensors[0].split(size, dim)
    pieces = zip(first, *(t.split(size) for t in tensors[1:]), strict=True)
    return [checkpoint(run, *piece, use_reentrant=False) for piece in pieces]
