"""Published state dicts become ours and come back bit for bit; what does not fit is named."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sdtps.models.convert import LAYOUTS, convert, convert_file, find_layout
from sdtps.system.errors import WeightsError
from tests.sdtps.test_backbones import small_tower

VECTORS = Path(__file__).parents[1] / "golden" / "vectors"
# One golden case of each published module that has parameters.
CASES = {
    "token_sparse_paper_topk": "token_sparse",
    "token_aggregation_nomask": "token_aggregation",
    "dual_token_aggregation": "token_aggregation",
    "multimodal_sdtps_grad_topk": "multimodal_sdtps",
    "demo_fusion_eval": "fusion",
    "crossnet_seps_opensource_cls": "crossnet",
    "crossnet_laps_nocls": "crossnet",
    "crossnet_seps_paper_dual_cls": "crossnet",
}


def published(case: str) -> dict[str, Tensor]:
    with np.load(VECTORS / f"{case}.npz") as archive:
        return {
            key.removeprefix("param."): torch.from_numpy(archive[key])
            for key in archive.files
            if key.startswith("param.")
        }


def clip_visual(layers: int = 2, width: int = 8) -> dict[str, Tensor]:
    """A small visual transformer under OpenAI's names."""
    torch.manual_seed(0)
    state = {
        "class_embedding": torch.randn(width),
        "positional_embedding": torch.randn(5, width),
        "conv1.weight": torch.randn(width, 3, 2, 2),
        "proj": torch.randn(width, 6),
    }
    for norm in ("ln_pre", "ln_post"):
        state |= {f"{norm}.weight": torch.randn(width), f"{norm}.bias": torch.randn(width)}
    for n in range(layers):
        block = f"transformer.resblocks.{n}."
        for name, shape in {
            "attn.in_proj_weight": (3 * width, width),
            "attn.in_proj_bias": (3 * width,),
            "attn.out_proj.weight": (width, width),
            "attn.out_proj.bias": (width,),
            "ln_1.weight": (width,),
            "ln_1.bias": (width,),
            "mlp.c_fc.weight": (4 * width, width),
            "mlp.c_fc.bias": (4 * width,),
            "mlp.c_proj.weight": (width, 4 * width),
            "mlp.c_proj.bias": (width,),
            "ln_2.weight": (width,),
            "ln_2.bias": (width,),
        }.items():
            state[block + name] = torch.randn(shape)
    return state


@pytest.mark.parametrize("case", CASES)
def test_there_and_back_loses_nothing(case: str) -> None:
    state = published(case)
    layout = find_layout(list(state), "ours")
    assert layout.name == CASES[case]
    ours = convert(state, layout, "ours")
    back = convert(ours, layout, "published")
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
    assert find_layout(list(ours), "published") is layout


def test_clip_is_split_and_transposed_as_transformers_expects() -> None:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    state = clip_visual()
    ours = convert(state, LAYOUTS["clip_visual"], "ours")
    config = CLIPVisionConfig(
        hidden_size=8,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=4,
        patch_size=2,
        projection_dim=6,
    )
    CLIPVisionModelWithProjection(config).load_state_dict(ours)
    query = ours["vision_model.encoder.layers.1.self_attn.q_proj.weight"]
    assert torch.equal(query, state["transformer.resblocks.1.attn.in_proj_weight"][:8])
    back = convert(ours, LAYOUTS["clip_visual"], "published")
    assert all(torch.equal(back[name], state[name]) for name in state)


def reid_state(**parts: Any) -> dict[str, Tensor]:
    """State of our whole model around a small CLIP tower."""
    from sdtps.config import ReidConfig, parse_config
    from sdtps.models.backbones import ClipVit
    from sdtps.models.reid import ReidModel

    config = parse_config({"backbone": {"name": "tiny_vit", "weights": "random"}, **parts})
    assert isinstance(config, ReidConfig)
    model = ReidModel(config, pids=5, cameras=4)
    model.backbone = ClipVit(small_tower(), config.backbone, 256, 128, cameras=4)
    return model.state_dict()


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        (
            {"sdtps": {"enabled": False}, "fusion": {"kind": "hdm_atmoe", "global_local": True}},
            {"generalFusion.rnt_token", "rgb_reduce.1.weight", "bottleneck_moe.running_var"},
        ),
        (
            {"sdtps": {"aggregation": "single"}, "fusion": {"direct": False}},
            {"sdtps.tir_aggr.weight.3.bias", "classifier_sdtps.weight", "bottleneck_r.weight"},
        ),
    ],
    ids=["fusion", "three_heads"],
)
def test_whole_models_have_the_published_names(parts: dict[str, Any], names: set[str]) -> None:
    ours = reid_state(**parts)
    state = convert(ours, LAYOUTS["demo"], "published")
    assert names <= state.keys()
    assert state["BACKBONE.cv_embed"].shape == (4, 1, 32)
    back = convert(state, find_layout(list(state), "ours"), "ours")
    assert all(torch.equal(back[name], ours[name]) for name in ours)


def test_a_whole_retrieval_model_has_the_released_names() -> None:
    from sdtps.audit.toys import build_toy
    from sdtps.config import RetrievalConfig, parse_config

    config = parse_config(
        {"task": "retrieval", "image_encoder": {"name": "tiny_vit", "size": 56, "patch": 8}}
    )
    assert isinstance(config, RetrievalConfig)
    ours = build_toy(config, 0, None).model.state_dict()
    state = convert(ours, LAYOUTS["seps"], "published")
    assert {
        "img_enc.visual_encoder.embeddings.cls_token",
        "img_enc.visual_encoder.encoder.layer.0.attention.attention.query.weight",
        "img_enc.vision_proj.bias",
        "txt_enc.bert.embeddings.word_embeddings.weight",
        "txt_enc.fc.weight",
        "cross_net.aggr_net.weight_dense.3.bias",
        "cross_net.sparse_net_long.score_predictor.0.weight",
        "cross_net.hrpa.relevance_mlp.2.bias",
    } <= state.keys()


@pytest.mark.parametrize("kind", ["vit", "swin"])
def test_vision_checkpoints_of_the_hub_load_as_transformers_loads_them(
    kind: str, tmp_path: Path
) -> None:
    from transformers import SwinConfig, SwinModel, ViTConfig, ViTModel

    torch.manual_seed(0)
    model: Any
    if kind == "vit":
        small = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        model = ViTModel(ViTConfig(hidden_size=8, image_size=16, patch_size=8, **small))
    else:
        swin = SwinConfig(
            image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
        )
        model = SwinModel(swin)
    ours = model.state_dict()
    state = convert(ours, LAYOUTS["vision"], "published")
    assert any(".query.weight" in name for name in state)
    model.config.save_pretrained(tmp_path)
    save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / "model.safetensors")
    loaded = type(model).from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], ours[name]) for name in ours)


def test_an_arrangement_that_was_never_published_is_refused() -> None:
    with pytest.raises(WeightsError, match=r"modalities\.tir\.selection_dense\.score_mlp"):
        convert(reid_state(sdtps={"aggregation": "dual"}), LAYOUTS["demo"], "published")


def test_every_name_that_does_not_fit_is_named() -> None:
    state = published("multimodal_sdtps_grad_topk")
    state["rgb_gate.weight"] = torch.zeros(1)
    state["uv_aggr.scale"] = torch.zeros(1)
    with pytest.raises(WeightsError) as refused:
        convert(state, LAYOUTS["multimodal_sdtps"], "ours")
    assert re.findall(r"^(\S+):", str(refused.value), re.M) == ["rgb_gate.weight", "uv_aggr.scale"]
    with pytest.raises(WeightsError, match=r"nearest, multimodal_sdtps.*2 of 35(.|\n)*rgb_gate.weight"):
        find_layout(list(state), "ours")


def test_a_missing_third_of_an_attention_is_named() -> None:
    ours = convert(clip_visual(), LAYOUTS["clip_visual"], "ours")
    del ours["vision_model.encoder.layers.0.self_attn.v_proj.bias"]
    with pytest.raises(WeightsError, match="missing beside"):
        convert(ours, LAYOUTS["clip_visual"], "published")


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth"])
def test_files_of_both_kinds_round_trip(suffix: str, tmp_path: Path) -> None:
    state = published("crossnet_seps_paper_dual_cls")
    save_file(state, tmp_path / "published.safetensors")
    ours, back = tmp_path / f"ours.{suffix}", tmp_path / "back.safetensors"
    assert convert_file(tmp_path / "published.safetensors", ours)[0].name == "crossnet"
    convert_file(ours, back, to="published")
    returned = load_file(back)
    assert all(torch.equal(returned[name], state[name]) for name in state)


def test_a_released_training_checkpoint_is_unwrapped(tmp_path: Path) -> None:
    """SEPS and LAPS save options, epoch and a state dict; DataParallel adds a prefix."""
    state = {f"module.{k}": v for k, v in published("crossnet_laps_cls").items()}
    options = argparse.Namespace(embed_size=512, sparse_ratio=0.5)
    torch.save({"model": state, "opt": options, "epoch": 3}, tmp_path / "best.pth")
    assert convert_file(tmp_path / "best.pth", tmp_path / "ours.safetensors")[1] == len(state)
    assert "aggregation.scale" in load_file(tmp_path / "ours.safetensors")
