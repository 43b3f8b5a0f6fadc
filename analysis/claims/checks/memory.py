"""Claims on memory and on the loss scaler of mixed precision."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from analysis.claims.checks.arrangements import PATCHES, WIDTH, arrangement, seed_weights
from analysis.claims.checks.registry import check
from analysis.claims.verdicts import Statement
from sdtps.config import SdtpsConfig
from sdtps.multimodal import MODALITIES, MultiModalSdtps

if TYPE_CHECKING:
    from collections.abc import Iterator

# Dynamic loss scaling as DeMo trains with it (torch's defaults except for the growth, left out here).
INITIAL_SCALE = 65536.0
SMALL_WIDTH, SMALL_PATCHES, SMALL_BATCH = 32, 32, 2  # half precision is slow on a CPU


@contextmanager
def _saved_bytes() -> Iterator[list[int]]:
    """Bytes that autograd keeps for the backward pass, each storage counted once."""
    total = [0]
    seen: dict[int, Tensor] = {}  # keeps them alive, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen[storage.data_ptr()] = tensor
            total[0] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield total


@check
def no_grad_memory() -> list[Statement]:
    """What the backward pass needs kept in v1 (attentions without gradients) and v2 (with)."""
    torch.manual_seed(0)
    patches = {m: torch.randn(4, PATCHES, WIDTH, requires_grad=True) for m in MODALITIES}
    globals_ = {m: torch.randn(4, WIDTH, requires_grad=True) for m in MODALITIES}
    mib: dict[str, float] = {}
    for name in ("v1", "v2"):
        module = MultiModalSdtps(arrangement(name), WIDTH, PATCHES)
        with _saved_bytes() as total:
            module(patches, globals_)
        mib[name] = total[0] / 2**20
    saved = 1 - mib["v1"] / mib["v2"]
    return [
        Statement(
            "less is kept for the backward pass",
            mib["v1"] < mib["v2"],
            f"{mib['v1']:.1f} MiB instead of {mib['v2']:.1f} for 4 images of SDTPS alone: "
            f"{saved:.0%} less",
            {"without_mib": mib["v1"], "with_mib": mib["v2"]},
        )
    ]


def _scaled_steps(config: SdtpsConfig, steps: int) -> tuple[int, float, Tensor]:
    """Train on noise under fp16 autocast with a loss scaler.

    Returns:
        Skipped steps, the last scale, and the gradients (unscaled, one row) before any step.
    """
    torch.manual_seed(0)
    module = MultiModalSdtps(config, SMALL_WIDTH, SMALL_PATCHES)
    seed_weights(module)
    optimiser = torch.optim.Adam(module.parameters(), lr=3.5e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL_SCALE, growth_interval=2000)
    patches = {m: torch.randn(SMALL_BATCH, SMALL_PATCHES, SMALL_WIDTH) for m in MODALITIES}
    globals_ = {m: torch.randn(SMALL_BATCH, SMALL_WIDTH) for m in MODALITIES}
    skipped, first = 0, torch.empty(0)
    for step in range(steps):
        optimiser.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = module(patches, globals_)["feature"].float().square().mean()
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        if step == 0:
            grads = [p.grad for p in module.parameters() if p.grad is not None]
            first = torch.cat([g.flatten() for g in grads]) / before
        scaler.step(optimiser)
        scaler.update()
        skipped += scaler.get_scale() < before
    return skipped, scaler.get_scale(), first


@check
def loss_scale_collapse(steps: int = 60) -> list[Statement]:
    """v2 with Gumbel at temperature 1 against Top-K and the log mask, fp16 with dynamic scaling."""
    topk_skipped, topk_scale, ordinary = _scaled_steps(arrangement("v2"), steps)
    gumbel = arrangement("v2", decision="gumbel_ste")
    skipped, scale, _ = _scaled_steps(gumbel, steps)
    repaired = arrangement("v2", decision="gumbel_ste", mask="log")
    log_skipped, log_scale, _ = _scaled_steps(repaired, steps)
    alive = ordinary[ordinary != 0].abs()
    smallest = torch.finfo(torch.float16).smallest_normal
    lost, at_start = (float((alive * s < smallest).double().mean()) for s in (scale, INITIAL_SCALE))
    return [
        Statement(
            "steps are skipped that Top-K takes",
            skipped > 10 and topk_skipped == 0,
            f"{skipped} of {steps} steps skipped (Top-K {topk_skipped}, log mask {log_skipped})",
            {"skipped": skipped, "topk": topk_skipped, "log": log_skipped, "steps": steps},
        ),
        Statement(
            "the scale falls below 1",
            scale < 1.0,
            f"the scale ends at {scale:.1e} (Top-K {topk_scale:g}, log mask {log_scale:g})",
            {"scale": scale, "topk": topk_scale, "log": log_scale},
        ),
        Statement(
            "at that scale most of Top-K's gradients underflow in fp16",
            lost > 0.5,
            f"{lost:.0%} of Top-K's gradients underflow at that scale, {at_start:.0%} at the first one",
            {"underflow": lost, "underflow_at_start": at_start},
        ),
    ]
