"""Encoders: shapes, DeMo's use of CLIP, and weights that fit exactly or are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sdtps.config.reid import BackboneConfig
from sdtps.models.backbones import (
    ClipVit,
    TinyVit,
    build_backbone,
    interpolate_positions,
    load_clip_weights,
)
from sdtps.models.convert import CLIP_VISUAL
from sdtps.models.weights import find_weights, read_tensors
from sdtps.system.errors import WeightsError

RANDOM = BackboneConfig(name="tiny_vit", weights="random", patch=8, width=16, heads=2, embed=12)


def small_tower(seed: int = 0) -> Any:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    torch.manual_seed(seed)
    config = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
        projection_dim=16,
    )
    tower = CLIPVisionModelWithProjection(config)
    for parameter in tower.parameters():
        nn.init.normal_(parameter, std=0.05)
    return tower.eval()


def openai_layout(tower: Any) -> dict[str, Tensor]:
    """What OpenAI would have saved for this tower, text tensors included."""
    saved = {
        f"visual.{name}": value.clone().contiguous()
        for name, value in CLIP_VISUAL.renamed(tower.state_dict(), "published").items()
    }
    return {**saved, "token_embedding.weight": torch.zeros(3, 3), "logit_scale": torch.zeros(())}


class OpenAiArchive(nn.Module):
    """Named tensors below `visual`, to be scripted into an archive like ViT-B-16.pt."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        for name, value in tensors.items():
            module: nn.Module = self
            *path, last = name.split(".")
            for part in path:
                if part not in dict(module.named_children()):
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.register_buffer(last, value)

    def forward(self, x: Tensor) -> Tensor:
        return x


def saved_as(layout: str, tower: Any, folder: Path) -> Path:
    if layout == "hf_folder":
        tower.save_pretrained(folder / "clip")
        return folder / "clip"
    if layout == "hf_whole_clip":
        path = folder / "model.safetensors"
        extra = {
            "text_model.embeddings.token_embedding.weight": torch.zeros(2),
            "logit_scale": torch.ones(1),
        }
        save_file({k: v.contiguous() for k, v in tower.state_dict().items()} | extra, path)
        return path
    if layout == "openai_state_dict":
        path = folder / "ViT-B-16.pt"
        torch.save(openai_layout(tower), path)
        return path
    path = folder / "ViT-B-16.pt"
    torch.jit.script(OpenAiArchive(openai_layout(tower))).save(str(path))
    return path


@pytest.mark.parametrize(
    "layout", ["hf_folder", "hf_whole_clip", "openai_state_dict", "openai_archive"]
)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_every_layout_gives_the_same_tokens(tmp_path: Path, layout: str) -> None:
    tower = small_tower()
    loaded = small_tower(seed=1)
    load_clip_weights(loaded, str(saved_as(layout, tower, tmp_path)))
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(tower(images).image_embeds, loaded.eval()(images).image_embeds)


def test_the_class_token_equals_transformers_embedding() -> None:
    """On a square image without cameras our forward is CLIP's."""
    tower = small_tower()
    images = torch.randn(2, 3, 32, 32)
    expected = tower(images)
    ours = ClipVit(tower, RANDOM, 32, 32, cameras=0).eval()
    classes, patches = ours(images)
    assert torch.allclose(classes, expected.image_embeds, atol=1e-6)
    projected = tower.visual_projection(tower.vision_model.post_layernorm(expected.last_hidden_state))
    assert torch.allclose(patches, projected[:, 1:], atol=1e-6)


def test_positions_are_interpolated_bilinearly_and_the_class_row_kept() -> None:
    table = torch.randn(1 + 14 * 14, 4)
    fitted = interpolate_positions(table, (16, 8))
    assert fitted.shape == (1 + 128, 4) and torch.equal(fitted[0], table[0])
    # Corner of a 14 -> 8 column grid: output column 0 samples input at (0 + 0.5) * 14 / 8 - 0.5.
    x, y = 0.5 * 14 / 8 - 0.5, max(0.0, 0.5 * 14 / 16 - 0.5)
    square = table[1:].view(14, 14, 4)
    expected = (1 - x) * square[0, 0] + x * square[0, 1]
    assert y == 0.0 and torch.allclose(fitted[1], expected, atol=1e-6)
    assert torch.equal(interpolate_positions(table, (14, 14)), table)


@pytest.mark.parametrize("kind", ["tiny", "clip"])
def test_the_camera_moves_only_the_class_token_before_the_first_layer(kind: str) -> None:
    """With the encoder's blocks taken out, patches do not depend on the camera."""
    model: Any
    if kind == "tiny":
        model = TinyVit(RANDOM, 16, 16, cameras=2)
        model.blocks = nn.ModuleList()
    else:
        model = ClipVit(small_tower(), RANDOM, 32, 32, cameras=2)
        model.tower.vision_model.encoder.layers = nn.ModuleList()
    images = torch.randn(1, 3, 16, 16) if kind == "tiny" else torch.randn(1, 3, 32, 32)
    first, second = (model(images, torch.tensor([c])) for c in (0, 1))
    assert not torch.allclose(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_every_tensor_that_does_not_fit_is_named(tmp_path: Path) -> None:
    tensors = openai_layout(small_tower())
    del tensors["visual.ln_pre.weight"]
    tensors["visual.mystery"] = torch.zeros(1)
    tensors["visual.proj"] = torch.zeros(5, 5)
    torch.save(tensors, tmp_path / "clip.pt")
    with pytest.raises(WeightsError) as caught:
        load_clip_weights(small_tower(), str(tmp_path / "clip.pt"))
    text = str(caught.value)
    assert "1 missing: vision_model.pre_layrnorm.weight" in text
    assert "1 unexpected: mystery" in text
    assert "visual_projection.weight is (5, 5), the model has (16, 32)" in text


def test_half_precision_files_are_read_as_float32(tmp_path: Path) -> None:
    tensors = {k: v.half() for k, v in openai_layout(small_tower()).items()}
    torch.save(tensors, tmp_path / "clip.pt")
    tower = small_tower(1)
    load_clip_weights(tower, str(tmp_path / "clip.pt"))
    assert all(p.dtype == torch.float32 for p in tower.parameters())


def test_random_weights_must_be_asked_for(tmp_path: Path) -> None:
    missing = RANDOM.model_copy(update={"weights": str(tmp_path / "none.pt")})
    with pytest.raises(WeightsError, match="'random'"):
        build_backbone(missing, 16, 16, 0)
    assert isinstance(build_backbone(RANDOM, 16, 16, 0), TinyVit)


def test_a_file_with_code_in_it_is_refused_without_advice_to_trust_it(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(1), "path": tmp_path}, tmp_path / "x.pt")
    with pytest.raises(WeightsError) as told:
        read_tensors(tmp_path / "x.pt")
    assert "could run code" in str(told.value)
    assert "weights_only" not in str(told.value)


def test_a_relative_name_is_looked_up_in_the_weights_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.pt").write_bytes(b"")
    monkeypatch.setenv("SDTPS_WEIGHTS", str(tmp_path))
    assert find_weights("w.pt") == tmp_path / "w.pt"


def test_one_projection_and_a_matrix_product_give_the_gradients_of_transformers_layers() -> None:
    from benchmarks.training import plain_clip

    ours = ClipVit(small_tower(), RANDOM, 64, 16, cameras=2)
    images, camids = torch.randn(4, 3, 64, 16), torch.tensor([0, 1, 1, 0])
    gradients = []
    for forward in (ours, lambda *batch: plain_clip(ours, *batch)):
        ours.zero_grad()
        classes, patches = forward(images, camids)
        (classes.square().sum() + (patches * torch.arange(16)).sum()).backward()
        gradients.append({n: p.grad.clone() for n, p in ours.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and len(gradients[0]) > 30
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], rtol=1e-4, atol=1e-4), name


@pytest.mark.parametrize("kind", ["tiny", "clip"])
def test_one_layer_is_compiled_for_all(kind: str) -> None:
    """Twelve graphs would take twelve times as long, and torch gives up at the eighth."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    model: Any
    if kind == "tiny":
        model = TinyVit(RANDOM.model_copy(update={"depth": 3}), 64, 16, cameras=2)
    else:
        model = ClipVit(small_tower(), RANDOM, 64, 16, cameras=2)
    images, camids = torch.randn(4, 3, 64, 16), torch.tensor([0, 1, 1, 0])
    expected = model(images, camids)
    backend = CompileCounterWithBackend("eager")
    model.compile(backend=backend)
    found = model(images, camids)
    assert backend.frame_count == 1
    for ours, plain in zip(found, expected, strict=True):
        assert torch.allclose(ours, plain, atol=1e-6)
