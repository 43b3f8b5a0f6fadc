"""The kernel is the loop and the plain form. test_fused.py starts this in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.crossnet import similarity_loop
from sdtps import fused
from sdtps.alignment import Mixtures, best_matches, normalised
from sdtps.crossnet import CrossNet
from tests.sdtps import test_crossnet
from tests.sdtps.test_crossnet import LAPS, beside_the_loop, build, inputs

# Both sides in float32 with other orders of additions; differences are shares of the largest value.
CLOSE = 1e-5  # of the kernel alone
AS_LOOP = 1e-4  # through the whole cross-net

SELECTED = {"score": "attention_sum", "normalise": "none", "no_grad": "selection"}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (LAPS, {"aggregation": "single", "no_grad": "none"}),
    (LAPS, {"aggregation": "single", "decision": "gumbel_ste", "mask": "log", "no_grad": "none"}),
    ({"form": "released", "alignment": "mean", "chunk": 4}, {"aggregation": "single", **SELECTED}),
    ({"form": "paper"}, {"aggregation": "single", "extra_token": "none", "no_grad": "none"}),
    (
        {"form": "paper", "chunk": 4},
        {"decision": "gumbel_ste", "mask": "importance", "no_grad": "none"},
    ),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny sizes have several blocks, too."""
    monkeypatch.setattr(fused, "CHANNELS", 16)
    monkeypatch.setattr(fused, "KEPT", 16)
    monkeypatch.setattr(fused, "PRODUCTS", 256)
    monkeypatch.setattr(test_crossnet, "IMAGES", 2)


def relative(ours: Tensor, other: Tensor) -> float:
    """Largest difference, as a share of the largest value."""
    difference = (ours - other).detach().abs().max()
    return float(difference / other.detach().abs().max().clamp_min(1e-2))


def scored(
    matching: dict[str, Any], axes: dict[str, Any], training: bool
) -> tuple[CrossNet, list[Tensor]]:
    net = build(axes, {"kernel": "fused", **matching}).float().train(training)
    return net, [x.detach().float().requires_grad_() if x.requires_grad else x for x in inputs(net)]


@pytest.mark.parametrize(("matching", "axes"), CASES, ids=str)
def test_cross_net_in_training_is_the_loop(matching: dict[str, Any], axes: dict[str, Any]) -> None:
    net, leaves = scored(matching, axes, training=True)
    for name, ours, loop in beside_the_loop(net, leaves):
        assert relative(ours, loop) < AS_LOOP, name


@pytest.mark.parametrize(("matching", "axes"), CASES[-2:], ids=str)
def test_cross_net_in_evaluation_is_the_loop(matching: dict[str, Any], axes: dict[str, Any]) -> None:
    net, leaves = scored(matching, axes, training=False)
    with torch.no_grad():
        assert relative(net(*leaves).similarity, similarity_loop(net, *leaves)) < AS_LOOP


def plain(
    weights: Tensor, kept: Tensor, patches: Tensor, words: Tensor, padding: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`sdtps.alignment.best_matches` of the same mixtures."""
    b, t, a, _ = weights.shape
    everywhere = weights.new_zeros(b, t, a, patches.shape[1])
    everywhere = everywhere.scatter_add(3, kept.unsqueeze(2).expand_as(weights), weights)
    constant = patches.detach()
    mixtures = Mixtures(a, lambda part: part, [everywhere])
    return best_matches(mixtures, patches, lambda: constant @ constant.mT, words, padding)


def pairs(
    images: int, captions: int, tokens: int, kept: int, patches: int, words: int, width: int
) -> list[Tensor]:
    """weights, kept, patches, words, padding; the first caption is full, the last has one word."""
    torch.manual_seed(0)
    shares = torch.rand(images, captions, tokens, kept, requires_grad=True)
    chosen = torch.rand(images, captions, patches).argsort(-1)[..., :kept]
    lengths = torch.randint(1, words + 1, (captions,))
    lengths[0], lengths[-1] = words, 1
    directions = normalised(torch.randn(captions, words, width)).requires_grad_()
    padding = torch.arange(words) >= lengths[:, None]
    return [
        shares,
        chosen,
        torch.randn(images, patches, width, requires_grad=True),
        directions,
        padding,
    ]


def results(best: Any, given: list[Any]) -> list[Tensor]:
    """Best matches, the gradients of weights, patches and words; padding counts nowhere."""
    best_word, best_token = best(*given)
    weights, _, patches, words, padding = given
    counted = best_token if padding is None else best_token.masked_fill(padding, 0.0)
    total = (best_word * torch.linspace(-1, 2, best_word.numel()).view_as(best_word)).sum()
    total = total + (counted * torch.linspace(2, -1, counted.numel()).view_as(counted)).sum()
    return [best_word, counted, *torch.autograd.grad(total, [weights, patches, words])]


@pytest.mark.parametrize(
    ("sizes", "padded"),
    [
        ((2, 3, 4, 7, 9, 5, 8), True),
        ((1, 2, 17, 18, 20, 19, 18), True),
        ((3, 2, 1, 3, 5, 1, 3), False),
        ((2, 2, 5, 6, 6, 17, 16), False),
    ],
    ids=["small", "several blocks of each", "one token, one word", "all patches kept, no padding"],
)
def test_kernel_is_the_plain_form(sizes: tuple[int, ...], padded: bool) -> None:
    given: list[Any] = pairs(*sizes)
    if not padded:
        given[4] = None
    for a, b in zip(results(fused.best_matches, given), results(plain, given), strict=True):
        assert relative(a, b) < CLOSE


def test_mixtures_without_length_have_cosine_zero_and_finite_gradients() -> None:
    given = pairs(1, 2, 2, 3, 4, 5, 8)
    with torch.no_grad():
        given[0][0, 0, 1] = 0.0
    ours, other = results(fused.best_matches, given), results(plain, given)
    assert ours[0][0, 0, 1] == 0 and all(torch.isfinite(x).all() for x in ours)
    for a, b in zip(ours[:2], other[:2], strict=True):
        assert relative(a, b) < CLOSE


def test_the_first_of_equal_maxima_has_the_gradient() -> None:
    given = pairs(1, 1, 2, 3, 4, 3, 8)
    with torch.no_grad():
        given[3][0, 2] = given[3][0, 1] = given[3][0, 0]
    best_word, _ = fused.best_matches(*given[:4])
    (grad,) = torch.autograd.grad(best_word.sum(), given[3])
    assert grad[0, 0].any() and not grad[0, 1:].any()


def test_nan_is_not_passed_over() -> None:
    given = pairs(1, 2, 3, 3, 4, 5, 8)
    with torch.no_grad():
        given[0][0, 0, 1, 0] = torch.nan
    best_word, best_token = fused.best_matches(*given[:4])
    assert best_word[0, 0].isnan().tolist() == [False, True, False] and best_token[0, 0].isnan().all()
    assert not best_word[0, 1].isnan().any() and not best_token[0, 1].isnan().any()


def to_tf32(values: Any) -> Any:
    """Rounded to 10 bits of mantissa, as a tensor core reads its operands."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def test_tf32_is_within_its_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cosines to 1e-3, gradients to 1 % of their length. The interpreter ignores the precision."""
    from triton._C.libtriton import ir
    from triton.runtime import interpreter

    real, rounded = interpreter.InterpreterBuilder.create_dot, []

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        if precision == ir.INPUT_PRECISION.TF32:
            rounded.append(True)
            a.data, b.data = to_tf32(a.data), to_tf32(b.data)
        return real(self, a, b, d, precision, imprecise)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
    given = pairs(1, 2, 5, 12, 16, 6, 32)
    exact = results(fused.best_matches, given)
    assert not rounded
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        ours = results(fused.best_matches, given)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert rounded and relative(ours[0], exact[0]) > 1e-6
    for a, b in zip(ours[:2], exact[:2], strict=True):
        assert (a - b).abs().max() < 1e-3
    for a, b in zip(ours[2:], exact[2:], strict=True):
        assert (a - b).norm() < 1e-2 * b.norm()


def test_other_types_are_refused_by_name() -> None:
    given = pairs(1, 1, 2, 3, 4, 3, 8)
    with pytest.raises(fused.ConfigError, match=r"takes float32 tensors, not torch\.float64"):
        fused.best_matches(*(x.double() if x.is_floating_point() else x for x in given))
