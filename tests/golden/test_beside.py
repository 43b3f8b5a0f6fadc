"""The modules beside SDTPS equal DeMo2's, gradients included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sdtps.models.convert import Layout, same
from sdtps.models.demo2 import Dgaf, Frca, Lif, MultiModalSacr, Sacr, lif_losses
from sdtps.multimodal import MODALITIES
from tests.golden.test_modules import load

if TYPE_CHECKING:
    from tests.golden.conftest import Golden

CASES = ("sacr_*", "multimodal_sacr_*", "lif_*", "frca*", "dgaf_v1_*", "dgaf_v3")
DILATIONS = (2, 3, 4)
NAMES = Layout(
    "beside",
    "DeMo2's modules",
    same(
        ("conv1x1.{rest}", "point.{rest}"),
        ("atrous_convs.{rest}", "dilated.{rest}"),
        ("fusion.{rest}", "fusion.{rest}"),
        ("channel_attn.weight", "gate.weight"),
        ("modal_embed", "embedding"),
        ("cross_modal_conv.{rest}", "cross.{rest}"),
        ("cross_modal_attn.{rest}", "attention.{rest}"),
        ("cross_modal_norm.{rest}", "norm.{rest}"),
        ("clc3.net.{rest}", "features.{rest}"),
        ("clc1_amp.{rest}", "amplitude.{rest}"),
        ("clc1_pha.{rest}", "phase.{rest}"),
        ("dnru.dwconv.{rest}", "depthwise.{rest}"),
        ("dnru.gn.{rest}", "norm.{rest}"),
        ("{modality}_predictor.net.{n}.conv.{rest}", "{modality}.{n}.0.{rest}"),
        ("{modality}_predictor.net.{n}.bn.{rest}", "{modality}.{n}.1.{rest}"),
        ("{modality}_predictor.net.{n}.{kind}", "{modality}.{n}.{kind}"),
        ("_alpha", "alpha"),
        ("entropy_proj.{rest}", "entropy.{rest}"),
        ("gate_net.{rest}", "gates.{rest}"),
        ("modal_enhance.{rest}", "output.{rest}"),
        ("{modality}_query", "queries.{modality}"),
        ("attn_pool.{rest}", "pool.{rest}"),
        ("attn_norm.{rest}", "norm.{rest}"),
    ),
)


def finish(golden: Golden, outputs: list[Tensor], module: nn.Module | None, names: Any) -> None:
    for number, output in enumerate(outputs):
        golden.check(f"output{number}", output)
    total = sum((o * golden.constant(f"cotangent{i}")).sum() for i, o in enumerate(outputs))
    golden.finish(total, module, names)


def modal(golden: Golden) -> dict[str, Tensor]:
    return {m: golden.input(m) for m in MODALITIES}


def test_equals_the_published_module(golden: Golden) -> None:
    module: Any
    name = golden.name
    if name == "lif_loss":
        images = modal(golden)
        losses = lif_losses({m: golden.input(f"q_{m}") for m in MODALITIES}, images)
        finish(golden, [losses.sum(), *losses], None, None)
        return
    if name.startswith("sacr"):
        tokens, height = golden.input("tokens"), int(golden.number("height"))
        module = Sacr(tokens.shape[-1], DILATIONS)
        call = lambda: [module(dict.fromkeys(MODALITIES, tokens), height)["rgb"]]  # noqa: E731
    elif name.startswith("multimodal_sacr"):
        width, height = golden.input("rgb").shape[-1], int(golden.number("height"))
        module = MultiModalSacr(width, DILATIONS, attention="_v2_" in name)
        call = lambda: list(module(modal(golden), height).values())  # noqa: E731
    elif name.startswith("lif"):
        module = Lif(0.4)
        call = lambda: list(module.qualities(modal(golden)).values())  # noqa: E731
    elif name.startswith("frca"):
        module = Frca(golden.input("features").shape[1])
        call = lambda: [module(golden.input("features"))]  # noqa: E731
    else:
        heads = int(golden.number("heads")) if "heads" in golden else None
        module = Dgaf(golden.input("rgb").shape[-1], golden.number("tau"), 0.5, heads)
        call = lambda: [torch.cat(list(module(modal(golden)).values()), dim=-1)]  # noqa: E731
    names = load(module, golden, NAMES)
    module.train(bool(golden.number("training")))
    finish(golden, call(), module, names)
