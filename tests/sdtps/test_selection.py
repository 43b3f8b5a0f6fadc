"""What holds for any score, size and precision in the selection."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sdtps.config import SdtpsConfig
from sdtps.config.axes import gumbel_noise, minmax, soft_sort
from sdtps.selection import TokenSelection, kept_count, order

few = settings(max_examples=25, deadline=None)


def inputs(batch: int = 3, patches: int = 16, width: int = 20, seed: int = 0) -> tuple[Tensor, ...]:
    """Tokens and three guides: own, first, second."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(batch, patches, width, generator=generator)
    return tokens, *(torch.randn(batch, width, generator=generator) for _ in range(3))


def select(config: SdtpsConfig, seed: int = 0, **sizes: int) -> tuple[TokenSelection, Any, Tensor]:
    """A selection in training mode, its result and the tokens that collect its gradient."""
    torch.manual_seed(seed)
    tokens, own, first, second = inputs(seed=seed, **sizes)
    tokens.requires_grad_(True)
    module = TokenSelection(config, tokens.shape[-1])
    return module, module(tokens, *module.attentions(tokens, own, [first, second])), tokens


@few
@given(st.integers(0, 1000), st.floats(0.0, 0.5), st.integers(2, 40))
def test_equation_3_stays_within_0_and_1_plus_2_beta(seed: int, beta: float, patches: int) -> None:
    _, selection, _ = select(SdtpsConfig(beta=beta), seed, patches=patches)
    assert selection.score.min() >= 0
    assert selection.score.max() <= (1 + 2 * beta) * (1 + 1e-6)


@few
@given(st.integers(0, 1000), st.integers(1, 40), st.floats(0.01, 1.0))
def test_the_decision_keeps_exactly_the_counted_tokens(
    seed: int, patches: int, keep_ratio: float
) -> None:
    config = SdtpsConfig(keep_ratio=keep_ratio)
    _, selection, tokens = select(config, seed, patches=patches)
    kept = kept_count(patches, keep_ratio)
    assert torch.equal(selection.decision.sum(-1), torch.full((3,), float(kept)))
    assert selection.tokens.shape == (3, kept, 20)
    assert (selection.kept_score.diff(dim=-1) <= 0).all()
    assert torch.isfinite(selection.extra).all()
    chosen = tokens[selection.decision.bool()].view(3, kept, 20)
    assert torch.equal(chosen.sort(dim=1).values, selection.tokens.sort(dim=1).values)


def test_nothing_dropped_gives_a_zero_extra_token() -> None:
    for extra in ("softmax", "uniform"):
        _, selection, _ = select(SdtpsConfig(keep_ratio=1.0, extra_token=extra))
        assert torch.equal(selection.extra, torch.zeros(3, 1, 20))


def test_noise_is_drawn_in_training_only_unless_asked_for() -> None:
    tokens, own, first, second = inputs()
    for noise_in_eval in (False, True):
        config = SdtpsConfig(decision="gumbel_ste", noise_in_eval=noise_in_eval, no_grad="none")
        module = TokenSelection(config, 20).eval()
        selection = module(tokens, *module.attentions(tokens, own, [first, second]))
        assert selection.decision.requires_grad is noise_in_eval


def test_gumbel_noise_limits_and_where_a_clamp_of_5_binds() -> None:
    edge = gumbel_noise(torch.tensor([0.0, 1 - 2**-24]))
    assert edge[0].item() == pytest.approx(-3.03, abs=0.01)  # so a lower bound of -5 never binds
    assert edge[1].item() == pytest.approx(16.62, abs=0.05)
    draws = gumbel_noise(torch.rand(1_000_000, generator=torch.Generator().manual_seed(0)))
    assert draws.mean().item() == pytest.approx(0.577, abs=0.01)
    assert draws.std().item() == pytest.approx(1.283, abs=0.01)
    assert (draws > 5).double().mean().item() == pytest.approx(0.0067, abs=0.0005)
    clamped = gumbel_noise(torch.tensor([0.0, 1 - 2**-24]), clamp=5.0)
    assert torch.equal(clamped, torch.tensor([edge[0].item(), 5.0]))


def test_minmax_of_a_constant_row_is_zero() -> None:
    assert torch.equal(minmax(torch.full((2, 5), 3.0)), torch.zeros(2, 5))


def test_equal_scores_keep_patch_order() -> None:
    assert torch.equal(order(torch.zeros(1, 9))[1], torch.arange(9)[None])


@few
@given(st.integers(0, 1000))
def test_soft_rows_sum_to_1_and_tend_to_the_top_k(seed: int) -> None:
    score = torch.rand(2, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ordered, index = order(score)
    rows = soft_sort(score, ordered[:, :5], None, SdtpsConfig(temperature=0.1))
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    cold = soft_sort(score, ordered[:, :5], None, SdtpsConfig(temperature=1e-9))
    assert torch.equal(cold.argmax(-1), index[:, :5])


def test_soft_decision_trains_every_token_and_evaluates_as_top_k() -> None:
    tokens, own, first, second = inputs()
    tokens.requires_grad_(True)
    module = TokenSelection(SdtpsConfig(decision="soft", temperature=0.1), 20)
    attentions = module.attentions(tokens, own, [first, second])
    selection = module(tokens, *attentions)
    selection.tokens.sum().backward()
    assert (tokens.grad.abs().sum(-1) > 0).all()
    assert selection.decision.max() <= 1
    assert selection.kept_decision.max() <= 1 + 1e-6
    hard = TokenSelection(SdtpsConfig(), 20)
    hard.load_state_dict(module.state_dict())
    for ours, topk in zip(module.eval()(tokens, *attentions), hard(tokens, *attentions), strict=True):
        assert torch.equal(ours, topk)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("decision", ["topk", "gumbel_ste", "soft"])
def test_scores_are_float32_in_low_precision(dtype: torch.dtype, decision: str) -> None:
    tokens, *vectors = (t.to(dtype) for t in inputs())
    config = SdtpsConfig(decision=decision, temperature=0.1)
    module = TokenSelection(config, 20).to(dtype)
    selection = module(tokens, *module.attentions(tokens, vectors[0], vectors[1:]))
    assert selection.score.dtype == selection.decision.dtype == torch.float32
    assert selection.tokens.dtype == selection.extra.dtype == dtype
    assert all(torch.isfinite(t).all() for t in selection)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("beta", [0.0, 0.25])
def test_scores_under_autocast_are_those_without(dtype: torch.dtype, beta: float) -> None:
    """In half precision only 57 of 128 scores of the MLP are distinct, and other tokens are kept."""
    tokens, own, first, second = inputs(patches=128, width=64)
    module = TokenSelection(SdtpsConfig(beta=beta, decision="gumbel_ste"), 64)
    draws = torch.rand(3, 128)
    expected = module(tokens, *module.attentions(tokens, own, [first, second]), draws)
    with torch.autocast("cpu", dtype=dtype):
        selection = module(tokens, *module.attentions(tokens, own, [first, second]), draws)
    assert selection.score.dtype == torch.float32
    assert torch.equal(selection.score, expected.score)
    assert torch.equal(selection.decision, expected.decision)
    assert selection.score.unique().numel() > 3 * 126
