"""The batched cross-net is the loop: on every axis, in chunks, with gradients, also at the edges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.crossnet import similarity_loop
from sdtps import alignment as alignments
from sdtps import crossnet
from sdtps.config import SdtpsConfig
from sdtps.config.retrieval import MatchingConfig
from sdtps.crossnet import CrossNet

IMAGES, CAPTIONS, PATCHES, WIDTH = 3, 4, 12, 8
LAPS = {"form": "laps", "dense_text": "none", "eval_dense_text": "none"}


def build(sdtps: dict[str, Any], matching: dict[str, Any], class_token: bool = True) -> CrossNet:
    torch.manual_seed(0)
    return CrossNet(
        SdtpsConfig(**{"aggregation_ratio": 0.6, **sdtps}),
        MatchingConfig(**{"top_k": 3, **matching}),
        width=WIDTH,
        patches=PATCHES,
        class_token=class_token,
    ).double()


def inputs(net: CrossNet) -> list[Tensor]:
    torch.manual_seed(1)
    shapes = [(IMAGES, PATCHES + net.class_token, WIDTH), (CAPTIONS, 6, WIDTH), (CAPTIONS, 9, WIDTH)]
    images, words, dense = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    lengths, dense_lengths = torch.tensor([6, 1, 3, 2]), torch.tensor([1, 9, 4, 9])
    if net.matching.dense_text == "none":
        return [images, words, lengths]
    return [images, words, lengths, dense, dense_lengths]


def outcome(net: CrossNet, similarity: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    """The similarity and its gradients: of the inputs, of each parameter."""
    cotangent = torch.linspace(-1, 2, similarity.numel(), dtype=similarity.dtype).view_as(similarity)
    wanted = [leaf for leaf in leaves if leaf.requires_grad] + list(net.parameters())
    grads = torch.autograd.grad((similarity * cotangent).sum(), wanted, allow_unused=True)
    return [similarity, *grads]


def beside_the_loop(net: CrossNet, leaves: list[Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The similarity and each gradient of the cross-net and of the loop."""
    torch.manual_seed(2)
    ours = outcome(net, net(*leaves).similarity, leaves)
    torch.manual_seed(2)
    loop = outcome(net, similarity_loop(net, *leaves), leaves)
    for position, (a, b) in enumerate(zip(ours, loop, strict=True)):
        if a is None or b is None:
            assert a is b or not (b if a is None else a).any(), f"gradient {position} is None in one"
        else:
            yield f"tensor {position}", a, b


def assert_is_the_loop(net: CrossNet) -> None:
    for _, a, b in beside_the_loop(net, inputs(net)):
        scale = max(b.abs().max().item(), 1e-3)
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * scale)


FORMS = [
    LAPS,
    {"form": "released", "alignment": "mean"},
    {"form": "released", "dense_text": "none"},
    {"form": "paper"},
    {"form": "paper", "dense_text": "none"},
    {"form": "paper", "sparse_guide": False},
]
AXES: list[dict[str, Any]] = [  # beside each value of each axis (test_axes)
    {},
    {"enabled": False},
    {"keep_ratio": 1.0},
    {"aggregation": "none", "extra_token": "none"},
    {"decision": "gumbel_ste", "mask": "subtract_10", "temperature": 2.0, "noise_clamp": 1.0},
    {"decision": "gumbel_ste", "mask": "log", "noise_in_eval": True},
    {"decision": "soft", "aggregation": "single", "mask": "log", "no_grad": "selection"},
]


@pytest.mark.parametrize(
    ("axes", "training"),  # a hard decision is in evaluation what it is in training
    [*((axes, True) for axes in AXES), *((axes, False) for axes in AXES if "decision" in axes)],
    ids=str,
)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_batched_form_is_the_loop(form: dict[str, Any], axes: dict[str, Any], training: bool) -> None:
    assert_is_the_loop(build(axes, {"chunk": 6, **form}).train(training))


@pytest.mark.parametrize("words_first", [True, False])
@pytest.mark.parametrize("alignment", ["mean", "mean_topk", "topk"])
@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("together", [2**20, 1])
def test_both_orders_of_the_product_are_the_loop(
    words_first: bool, alignment: str, class_token: bool, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignments, "_words_first", lambda *_: words_first)
    monkeypatch.setattr(alignments, "FLOATS_ON_CPU", together)
    assert_is_the_loop(build({"no_grad": "none"}, {"alignment": alignment}, class_token))


def test_equal_maxima_share_the_gradient() -> None:
    values = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], requires_grad=True)
    best, grad = values.amax(1), torch.tensor([2.0, 6.0])
    expected = torch.autograd.grad(best, values, grad)[0]
    assert torch.equal(alignments._shared(grad, best, values, 1), expected)


def test_captions_of_one_chunk_come_back_in_order() -> None:
    """They are sorted by length, and here all lie in one chunk."""
    net = build({"aggregation": "single"}, {"form": "released"})
    leaves = inputs(net)
    leaves[2], leaves[4] = torch.tensor([6, 4, 5, 4]), torch.tensor([8, 9, 7, 9])
    for name, ours, loop in beside_the_loop(net, leaves):
        torch.testing.assert_close(ours, loop, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("chunk", [6, None])
def test_lengths_need_not_be_read(chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, which would have to be waited for: chunks in order, each as wide as the text."""
    monkeypatch.setattr(crossnet.Text, "_alike", crossnet.Text._in_order)
    assert_is_the_loop(build({}, {"form": "released", "chunk": chunk}))


@pytest.mark.parametrize("aggregation", ["single", "dual"])
def test_captions_that_share_a_dense_text_are_scored_with_it_once(aggregation: str) -> None:
    net = build({"aggregation": aggregation}, {"form": "released"}).eval()
    images, words, lengths, dense, dense_lengths = inputs(net)
    texts, text_lengths, rows = dense[:2], dense_lengths[:2], torch.tensor([0, 0, 1, 1])
    loop = similarity_loop(net, images, words, lengths, texts[rows], text_lengths[rows])
    for graded in (True, False):
        with torch.set_grad_enabled(graded):
            alone, shared = net.apart(images, words, lengths, texts, text_lengths)
        torch.testing.assert_close(alone + shared[:, rows], loop, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("aggregation", ["single", "dual"])
def test_logits_far_apart_do_not_underflow(aggregation: str) -> None:
    """Kept patches may all be e^-200 of the one that a caption drops."""
    net = build({"aggregation": aggregation}, {}).float()
    with torch.no_grad():
        net.aggregation.scale.fill_(2000.0)
    leaves = [x.detach().float() if x.is_floating_point() else x for x in inputs(net)]
    ours, loop = net(*leaves).similarity, similarity_loop(net, *leaves)
    torch.testing.assert_close(ours, loop, rtol=1e-4, atol=1e-4)


def test_chunks_do_not_change_the_noise_or_the_result() -> None:
    results = []
    for chunk in (1, 4, 10**6):
        axes = {"decision": "gumbel_ste", "mask": "log", "no_grad": "none"}
        net = build(axes, {"chunk": chunk})
        leaves = inputs(net)
        torch.manual_seed(3)
        results.append(outcome(net, net(*leaves).similarity, leaves))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("chunk", [1, None])
def test_evaluation_goes_through_images_in_groups(form: dict[str, Any], chunk: int | None) -> None:
    net = build({}, {**form, "chunk": chunk}).eval()
    leaves = inputs(net)
    whole = net(*leaves)
    with torch.no_grad():  # two of the three images at once
        grouped = net(*leaves)
    torch.testing.assert_close(grouped.similarity, whole.similarity, rtol=1e-12, atol=1e-12)
    assert torch.equal(grouped.sparse_decision, whole.sparse_decision)
    assert (grouped.dense_decision is None) == (whole.dense_decision is None)


def test_pairs_scored_at_once_follow_from_the_memory_they_take() -> None:
    few = crossnet.pairs_in(256 * 2**20, patches=196, tokens=41, width=512, words=96)
    many = crossnet.pairs_in(256 * 2**20, patches=49, tokens=24, width=512, words=96)
    assert 1000 < few < 2000 < 5000 < many
    assert crossnet.pairs_in(1, patches=196, tokens=41, width=512, words=96) == 1


def test_no_text_guides_the_selection_where_the_only_guide_is_left_out() -> None:
    """Trained with dense text as the only guide, evaluated without it."""
    net = build({}, {"sparse_guide": False}).eval()
    leaves = inputs(net)[:3]
    torch.testing.assert_close(net(*leaves).similarity, similarity_loop(net, *leaves))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_are_scored_in_float32(dtype: torch.dtype) -> None:
    net = build({"decision": "gumbel_ste", "mask": "subtract_1e10"}, {}).float()
    leaves = [x.detach().to(dtype) if x.is_floating_point() else x for x in inputs(net)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = net(*leaves).similarity
    assert ours.dtype == torch.float32
    loop = similarity_loop(net, *(x.float() if x.is_floating_point() else x for x in leaves))
    torch.testing.assert_close(ours, loop, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("decision", ["topk", "gumbel_ste", "soft"])
@pytest.mark.parametrize("form", ["laps", "released", "paper"])
def test_a_training_step_on_a_gpu_never_waits_for_the_device(
    monkeypatch: pytest.MonkeyPatch, form: str, decision: str
) -> None:
    """Traced with tensors that have a device and a shape but no values: reading one fails."""
    monkeypatch.setattr(torch, "autocast", lambda **_: nullcontext())  # knows no such device
    dense = "none" if form == "laps" else "own"
    sdtps = SdtpsConfig(
        decision=decision, mask="log", aggregation="dual" if form == "paper" else "single"
    )
    matching = MatchingConfig(form=form, dense_text=dense, eval_dense_text=dense)
    net = CrossNet(sdtps, matching, width=16, patches=12, class_token=True).to("meta")
    inputs = [
        torch.empty(4, 13, 16, device="meta", requires_grad=True),
        torch.empty(4, 6, 16, device="meta"),
        torch.empty(4, dtype=torch.long, device="meta"),
    ]
    if dense == "own":
        inputs += [torch.empty(4, 9, 16, device="meta"), inputs[2]]
    matches = net(*inputs)
    matches.similarity.square().sum().backward()
    assert matches.similarity.shape == (4, 4) and inputs[0].grad is not None
