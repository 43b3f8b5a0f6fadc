"""DeMo's fusion beyond the golden case: sizes, gates, a batch of one, low precision."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from sdtps.models.reid import SETS, Fusion, Pife
from sdtps.multimodal import MODALITIES


def parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def inputs(batch: int, width: int = 64, patches: int = 9) -> tuple[dict, dict]:
    torch.manual_seed(0)
    return (
        {m: torch.randn(batch, patches, width) for m in MODALITIES},
        {m: torch.randn(batch, width) for m in MODALITIES},
    )


def test_sizes_at_full_scale_are_the_reported_steps() -> None:
    """86.41 -> 87.99 (PIFE) -> 95.96 (HDM) -> 98.79 M (ATMoE), heads included; 171 identities."""
    head = 7 * 512 * (171 + 2)  # classifier without bias, BNNeck
    pife, hdm = parameters(Pife(512)), parameters(Fusion("hdm", 512, 4)) + head
    moe = parameters(Fusion("hdm_atmoe", 512, 4)) + head
    assert pife / 1e6 == pytest.approx(87.99 - 86.41, abs=0.01)
    assert hdm / 1e6 == pytest.approx(95.96 - 87.99, abs=0.01)
    assert moe / 1e6 == pytest.approx(98.79 - 87.99, abs=0.01)


@pytest.mark.parametrize("kind", ["hdm", "hdm_atmoe"])
def test_a_batch_of_one_is_ranked_like_any_other(kind: Literal["hdm", "hdm_atmoe"]) -> None:
    fusion = Fusion(kind, 64, 4).eval()
    patches, globals_ = inputs(3)
    together = fusion(patches, globals_)
    assert together.shape == (3, 7 * 64)
    alone = fusion({m: p[:1] for m, p in patches.items()}, {m: g[:1] for m, g in globals_.items()})
    torch.testing.assert_close(alone, together[:1])


def test_gate_rows_sum_to_1_per_head() -> None:
    fusion = Fusion("hdm_atmoe", 64, 4).eval()
    assert fusion.moe is not None
    gate = fusion.moe.gate(fusion.hdm(*inputs(3)))
    assert gate.shape == (3, 4, len(SETS))
    torch.testing.assert_close(gate.sum(-1), torch.ones(3, 4))


def test_a_set_sees_its_members_only() -> None:
    fusion = Fusion("hdm", 64, 4).eval()
    patches, globals_ = inputs(2)
    before = fusion.hdm(patches, globals_)
    patches["tir"] = torch.zeros_like(patches["tir"])
    after = fusion.hdm(patches, globals_)
    changed = [not torch.equal(before[:, i], after[:, i]) for i in range(len(SETS))]
    assert changed == ["t" in s for s in SETS]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_stays_finite_in_training(dtype: torch.dtype) -> None:
    patches, globals_ = inputs(4)
    fusion = Fusion("hdm_atmoe", 64, 4)
    with torch.autocast("cpu", dtype=dtype):
        output = fusion(patches, Pife(64)(patches, globals_))
        output.float().square().sum().backward()
    assert torch.isfinite(output).all()
    assert all(p.grad is not None for p in fusion.parameters())
