"""Weight files as people have them: each kind of wrong file is named, each usual packing loads."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps.config.retrieval import ImageEncoderConfig
from sdtps.models.convert import TIMM_SWIN, TIMM_VIT
from sdtps.models.encoders import build_image_encoder
from sdtps.models.weights import load_exactly, read_tensors
from sdtps.system.errors import WeightsError
from sdtps.training.attempt import execute
from tests.sdtps.small import planted, retrieval

TINY = ImageEncoderConfig(name="tiny_vit", size=16, patch=4, width=16, depth=2, heads=2)
SWIN = TINY.model_copy(update={"name": "tiny_swin", "patch": 2, "depth": 1})
STATE = {"a.weight": torch.ones(300, 100), "a.bias": torch.zeros(300)}


def loaded(config: ImageEncoderConfig, file: Path, **changes: object) -> nn.Module:
    config = config.model_copy(update={"weights": str(file), **changes})
    return build_image_encoder(config)


# -- wrong files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("w.pt", b"", "is an empty file"),
        (
            "w.pt",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n",
            r"LFS pointer.*lfs pull",
        ),
        ("w.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "LFS pointer"),
        (
            "w.pt",
            b"\n<!DOCTYPE html><html><title>Sign in</title>",
            r"web page \(HTML\).*download again",
        ),
        ("w.bin", b'{"error": "rate limit"}', "text file"),
        ("w.pt", b"not weights", "no PyTorch file"),
    ],
)
def test_files_that_are_no_weights_are_told_by_kind(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=told) as error:
        read_tensors(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors", "header"])
def test_truncated_files_are_told(tmp_path: Path, kind: str) -> None:
    whole = tmp_path / "whole.pt"
    if kind in ("zip", "legacy"):
        torch.save(STATE, whole, _use_new_zipfile_serialization=kind == "zip")
    else:
        save_file(STATE, whole)
    content = whole.read_bytes()
    torn = tmp_path / "torn.pt"
    torn.write_bytes(content[:40] if kind == "header" else content[: len(content) // 2])
    assert set(read_tensors(whole)) == set(STATE)
    with pytest.raises(WeightsError, match="truncated"):
        read_tensors(torn)


def test_nan_and_infinite_tensors_are_refused_by_name(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    state = {"weight": torch.ones(3, 4), "bias": torch.tensor([0.0, math.nan, math.inf])}
    with pytest.raises(WeightsError, match="1 with NaN or infinite values: bias"):
        load_exactly(model, state, "w.pt")
    assert torch.isfinite(model.bias).all()


def test_quantised_weights_without_their_scales_are_refused_by_name() -> None:
    state = {"weight": torch.ones(3, 4, dtype=torch.int8), "bias": torch.zeros(3)}
    with pytest.raises(WeightsError, match=r"1 of integers.*weight"):
        load_exactly(nn.Linear(4, 3), state, "w.pt")


# -- packings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "net", "anything"])
def test_training_checkpoints_are_unpacked(tmp_path: Path, key: str) -> None:
    optimiser = {"state": {0: {"exp_avg": torch.ones(300, 100)}}, "param_groups": [{"lr": 0.1}]}
    beside = {"optimizer": optimiser, "epoch": 3, "rng_state": torch.ones(9), "scaler": {"scale": 1.0}}
    torch.save({key: STATE, **beside}, tmp_path / "w.pt")
    assert set(read_tensors(tmp_path / "w.pt")) == set(STATE)
    torch.save({"checkpoint": {key: {f"module.{k}": v for k, v in STATE.items()}}}, tmp_path / "w.pt")
    assert set(read_tensors(tmp_path / "w.pt")) == set(STATE)


def test_a_model_and_its_average_are_not_chosen_between(tmp_path: Path) -> None:
    torch.save({"model": STATE, "model_ema": STATE}, tmp_path / "w.pt")
    with pytest.raises(WeightsError, match="several sets of weights: model, model_ema"):
        read_tensors(tmp_path / "w.pt")


# -- timm --------------------------------------------------------------------------------------------


def timm_vit() -> dict[str, Tensor]:
    """A random ViT under timm's names, with its classifier."""
    torch.manual_seed(0)
    ours = {
        k: 0.3 * torch.randn_like(v) for k, v in build_image_encoder(TINY).network.state_dict().items()
    }
    head = {"head.weight": torch.ones(1000, 16), "head.bias": torch.ones(1000)}
    return {k: v.contiguous() for k, v in TIMM_VIT.renamed(ours, "published").items()} | head


def timm_forward(w: dict[str, Tensor], pixels: Tensor) -> Tensor:
    """What timm's ViT computes up to its last norm, written out."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (16,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-6)

    x = F.conv2d(pixels, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=4)
    x = torch.cat([w["cls_token"].expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1)
    x = x + w["pos_embed"]
    for block in ("blocks.0.", "blocks.1."):
        n, tokens, _ = x.shape
        qkv = linear(norm(x, block + "norm1"), block + "attn.qkv")
        query, key, value = qkv.view(n, tokens, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = (query @ key.transpose(-2, -1) * 8**-0.5).softmax(-1) @ value
        x = x + linear(mixed.transpose(1, 2).reshape(n, tokens, 16), block + "attn.proj")
        x = x + linear(F.gelu(linear(norm(x, block + "norm2"), block + "mlp.fc1")), block + "mlp.fc2")
    return norm(x, "norm")


def test_timms_vit_and_deit_give_what_they_give_in_timm(tmp_path: Path) -> None:
    state = timm_vit()
    torch.save({"model": state}, tmp_path / "deit.pth")  # as DeiT's own files are
    pixels = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        tokens = loaded(TINY, tmp_path / "deit.pth").eval()(pixels)
    torch.testing.assert_close(tokens, timm_forward(state, pixels), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("merged", ["at the end", "at the beginning"])
def test_swin_under_timms_names_of_both_ages_loads(tmp_path: Path, merged: str) -> None:
    ours = build_image_encoder(SWIN).network.state_dict()
    named = {n: v for n, v in ours.items() if not n.endswith("relative_position_index")}
    state = TIMM_SWIN.renamed(named, "published")
    assert "layers.0.downsample.reduction.weight" in state
    if merged == "at the beginning":
        state = {n.replace("layers.0.downsample", "layers.1.downsample"): v for n, v in state.items()}
    state |= {"head.fc.weight": torch.ones(3, 16), "layers.0.blocks.0.attn_mask": torch.ones(1)}
    state["layers.0.blocks.0.attn.relative_position_index"] = torch.ones(2, 2)
    save_file({n: v.contiguous().clone() for n, v in state.items()}, tmp_path / "s.safetensors")
    again = loaded(SWIN, tmp_path / "s.safetensors").network.state_dict()
    assert all(torch.equal(again[name], value) for name, value in named.items())


# -- position tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [TINY, SWIN], ids=["vit", "swin"])
def test_another_resolution_is_refused_or_interpolated_as_asked(
    tmp_path: Path, config: ImageEncoderConfig
) -> None:
    small = build_image_encoder(config).network.state_dict()
    save_file({n: v for n, v in small.items() if not n.endswith("index")}, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"another size.*image_encoder\.resize_positions to true"):
        loaded(config, tmp_path / "w.safetensors", size=32)
    encoder = loaded(config, tmp_path / "w.safetensors", size=32, resize_positions=True)
    assert encoder.adapted and all("interpolated from" in note for note in encoder.adapted)
    assert not loaded(config, tmp_path / "w.safetensors", resize_positions=True).adapted


def test_interpolation_keeps_the_class_token_and_a_smooth_table(tmp_path: Path) -> None:
    state = timm_vit()
    rows = torch.linspace(0, 1, 4)[:, None, None].expand(4, 4, 16)
    state["pos_embed"] = torch.cat([torch.full((1, 1, 16), 7.0), rows.reshape(1, 16, 16)], 1)
    save_file(state, tmp_path / "w.safetensors")
    network = loaded(TINY, tmp_path / "w.safetensors", size=32, resize_positions=True).network
    table = network.state_dict()["embeddings.position_embeddings"]
    assert table.shape == (1, 65, 16) and (table[0, 0] == 7).all()
    square = table[0, 1:].view(8, 8, 16)
    assert (square[1:] >= square[:-1]).all() and torch.allclose(square[:, 0], square[:, 5])


def test_a_run_says_that_positions_were_interpolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDTPS_CACHE", str(tmp_path / "cache"))
    save_file(dict(build_image_encoder(TINY).network.state_dict()), tmp_path / "w.safetensors")
    size = {"size": 32, "weights": str(tmp_path / "w.safetensors"), "resize_positions": True}
    folder = planted(tmp_path / "run", retrieval(image_encoder={**TINY.model_dump(), **size}))
    assert execute(folder.path) == "completed"
    (note,) = folder.run()["weights"]["image_encoder"]["interpolated"]
    assert note == "embeddings.position_embeddings: interpolated from 4x4 to 8x8"
    assert f"weights of image_encoder: {note}" in folder.log_file.read_text()
