"""What holds for any mask, size and precision in the aggregation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdtps.aggregation import TokenAggregation, aggregated_count
from sdtps.config import SdtpsConfig
from sdtps.config.axes import find
from sdtps.system.errors import ConfigError

SINGLE = SdtpsConfig(aggregation="single")
MASKS = ("none", "subtract_1", "subtract_1e10", "log", "importance", "multiply")
few = settings(max_examples=25, deadline=None)


@few
@given(st.integers(0, 1000), st.sampled_from(MASKS), st.integers(1, 20), st.integers(1, 9))
def test_rows_sum_to_1(seed: int, mask: str, kept: int, outputs: int) -> None:
    torch.manual_seed(seed)
    module = TokenAggregation(SdtpsConfig(mask=mask, aggregation="single"), 20, outputs)
    decision = (torch.rand(3, kept) > 0.5).float()
    weights = module.weights(module.weight, torch.randn(3, kept, 20), decision, torch.rand(3, kept))
    assert weights.shape == (3, outputs, kept)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, outputs))


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-30, 0.5, 1.0])
def test_log_mask_has_finite_gradients_for_any_decision(value: float) -> None:
    decision = torch.full((1, 3), value)
    decision[0, 0] = 1.0
    decision.requires_grad_(True)
    logits = torch.randn(1, 2, 3, requires_grad=True)
    weights = find("mask", "log").masked(logits, decision, None).softmax(-1)
    (weights * torch.arange(3.0)).sum().backward()
    assert torch.isfinite(decision.grad).all()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("how", ["bf16", "fp16", "autocast_bf16", "autocast_fp16"])
def test_masks_stay_finite_in_low_precision(mask: str, how: str) -> None:
    """1e10 is inf in float16, and inf - inf NaN; the published float32 arithmetic knows neither."""
    dtype = torch.bfloat16 if how.endswith("bf16") else torch.float16
    torch.manual_seed(0)
    module = TokenAggregation(SdtpsConfig(mask=mask, aggregation="single"), 20, 4)
    tokens, score = torch.randn(2, 6, 20), torch.rand(2, 6)
    decision = torch.tensor([1.0, 0, 1, 1, 0, 1]).expand(2, 6)
    expected = module.merge(tokens, decision, score)
    if how.startswith("autocast"):
        with torch.autocast("cpu", dtype=dtype):
            output = module.merge(tokens, decision, score)
    else:
        output = module.to(dtype).merge(tokens.to(dtype), decision.to(dtype), score.to(dtype))
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)


def test_ratios_that_leave_no_token_are_refused_with_the_numbers() -> None:
    with pytest.raises(
        ConfigError, match=r"int\(4 patches x aggregation_ratio 0.4 x keep_ratio 0.5\) = 0"
    ):
        aggregated_count(4, 0.4, 0.5)
