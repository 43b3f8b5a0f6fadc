"""Every value of every axis works in both tasks and in the reference loop, gradients included.

The values are read from the table: a new entry is tested by being there.
"""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from sdtps.config import SdtpsConfig
from sdtps.config.axes import (
    AGGREGATIONS,
    ALIGNMENTS,
    DECISIONS,
    EXTRA_TOKENS,
    FORMS,
    MASKS,
    RATIOS,
    VALUES,
    Axes,
    find,
    subtracting,
)
from sdtps.multimodal import MODALITIES, MultiModal
from tests.sdtps.test_crossnet import assert_is_the_loop, build

IMAGES, PATCHES, WIDTH = 3, 12, 8
# Decisions whose D carries a gradient, one for each way that it enters the aggregation: hard, soft, and
# each kind of mixture. Of what else the formula of D is, mask and aggregation know nothing.
LIVE = list({(d.mix, d.soft): d for d in reversed(DECISIONS) if d.carries_gradient}.values())
# What the value of an axis is tried with: settings that make a difference visible.
SEEN = {"no_grad": "none", "temperature": 0.5, "aggregation_ratio": 0.6, "relevance_heads": 2}


def combinations(*, alone: bool = False) -> list[dict[str, str]]:
    """Each value of each axis; each of `LIVE` with all that D enters."""
    single = [with_needs({axis: value.name}) for axis in Axes._fields for value in VALUES[axis]]
    if alone:
        return single
    masked = [
        {"decision": d.name, "mask": m.name, "aggregation": a.name}
        for d, m, a in product(LIVE, (*MASKS, subtracting(10)), AGGREGATIONS)
    ]
    extra = [
        {"decision": d.name, "extra_token": e.name, "mask": m.name}
        for d, e, m in product(LIVE, EXTRA_TOKENS, MASKS)
        if m.scales_tokens
    ]
    return [c for c in (*single, *masked, *extra) if config(c) is not None]


def with_needs(chosen: dict[str, str]) -> dict[str, str]:
    """The values, and of other axes what they need."""
    for axis, name in list(chosen.items()):
        for other, fitting in find(axis, name).needs.items():
            if getattr(SdtpsConfig(), other) not in fitting and other not in chosen:
                chosen = with_needs({**chosen, other: fitting[0]})
    return chosen


def in_retrieval(chosen: dict[str, str]) -> bool:
    return all("retrieval" in find(axis, name).tasks for axis, name in chosen.items())


def config(chosen: dict[str, str]) -> SdtpsConfig | None:
    """None where the values exclude each other (a mask without aggregation, say)."""
    try:
        return SdtpsConfig(**{**SEEN, **chosen})
    except ValidationError:
        return None


def modes(chosen: dict[str, str]) -> tuple[bool, ...]:
    """Training; also evaluation, where that differs.

    Nothing before the decision knows of it. There a mixture is the hard decision: each by itself shows
    that, and masks and aggregations are tried with the one that is hard in training, too.
    """
    late = chosen.keys() & {"decision", "mask", "aggregation", "extra_token"}
    mixes = find("decision", chosen.get("decision", "topk")).mix is not None
    return (True, False) if late and not (mixes and len(late) > 1) else (True,)


def test_each_value_of_each_axis_is_in_a_combination() -> None:
    """A value that excludes all that it is combined with would pass the other tests by absence."""
    tried = [made.axes for c in combinations() if (made := config(c)) is not None]
    for axis in Axes._fields:
        missing = {v.name for v in VALUES[axis]} - {getattr(axes, axis).name for axes in tried}
        assert not missing, f"{axis}: no combination tries {missing}"


@pytest.mark.parametrize("chosen", combinations(), ids=lambda c: "-".join(c.values()))
def test_three_modalities(chosen: dict[str, str]) -> None:
    for training in modes(chosen):
        check_three_modalities(chosen, training)


def check_three_modalities(chosen: dict[str, str], training: bool) -> None:
    sdtps = config(chosen)
    assert sdtps is not None
    torch.manual_seed(0)
    module = MultiModal(sdtps, WIDTH, PATCHES).double().train(training)
    made = {"dtype": torch.float64, "requires_grad": True}
    patches = {m: torch.randn(IMAGES, PATCHES, WIDTH, **made) for m in MODALITIES}
    globals_ = {m: torch.randn(IMAGES, WIDTH, **made) for m in MODALITIES}
    output = module(patches, globals_)
    kept = 6
    for modality in MODALITIES:
        decision = output["masks"][modality]
        assert decision.shape == (IMAGES, PATCHES)
        axis = sdtps.axes.decision
        assert (decision > 0.5).sum() == IMAGES * kept or axis.mix is not None or axis.soft
        assert torch.isfinite(output["tokens"][modality]).all()
    acts = sdtps.axes.decision.acts(sdtps, training)
    if sdtps.axes.no_grad.selection:  # no path leads back to the patches
        return
    if acts:  # D passes a gradient on to the scores
        decision = output["masks"]["rgb"]
        weights = torch.linspace(-1, 1, PATCHES, dtype=torch.float64)
        (to_patches,) = torch.autograd.grad(
            (decision * weights).sum(), [patches["rgb"]], retain_graph=True
        )
        assert to_patches.abs().sum() > 0
    leaves = [*patches.values(), *module.parameters()]
    found = torch.autograd.grad(output["feature"].square().sum(), leaves, allow_unused=True)
    assert all(g is not None and torch.isfinite(g).all() for g in found[:3])
    assert all(g is None or torch.isfinite(g).all() for g in found)


MATCHING: list[dict[str, Any]] = [
    {"form": form.name, **({} if form.dense else {"dense_text": "none", "eval_dense_text": "none"})}
    for form in FORMS
]
# `laps` is one half of `released`; how it pools is tried below. Values together meet forms by turns.
ALONE = [*filter(in_retrieval, combinations(alone=True))]
TOGETHER = [c for c in combinations() if in_retrieval(c) and c not in ALONE]
HALVES = [form for form in MATCHING if "dense_text" not in form]


@pytest.mark.parametrize(
    ("chosen", "form"),
    [*product(ALONE, HALVES), *zip(TOGETHER, cycle(HALVES), strict=False)],
    ids=lambda c: "-".join(map(str, c.values())),
)
def test_the_cross_net_is_the_reference_loop(chosen: dict[str, str], form: dict[str, Any]) -> None:
    for training in modes(chosen):
        assert_is_the_loop(build({**SEEN, **chosen}, {"chunk": 6, **form}).train(training))


@pytest.mark.parametrize("alignment", ALIGNMENTS, ids=lambda a: a.name)
@pytest.mark.parametrize("form", MATCHING, ids=lambda f: f["form"])
def test_every_form_pools_as_the_reference_loop(alignment: Any, form: dict[str, Any]) -> None:
    assert_is_the_loop(build(SEEN, {"chunk": 6, **form, "alignment": alignment.name}))


def test_names_are_unique_and_settings_exist() -> None:
    for axis in Axes._fields:
        assert len({value.name for value in VALUES[axis]}) == len(VALUES[axis])
        assert {s for v in VALUES[axis] for s in v.settings} <= set(SdtpsConfig.model_fields)


@pytest.mark.parametrize("ratio", [ratio for ratio in RATIOS if ratio.loss], ids=lambda r: r.name)
def test_every_ratio_loss_has_a_finite_gradient(ratio: Any) -> None:
    decision = torch.rand(2, 3, 4, requires_grad=True)
    for dense in (None, decision.flip(0)):
        loss = ratio.loss(decision, dense, 0.5, 1.0, 1.0)
        assert torch.isfinite(torch.autograd.grad(loss, decision)[0]).all()


def test_what_the_audit_compares_with_is_a_configuration() -> None:
    for value in (*DECISIONS, *MASKS):
        for changes in getattr(value, "counterfactuals", {}).values():
            SdtpsConfig(**{"aggregation": "single", **changes})
