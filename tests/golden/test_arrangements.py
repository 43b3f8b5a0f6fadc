"""DeMo2's later versions as axis values: what each commit computed, gradients included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sdtps.config import SdtpsConfig
from sdtps.models.convert import MULTIMODAL_SDTPS, PATCH_ATTENTION, TOKEN_SPARSE
from sdtps.multimodal import MODALITIES, MultiModal
from sdtps.selection import PatchAttention, TokenSelection
from tests.golden.test_modules import gumbel, load

if TYPE_CHECKING:
    from tests.golden.conftest import Golden

CASES = (
    "v0_*",
    "fixed_*",
    "v4_6e09693_*",
    "inplace_*",
    "soft_*",
    "select_*",
    "score_*",
    "remedy_a_*",
    "formula_equation2_*",
)
ONE_HEAD = {"relevance": "biased", "relevance_heads": 1}
WARM = {**ONE_HEAD, "cosine_temperature": 0.3}
# Commit -> its relevance of type `attention`, and everything else.
COMMITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "6e09693": ({"relevance": "attention_logits"}, {"score": "eq3"}),
    "21f61b8": ({}, {"score": "mean"}),
    "9a18c62": ({"relevance": "attention_cosine"}, {"score": "mean"}),
    "c2549be": ({"relevance": "gated_mlp"}, {"score": "mean"}),
    "019ece5": ({"relevance": "gated"}, {"score": "mean"}),
    "83bc831": ({"relevance": "gated_half"}, {"score": "mean"}),
    "bc12492": ({"relevance": "gated_projected"}, {"score": "weighted"}),
    "00f8b57": ({"relevance": "gated_shares"}, {"score": "weighted"}),
    "9a85faa": ({"relevance": "gated_shares"}, {"score": "weighted"}),
    "715926a": ({"relevance": "gated_shares"}, {"score": "weighted"}),
    "18323ed": ({"relevance": "gated_heads_mlp"}, {"score": "weighted"}),
    "ca287c1": ({"relevance": "attention_times_cosine"}, {"score": "weighted"}),
    "9fa81e3": ({"relevance": "biased_learned"}, {"score": "routed"}),
    "6306fc6": ({"relevance": "biased_learned"}, {"score": "routed", "normalise": "clamp_minmax"}),
    "1915c89": ({"relevance": "biased_learned"}, {"score": "routed", "normalise": "clamp_minmax"}),
    "a5b5c75": ({"relevance": "boosted"}, {"score": "routed", "normalise": "clamp_minmax"}),
    "c1f836a": ({"relevance": "cosine_gated"}, {"score": "routed", "normalise": "clamp_minmax"}),
    "e5e6243": ({"relevance": "biased"}, {"score": "routed"}),
    "5506017": ({"relevance": "biased"}, {"score": "routed"}),
    "413d1df": (ONE_HEAD, {"score": "routed"}),
    "f291f52": ({**ONE_HEAD, "relevance_share": "all"}, {"score": "mean"}),
    "05d17b7": ({**ONE_HEAD, "relevance_share": "modality"}, {"score": "mean"}),
    "66c66c5": (WARM, {"score": "mean", "normalise": "zscore_sigmoid"}),
    "d128cea": (WARM, {"score": "routed_deep", "normalise": "zscore_sigmoid"}),
}
IN_PLACE = {"aggregation": "in_place", "mask": "multiply", "extra_token": "none"}


def commit_of(golden: Golden) -> str:
    return str(golden.arrays["commit"])


def attention(golden: Golden) -> dict[str, Any]:
    """The learned relevance of the commit; heads as the case says where the commit reads them."""
    chosen = dict(COMMITS[commit_of(golden)][0])
    if chosen.get("relevance"):
        chosen.setdefault("relevance_heads", int(golden.number("heads", 4)))
    if golden.name.endswith("norm_renorm"):
        chosen["relevance"] = "gated_norm"
    return chosen


def decision(golden: Golden) -> dict[str, Any]:
    commit = commit_of(golden)
    if golden.name.startswith("soft") or "soft_" in golden.name:
        name = "sigmoid_quantile" if commit == "d128cea" else "sigmoid_mean"
        return {"decision": name, "mask_temperature": golden.number("soft_mask_tau", 0.3)}
    chosen = gumbel(golden)
    if commit in ("66c66c5", "d128cea") and chosen["decision"] == "gumbel_ste":
        chosen["decision"] = "gumbel_sigmoid_ste"
    return chosen


def arrangement(golden: Golden) -> SdtpsConfig:
    """The axes of a case that holds the whole module."""
    numbers = {"beta": golden.number("beta", 0.25), "keep_ratio": golden.number("sparse_ratio")}
    if golden.name.startswith("v0"):
        return SdtpsConfig(no_grad="none", aggregation="none", **numbers, **gumbel(golden))
    if golden.name.startswith("fixed"):
        fixed = {"aggregation": "none", "mask": "multiply", "extra_token": "uniform_in_training"}
        return SdtpsConfig(**numbers, **fixed, **gumbel(golden))
    learned = {} if "cosine" in golden.name else attention(golden)
    common = {**COMMITS[commit_of(golden)][1], **learned, **numbers, "no_grad": "none"}
    if golden.name.startswith("v4"):
        ratio = golden.number("aggr_ratio")
        return SdtpsConfig(mask="importance", aggregation="single", aggregation_ratio=ratio, **common)
    return SdtpsConfig(**common, **IN_PLACE, **decision(golden))


class Drawn(nn.Module):
    """Dropout's factors as they were drawn."""

    def __init__(self, factors: Tensor) -> None:
        super().__init__()
        self.factors = factors

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors


def whole_module(golden: Golden) -> None:
    patches = {m: golden.input(f"{m}_patches") for m in MODALITIES}
    module = MultiModal(arrangement(golden), patches["rgb"].shape[-1], patches["rgb"].shape[-2])
    # Shared networks stand under their own names too.
    golden.arrays = {k: v for k, v in golden.arrays.items() if "shared_" not in k}
    names = load(module, golden, MULTIMODAL_SDTPS)
    module.train(bool(golden.number("training")))
    for m in MODALITIES:
        if f"{m}_dropout" in golden:
            module.modalities[m].selection.router[3] = Drawn(golden.constant(f"{m}_dropout"))
    uniform = None
    if "rgb_uniform" in golden:
        uniform = {m: golden.constant(f"{m}_uniform") for m in MODALITIES}
    output = module(patches, {m: golden.input(f"{m}_global") for m in MODALITIES}, uniform)
    golden.finish(golden.check_modalities(output), module, names)


def select(golden: Golden) -> None:
    """TokenSparse alone; the golden set also has flags that the whole module never passes on."""
    score = "mean"
    if "param.modal_weights" in golden:
        score = "weighted"
    elif "global_feats" in golden:
        score = "routed_deep"
    config = SdtpsConfig(
        score=score,
        normalise=COMMITS[commit_of(golden)][1].get("normalise", "minmax"),
        keep_ratio=golden.number("sparse_ratio"),
        **IN_PLACE,
        **decision(golden),
    )
    tokens = golden.input("tokens")
    module = TokenSelection(config, tokens.shape[-1], attends=False)
    names = load(module, golden, TOKEN_SPARSE)
    module.train(bool(golden.number("training")))
    if "dropout" in golden:
        module.router[3] = Drawn(golden.constant("dropout"))
    selection = module(
        tokens,
        golden.input("attention_self"),
        [golden.input("attention_m2"), golden.input("attention_m3")],
        golden.constant("uniform") if "uniform" in golden else None,
        golden.input("global_feats") if "global_feats" in golden else None,
    )
    golden.check("masked", selection.tokens)
    golden.check("mask", selection.decision)
    loss = (selection.tokens * golden.constant("cotangent_masked")).sum()
    if "cotangent_mask" in golden:
        loss = loss + (selection.decision * golden.constant("cotangent_mask")).sum()
    golden.finish(loss, module, names)


def relevance(golden: Golden) -> None:
    patches, guide = golden.input("patches"), golden.input("guide")
    config = SdtpsConfig(no_grad="none", **attention(golden))
    module = PatchAttention(config.axes.relevance, config, patches.shape[-1])
    names = load(module, golden, PATCH_ATTENTION)
    cosine = golden.input("cosine") if "cosine" in golden else torch.zeros(patches.shape[:-1])
    score = module(patches, guide.unsqueeze(1), cosine.unsqueeze(1)).squeeze(1)
    golden.check("score", score)
    golden.finish((score * golden.constant("cotangent")).sum(), module, names)


def remedy_a(golden: Golden) -> None:
    config = SdtpsConfig(
        decision="gumbel_mean", temperature=golden.number("tau"), extra_token="none", aggregation="none"
    )
    tokens = golden.input("tokens")
    module = TokenSelection(config, tokens.shape[-1], attends=False)
    selection = module.select(tokens, golden.input("score"), golden.constant("uniform"))
    golden.check("weights", selection.decision)
    output = selection.tokens.squeeze(1)
    golden.check("output", output)
    golden.finish((output * golden.constant("cotangent")).sum())


def equation_2(golden: Golden) -> None:
    tokens, guide = golden.input("tokens"), golden.input("guide")
    norm = golden.name.rpartition("_")[2]
    config = SdtpsConfig(relevance="dot", normalise=norm, no_grad="none")
    module = TokenSelection(config, tokens.shape[-1])
    score = config.axes.normalise.apply(module.attentions(tokens, guide, [])[0])
    golden.check("score", score)
    golden.finish((score * golden.constant("cotangent")).sum())


CHECKS = {"select": select, "score": relevance, "remedy": remedy_a, "formula": equation_2}


def test_equals_the_published_version(golden: Golden) -> None:
    CHECKS.get(golden.name.partition("_")[0], whole_module)(golden)
