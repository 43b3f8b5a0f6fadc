"""Selection, aggregation and the three-modality module equal the published ones, gradients included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from sdtps.aggregation import TokenAggregation
from sdtps.config import SdtpsConfig
from sdtps.models.convert import (
    FUSION,
    MULTIMODAL_SDTPS,
    TOKEN_AGGREGATION,
    TOKEN_SPARSE,
    Layout,
)
from sdtps.models.reid import SETS, Fusion
from sdtps.multimodal import MODALITIES, MultiModal
from sdtps.selection import TokenSelection

if TYPE_CHECKING:
    from tests.golden.conftest import Golden

CASES = (
    "token_sparse_*",
    "token_aggregation_*",
    "dual_token_aggregation*",
    "multimodal_sdtps_*",
    "demo_fusion_eval*",
)


def gumbel(golden: Golden) -> dict[str, Any]:
    """The decision axis as the case's numbers say: tau 0 is Gumbel off, clamp 0 is none."""
    tau = golden.number("tau", 0.0)
    if tau == 0:
        return {"decision": "topk"}
    clamp = golden.number("noise_clamp", 0.0)
    return {"decision": "gumbel_ste", "temperature": tau, "noise_clamp": clamp or None}


def load(module: nn.Module, golden: Golden, layout: Layout) -> dict[str, str]:
    """Put the published parameters in; strict, so a missing or unexpected one fails."""
    module.double()
    published = golden.parameters()
    module.load_state_dict(layout.renamed(published, "ours"))
    return {name: layout.place(name, "ours")[2][0] for name in published}


def token_sparse(golden: Golden) -> None:
    paper = "paper" in golden.name
    config = SdtpsConfig(
        score="eq3" if paper else "attention_sum",
        normalise="minmax" if paper else "none",
        beta=golden.number("beta", 0.25),
        keep_ratio=golden.number("sparse_ratio"),
        no_grad="none",
        noise_in_eval=paper,
        **gumbel(golden),
    )
    guides = ("attention_sparse", "attention_dense") if paper else ("attention_cross",)
    module = TokenSelection(config, golden.input("tokens").shape[-1])
    names = load(module, golden, TOKEN_SPARSE)
    uniform = golden.constant("uniform") if "uniform" in golden else None
    selection = module(
        golden.input("tokens"),
        golden.input("attention_self"),
        [golden.input(g) for g in guides],
        uniform,
    )
    assert selection.extra is not None
    golden.check("selected", selection.tokens)
    golden.check("extra", selection.extra)
    golden.check("mask", selection.decision)
    loss = (selection.tokens * golden.constant("cotangent_selected")).sum()
    loss = loss + (selection.extra * golden.constant("cotangent_extra")).sum()
    if "cotangent_mask" in golden:
        loss = loss + (selection.decision * golden.constant("cotangent_mask")).sum()
    golden.finish(loss, module, names)


def token_aggregation(golden: Golden) -> None:
    masked = golden.constant("mask").numel() > 0
    config = SdtpsConfig(aggregation="single", mask="subtract_1e10" if masked else "none")
    tokens, cotangent = golden.input("tokens"), golden.constant("cotangent")
    module = TokenAggregation(config, tokens.shape[-1], cotangent.shape[-2])
    names = load(module, golden, TOKEN_AGGREGATION)
    output = module.merge(tokens, golden.input("mask") if masked else None)
    golden.check("output", output)
    golden.finish((output * cotangent).sum(), module, names)


def dual_token_aggregation(golden: Golden) -> None:
    sparse, dense = golden.input("tokens_sparse"), golden.input("tokens_dense")
    cotangent = golden.constant("cotangent")
    module = TokenAggregation(SdtpsConfig(), sparse.shape[-1], cotangent.shape[-2])
    names = load(module, golden, TOKEN_AGGREGATION)
    output = module.merge(sparse) + module.merge(dense, network=1)
    golden.check("output", output)
    golden.finish((output * cotangent).sum(), module, names)


def multimodal_sdtps(golden: Golden) -> None:
    config = SdtpsConfig(
        score="eq3",
        beta=golden.number("beta"),
        no_grad="attention" if "nograd" in golden.name else "none",
        mask="subtract_1e10",
        aggregation="single",
        keep_ratio=golden.number("sparse_ratio"),
        aggregation_ratio=golden.number("aggr_ratio"),
        **gumbel(golden),
    )
    patches = {m: golden.input(f"{m}_patches") for m in MODALITIES}
    module = MultiModal(config, patches["rgb"].shape[-1], patches["rgb"].shape[-2])
    names = load(module, golden, MULTIMODAL_SDTPS)
    output = module(
        patches,
        {m: golden.input(f"{m}_global") for m in MODALITIES},
        {m: golden.constant(f"{m}_uniform") for m in MODALITIES},
    )
    golden.finish(golden.check_modalities(output), module, names)


def demo_fusion(golden: Golden) -> None:
    patches = {m: golden.input(f"{m}_patches") for m in MODALITIES}
    globals_ = {m: golden.input(f"{m}_global") for m in MODALITIES}
    module = Fusion("hdm_atmoe", patches["rgb"].shape[-1], int(golden.number("heads")))
    names = load(module, golden, FUSION)
    module.eval()
    for members, vector in zip(SETS, module.hdm(patches, globals_).unbind(1), strict=True):
        full = "_".join(m for m in MODALITIES if m[0] in members)
        golden.check(f"decoupled_{full}", vector)
    output = module(patches, globals_)
    golden.check("output", output)
    golden.finish((output * golden.constant("cotangent")).sum(), module, names)


def test_equals_the_published_module(golden: Golden) -> None:
    for prefix, check in (
        ("dual_token_aggregation", dual_token_aggregation),
        ("token_aggregation", token_aggregation),
        ("token_sparse", token_sparse),
        ("multimodal_sdtps", multimodal_sdtps),
        ("demo_fusion", demo_fusion),
    ):
        if golden.name.startswith(prefix):
            check(golden)
            return
    raise AssertionError(f"{golden.name}: no module for this case")
