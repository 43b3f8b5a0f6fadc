"""Three modalities: shapes, parameter counts, and which arrangement lets which gradient pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sdtps.config import SdtpsConfig
from sdtps.multimodal import MODALITIES, MultiModal, MultiModalOutput, other_modalities

V1 = {"aggregation": "single", "mask": "subtract_1e10", "no_grad": "attention"}
V2 = {**V1, "no_grad": "none"}
GUMBEL = {**V2, "decision": "gumbel_ste"}
ARRANGEMENTS: dict[str, dict[str, Any]] = {
    "v0": {"aggregation": "none", "no_grad": "none"},
    "v1": V1,
    "v2": V2,
    "v2_gumbel": GUMBEL,
    "v3": {**GUMBEL, "temperature": 5.0, "noise_clamp": 5.0},
    "v4": {**V2, "mask": "importance"},
    "fixed": {
        "aggregation": "none",
        "decision": "gumbel_ste",
        "mask": "multiply",
        "extra_token": "uniform",
    },
    "log": {**GUMBEL, "mask": "log"},
    "released": {
        "score": "attention_sum",
        "normalise": "none",
        "no_grad": "selection",
        "aggregation": "single",
    },
    "released_dual": {
        "score": "attention_sum",
        "normalise": "none",
        "no_grad": "selection",
        "aggregation": "dual",
    },
    "paper": {},
    "paper_log": {"decision": "gumbel_ste", "mask": "log"},
    "soft": {"decision": "soft", "temperature": 0.1, "no_grad": "none"},
}


def run(
    config: SdtpsConfig, *, batch: int = 3, patches: int = 16, width: int = 20, training: bool = True
) -> tuple[MultiModal, MultiModalOutput, dict[str, Tensor], dict[str, Tensor]]:
    torch.manual_seed(0)
    module = MultiModal(config, width, patches).train(training)
    tokens = {m: torch.randn(batch, patches, width, requires_grad=True) for m in MODALITIES}
    globals_ = {m: torch.randn(batch, width, requires_grad=True) for m in MODALITIES}
    return module, module(tokens, globals_), tokens, globals_


def count(config: SdtpsConfig, patches: int = 128) -> int:
    return sum(p.numel() for p in MultiModal(config, 512, patches).parameters())


def test_parameter_counts_are_the_published_ones() -> None:
    assert count(SdtpsConfig(**V1)) == 365_157  # 0.37 M
    assert count(SdtpsConfig(aggregation="none")) == 3 * 65_793
    assert count(SdtpsConfig(score="attention_sum", aggregation="none")) == 0


def test_guides_follow_the_order_rgb_nir_tir() -> None:
    assert [other_modalities(m) for m in MODALITIES] == [
        ("nir", "tir"),
        ("rgb", "tir"),
        ("rgb", "nir"),
    ]


@pytest.mark.parametrize("name", ARRANGEMENTS)
@pytest.mark.parametrize("batch", [1, 3])
def test_shapes_of_every_arrangement(name: str, batch: int) -> None:
    config = SdtpsConfig(**ARRANGEMENTS[name])
    _, output, *_ = run(config, batch=batch)
    outputs = (8 if config.aggregation == "none" else 3) + (config.extra_token != "none")
    for modality in MODALITIES:
        assert output["tokens"][modality].shape == (batch, outputs, 20)
        assert output["masks"][modality].shape == (batch, 16)
    assert output["feature"].shape == (batch, 60)
    assert torch.isfinite(output["feature"]).all()
    assert torch.equal(output["feature"][:, :20], output["tokens"]["rgb"].mean(1))


@pytest.mark.parametrize("name", ["v2_gumbel", "v3", "log", "paper_log"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forward_is_bit_identical_with_gumbel_on_and_off(name: str, dtype: torch.dtype) -> None:
    noisy = SdtpsConfig(**ARRANGEMENTS[name])
    plain = noisy.model_copy(update={"decision": "topk"})
    torch.set_default_dtype(dtype)
    try:
        outputs = [run(config)[1]["feature"] for config in (noisy, plain)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(*outputs)


@pytest.mark.parametrize("name", ARRANGEMENTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_every_arrangement_finite_and_close(name: str, dtype: torch.dtype) -> None:
    config = SdtpsConfig(**ARRANGEMENTS[name])
    expected = run(config)[1]["feature"]
    with torch.autocast("cpu", dtype=dtype):
        feature = run(config)[1]["feature"]
    assert torch.isfinite(feature).all()
    # A score near the threshold may fall on the other side; most features agree closely.
    assert (feature.float() - expected).abs().median() < 0.02


def gradient_norms(config: SdtpsConfig) -> tuple[dict[str, Any], float]:
    module, output, tokens, globals_ = run(config)
    output["feature"].square().sum().backward()
    norms = {
        name: None if p.grad is None else p.grad.norm().item() for name, p in module.named_parameters()
    }
    norms["patches"] = None if (g := tokens["rgb"].grad) is None else g.norm().item()
    norms["globals"] = None if (g := globals_["rgb"].grad) is None else g.norm().item()
    return norms, norms["patches"] or 0.0


def test_gumbel_with_the_published_constant_multiplies_gradients_by_1e6_to_1e10() -> None:
    plain, _ = gradient_norms(SdtpsConfig(**V2))
    for name, low in (("v2_gumbel", 1e6), ("v3", 1e6)):
        noisy, _ = gradient_norms(SdtpsConfig(**ARRANGEMENTS[name]))
        key = "modalities.rgb.selection.score_mlp.0.weight"
        assert low < noisy[key] / plain[key] < 1e12
    repaired, _ = gradient_norms(SdtpsConfig(**ARRANGEMENTS["log"]))
    assert 0.1 < repaired[key] / plain[key] < 10


def test_only_the_extra_token_trains_the_score_without_gumbel() -> None:
    with_extra, _ = gradient_norms(SdtpsConfig(**V2))
    without, _ = gradient_norms(SdtpsConfig(**V2, extra_token="none"))
    key = "modalities.rgb.selection.score_mlp.0.weight"
    assert with_extra[key]
    assert not without[key]


def test_no_grad_on_attentions_cuts_globals_but_not_patches() -> None:
    v1, _ = gradient_norms(SdtpsConfig(**V1))
    v2, _ = gradient_norms(SdtpsConfig(**V2))
    assert v1["globals"] is None
    assert v2["globals"] is not None
    assert v1["patches"] == pytest.approx(v2["patches"], rel=0.05)


def test_released_placement_gives_patches_no_gradient() -> None:
    norms, patches = gradient_norms(SdtpsConfig(**ARRANGEMENTS["released"]))
    assert patches == 0
    assert norms["modalities.rgb.aggregation.weight.1.weight"]


def test_injected_draws_replace_the_generator() -> None:
    config = SdtpsConfig(**GUMBEL)
    torch.manual_seed(0)
    module = MultiModal(config, 20, 16)
    tokens = {m: torch.randn(3, 16, 20) for m in MODALITIES}
    globals_ = {m: torch.randn(3, 20) for m in MODALITIES}
    draws = {m: torch.rand(3, 16) for m in MODALITIES}
    gradients = []
    for seed in (1, 2):
        module.zero_grad()
        torch.manual_seed(seed)
        module(tokens, globals_, draws)["feature"].square().sum().backward()
        gradients.append(next(module.parameters()).grad.clone())
    assert torch.equal(*gradients)
