"""Encoders: shapes, DeMo's use of CLIP, and weights that fit exactly or are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sdtps.cli import main
from sdtps.config import ReidConfig, RetrievalConfig, parse_config
from sdtps.config.reid import BackboneConfig
from sdtps.data.caption_batches import RetrievalBatch, TextBatch
from sdtps.data.reid_batches import ReidBatch
from sdtps.errors import ConfigError, SdtpsError, WeightsError
from sdtps.models.backbones import (
    FAMILIES,
    ClipVit,
    TinyVit,
    build_backbone,
    interpolate_positions,
    load_clip_weights,
    patch_size,
    read_checkpoint,
)
from sdtps.models.encoders import build_image_encoder, image_shape
from sdtps.models.reid import ReidModel, reid_loss, trunk
from sdtps.models.retrieval import RetrievalModel, retrieval_loss
from sdtps.models.weights import find_weights, read_tensors

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
    source = tower.state_dict()
    saved: dict[str, Tensor] = {
        "visual.class_embedding": source["vision_model.embeddings.class_embedding"],
        "visual.positional_embedding": source["vision_model.embeddings.position_embedding.weight"],
        "visual.conv1.weight": source["vision_model.embeddings.patch_embedding.weight"],
        "visual.proj": source["visual_projection.weight"].T,
        "token_embedding.weight": torch.zeros(3, 3),
        "logit_scale": torch.zeros(()),
        "input_resolution": torch.tensor(32),
    }
    for end in ("weight", "bias"):
        saved[f"visual.ln_pre.{end}"] = source[f"vision_model.pre_layrnorm.{end}"]
        saved[f"visual.ln_post.{end}"] = source[f"vision_model.post_layernorm.{end}"]
        for i in range(2):
            layer = f"vision_model.encoder.layers.{i}"
            block = f"visual.transformer.resblocks.{i}"
            saved[f"{block}.attn.in_proj_{end}"] = torch.cat(
                [source[f"{layer}.self_attn.{part}_proj.{end}"] for part in "qkv"]
            )
            saved[f"{block}.attn.out_proj.{end}"] = source[f"{layer}.self_attn.out_proj.{end}"]
            saved[f"{block}.ln_1.{end}"] = source[f"{layer}.layer_norm1.{end}"]
            saved[f"{block}.ln_2.{end}"] = source[f"{layer}.layer_norm2.{end}"]
            saved[f"{block}.mlp.c_fc.{end}"] = source[f"{layer}.mlp.fc1.{end}"]
            saved[f"{block}.mlp.c_proj.{end}"] = source[f"{layer}.mlp.fc2.{end}"]
    return {name: value.clone().contiguous() for name, value in saved.items()}


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


def test_a_tall_image_has_its_own_grid() -> None:
    ours = ClipVit(small_tower(), RANDOM, 64, 16, cameras=0)
    classes, patches = ours(torch.randn(3, 3, 64, 16))
    assert classes.shape == (3, 16) and patches.shape == (3, 16, 16) and ours.patches == 16
    names = dict(ours.named_parameters())
    assert names["tower.vision_model.embeddings.position_embedding.weight"].shape == (17, 32)


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


def test_tiny_vit_shapes_and_one_call_for_many_images() -> None:
    model = TinyVit(RANDOM, 32, 16, cameras=0)
    images = torch.randn(6, 3, 32, 16)
    classes, patches = model(images)
    assert classes.shape == (6, 12) and patches.shape == (6, 8, 12)
    one = model(images[2:3])
    assert torch.allclose(one[0], classes[2:3], atol=1e-6)


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


def test_a_tiny_vit_can_be_saved_and_loaded(tmp_path: Path) -> None:
    model = build_backbone(RANDOM, 16, 16, 2)
    torch.save(model.state_dict(), tmp_path / "tiny.pt")
    again = build_backbone(RANDOM.model_copy(update={"weights": str(tmp_path / "tiny.pt")}), 16, 16, 2)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


def test_a_file_that_is_no_weights_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"not weights")
    with pytest.raises(WeightsError, match=r"x\.pt: not a readable weight file"):
        read_tensors(tmp_path / "x.pt")


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


def test_the_published_size_of_clip_vit_b16() -> None:
    """86.2 M parameters of the tower (FACTS: 86.41 M with DeMo's heads and camera table)."""
    config = BackboneConfig(weights="random", camera_embedding=False)
    with torch.device("meta"):
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

        tower = CLIPVisionModelWithProjection(
            CLIPVisionConfig(patch_size=16, image_size=224, projection_dim=512)
        )
    count = sum(p.numel() for p in tower.parameters())
    assert config.name == "clip_vit_b16" and count == 86_192_640


def test_one_projection_and_a_matrix_product_give_the_gradients_of_transformers_layers() -> None:
    from benchmarks.step import plain_clip

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
    backend = CompileCounterWithBackend("aot_eager")
    model.compile(backend=backend)
    found = model(images, camids)
    assert backend.frame_count == 1
    for ours, plain in zip(found, expected, strict=True):
        assert torch.allclose(ours, plain, atol=1e-6)


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
