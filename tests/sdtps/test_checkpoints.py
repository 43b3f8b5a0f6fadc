"""Image encoders from Hugging Face folders: what is read, two training steps, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from sdtps.cli import main
from sdtps.config import ReidConfig, RetrievalConfig, parse_config
from sdtps.data.caption_batches import RetrievalBatch, TextBatch
from sdtps.data.reid_batches import ReidBatch
from sdtps.errors import ConfigError, SdtpsError, WeightsError
from sdtps.models.backbones import FAMILIES, build_backbone, patch_size, read_checkpoint
from sdtps.models.encoders import build_image_encoder, image_shape
from sdtps.models.reid import ReidModel, reid_loss, trunk
from sdtps.models.retrieval import RetrievalModel, retrieval_loss

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
TEXT = {**SMALL, "num_hidden_layers": 1, "vocab_size": 50}
del TEXT["image_size"], TEXT["patch_size"]


def clip() -> Any:
    return transformers.CLIPModel(
        transformers.CLIPConfig(
            vision_config={**SMALL, "projection_dim": 24},
            text_config={**TEXT, "projection_dim": 24, "bos_token_id": 1, "eos_token_id": 2},
            projection_dim=24,
        )
    )


def siglip() -> Any:
    text = {**TEXT, "bos_token_id": 1, "eos_token_id": 2}
    return transformers.SiglipModel(transformers.SiglipConfig(vision_config=SMALL, text_config=text))


BUILDERS: dict[str, Callable[[], Any]] = {
    "clip": clip,
    "clip_vision_model": lambda: transformers.CLIPVisionModelWithProjection(
        transformers.CLIPVisionConfig(**SMALL, projection_dim=24)
    ),
    "vit": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)),
    "deit": lambda: transformers.DeiTForImageClassificationWithTeacher(
        transformers.DeiTConfig(**SMALL)
    ),
    "dinov2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**SMALL)),
    "dinov2_with_registers": lambda: transformers.Dinov2WithRegistersModel(
        transformers.Dinov2WithRegistersConfig(**SMALL)
    ),
    "siglip": siglip,
    "siglip_vision_model": lambda: transformers.SiglipVisionModel(
        transformers.SiglipVisionConfig(**SMALL)
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small random checkpoint of each family, as its authors save them."""
    found = {}
    for kind, build in BUILDERS.items():
        torch.manual_seed(0)
        found[kind] = write(tmp_path_factory.mktemp(kind), build())
    return found


def write(folder: Path, model: Any) -> Path:
    model.save_pretrained(folder)
    pixels = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    return folder


def reid(folder: Path | str, **backbone: Any) -> ReidConfig:
    config = parse_config(
        {
            "data": {"height": 64, "width": 32, "batch_size": 4, "instances": 2},
            "backbone": {"name": "checkpoint", "weights": str(folder), **backbone},
            "sdtps": {"decision": "gumbel_ste", "mask": "log"},
        }
    )
    assert isinstance(config, ReidConfig)
    return config


def test_every_family_is_tried() -> None:
    assert set(BUILDERS) == set(FAMILIES)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_folder_says_what_its_encoder_is(folders: dict[str, Path], kind: str) -> None:
    found = read_checkpoint(str(folders[kind]))
    assert (found.patch, found.size) == (8, 32)
    assert found.width == (24 if "clip" in kind and "sig" not in kind else 64)
    prefix = {"deit": 2, "dinov2_with_registers": 5}.get(kind, 0 if "siglip" in kind else 1)
    assert found.prefix == prefix
    assert (found.mean, found.std) == ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    assert patch_size(reid(folders[kind]).backbone) == 8


@pytest.mark.parametrize("kind", FAMILIES)
def test_two_steps_of_re_identification(folders: dict[str, Path], kind: str) -> None:
    config = reid(folders[kind], camera_embedding="siglip" not in kind)
    torch.manual_seed(0)
    model = ReidModel(config, pids=2, cameras=2).train()
    assert model.backbone is not None and model.backbone.patches == 8 * 4
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.randn(3, 4, 3, 64, 32)
    batch = ReidBatch(images, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]))
    losses = []
    for _ in range(2):
        loss, _ = reid_loss(model, config, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    learned = trunk(model)
    names = {id(p): n for n, p in model.named_parameters()}
    assert [names[id(p)] for p in learned if p.requires_grad and p.grad is None] == []


@pytest.mark.parametrize("kind", FAMILIES)
def test_two_steps_of_retrieval(folders: dict[str, Path], kind: str) -> None:
    config = parse_config(
        {
            "task": "retrieval",
            "image_encoder": {"name": "checkpoint", "weights": str(folders[kind]), "size": 48},
            "text_encoder": {"name": "tiny_bert", "frozen": True, "width": 16},
            "data": {"word_noise": 0.0},
            "matching": {"embed": 16},
        }
    )
    assert isinstance(config, RetrievalConfig)
    torch.manual_seed(0)
    shape = image_shape(config.image_encoder)
    assert (shape.patches, shape.class_token) == (36, "siglip" not in kind)
    encoder = build_image_encoder(config.image_encoder)
    model = RetrievalModel(config, shape, encoder, None).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    lengths = torch.tensor([5, 3, 4, 2])
    texts = [TextBatch(torch.randn(4, 5, 16), lengths) for _ in range(2)]
    batch = RetrievalBatch(torch.randn(4, 3, 48, 48), *texts, torch.arange(4))
    losses = []
    for step in (1, 2):
        loss, _ = retrieval_loss(model, config, batch, epoch=2, step=step, steps_per_epoch=2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert any(p.grad is not None and p.grad.any() for p in encoder.parameters())


def test_tokens_are_the_models_own_at_its_own_size(folders: dict[str, Path]) -> None:
    """Pixels in DeMo's normalisation become the checkpoint's."""
    backbone = build_backbone(reid(folders["vit"], camera_embedding=False).backbone, 32, 32, 0).eval()
    plain = transformers.ViTModel.from_pretrained(folders["vit"], add_pooling_layer=False).eval()
    pixels = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))
    with torch.no_grad():
        classes, patches = backbone((pixels - 0.5) / 0.5)
        expected = plain((pixels - mean) / std).last_hidden_state
    torch.testing.assert_close(classes, expected[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(patches, expected[:, 1:], rtol=1e-4, atol=1e-4)


def test_a_camera_moves_the_class_token(folders: dict[str, Path]) -> None:
    backbone = build_backbone(reid(folders["vit"], camera_std=1.0).backbone, 32, 32, 2).eval()
    images = torch.randn(1, 3, 32, 32).expand(2, -1, -1, -1)
    with torch.no_grad():
        classes, _ = backbone(images, torch.tensor([0, 1]))
        same, _ = backbone(images, torch.tensor([1, 1]))
    assert not torch.allclose(classes[0], classes[1])
    assert torch.equal(same[0], same[1])


def damaged(folder: Path, source: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def refused(config: ReidConfig, cameras: int = 0) -> str:
    with pytest.raises(SdtpsError) as told:
        build_backbone(config.backbone, config.data.height, config.data.width, cameras)
    return str(told.value)


def test_weights_that_do_not_fit_are_named(folders: dict[str, Path], tmp_path: Path) -> None:
    def forget(tensors: dict[str, Any]) -> None:
        del tensors["vision_model.post_layernorm.weight"]

    missing = damaged(tmp_path, folders["clip"], forget)
    assert "1 missing: vision_model.post_layernorm.weight" in refused(reid(missing))


def test_values_that_are_no_numbers_are_named(folders: dict[str, Path], tmp_path: Path) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        tensors["visual_projection.weight"][0, 0] = torch.nan

    assert "1 not finite: visual_projection.weight" in refused(
        reid(damaged(tmp_path, folders["clip"], spoil))
    )


def test_weights_of_another_family_are_named(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for name, source in (("config.json", "vit"), ("preprocessor_config.json", "vit")):
        (tmp_path / "x" / name).write_bytes((folders[source] / name).read_bytes())
    weights = (folders["dinov2"] / "model.safetensors").read_bytes()
    (tmp_path / "x" / "model.safetensors").write_bytes(weights)
    assert "missing: " in refused(reid(tmp_path / "x"))


def test_an_unknown_family_and_an_incomplete_folder_are_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"has no config\.json"):
        read_checkpoint(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "convnext"}))
    with pytest.raises(WeightsError, match="model type 'convnext'; known are clip"):
        read_checkpoint(str(tmp_path))


def test_what_a_family_cannot_do_is_said(folders: dict[str, Path]) -> None:
    assert "camera_embedding is added to the class token" in refused(reid(folders["siglip"]), 2)
    with pytest.raises(ConfigError, match="no multiple of 8"):
        build_backbone(reid(folders["vit"]).backbone, 60, 32, 0)
    with pytest.raises(ConfigError, match="name checkpoint needs weights"):
        reid("random")


def test_folders_are_listed_with_what_was_recognised(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    save_file({"a": torch.zeros(1)}, tmp_path / "other" / "model.safetensors")
    (tmp_path / "other" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    words = [str(folders["deit"]), str(folders["siglip"]), str(tmp_path)]
    assert main(["backbones", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(
        "deit, patches of 8 pixels, trained at 32, 64 channels, 2 class or register tokens"
    )
    assert lines[1].endswith("no class token")
    assert "not recognised" in lines[2] and "model type 'bert'" in lines[2]
    assert main(["backbones", str(tmp_path)]) == 1
