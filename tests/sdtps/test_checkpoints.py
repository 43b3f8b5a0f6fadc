"""Published checkpoints: every family of image encoders and text towers, from folders as they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from sdtps.cli import main
from sdtps.config import ReidConfig, RetrievalConfig, parse_config
from sdtps.data.cache import padded
from sdtps.data.caption_batches import RetrievalBatch, TextBatch, tokenised
from sdtps.data.inputs import look
from sdtps.data.reid_batches import ReidBatch
from sdtps.models.backbones import build_backbone, patch_size
from sdtps.models.checkpoints import FAMILIES, TEXT_FAMILIES, read_image
from sdtps.models.encoders import (
    TextEncoder,
    build_image_encoder,
    build_text_encoder,
    check_text_limits,
    image_shape,
)
from sdtps.models.reid import ReidModel, reid_loss, trunk
from sdtps.models.retrieval import RetrievalModel, retrieval_loss
from sdtps.system.errors import ConfigError, SdtpsError, WeightsError

PLACES = 10  # of the text towers


def sizes(patch: int = 8) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "image_size": 4 * patch,
        "patch_size": patch,
    }


def text_sizes() -> dict[str, Any]:
    found = {**sizes(), "num_hidden_layers": 1, "vocab_size": 20, "max_position_embeddings": PLACES}
    del found["image_size"], found["patch_size"]
    return found


def clip(patch: int) -> Any:
    return transformers.CLIPModel(
        transformers.CLIPConfig(
            vision_config={**sizes(patch), "projection_dim": 24},
            text_config={**text_sizes(), "projection_dim": 24, "bos_token_id": 9, "eos_token_id": 10},
            projection_dim=24,
        )
    )


def siglip() -> Any:
    text = {**text_sizes(), "projection_size": 32, "bos_token_id": 2, "eos_token_id": 1}
    return transformers.SiglipModel(transformers.SiglipConfig(vision_config=sizes(), text_config=text))


def swin() -> Any:
    return transformers.SwinForImageClassification(
        transformers.SwinConfig(
            image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=2
        )
    )


T = transformers
IMAGES: dict[str, Callable[[], Any]] = {
    "clip_b16": lambda: clip(16),
    "clip_b32": lambda: clip(32),
    "clip_l14": lambda: clip(14),
    "clip_vision_model": lambda: T.CLIPVisionModelWithProjection(
        T.CLIPVisionConfig(**sizes(), projection_dim=24)
    ),
    "vit": lambda: T.ViTForImageClassification(T.ViTConfig(**sizes())),
    "deit": lambda: T.DeiTForImageClassificationWithTeacher(T.DeiTConfig(**sizes())),
    "dinov2": lambda: T.Dinov2Model(T.Dinov2Config(**sizes())),
    "dinov2_with_registers": lambda: T.Dinov2WithRegistersModel(T.Dinov2WithRegistersConfig(**sizes())),
    "siglip": siglip,
    "siglip2_fixed": siglip,  # its checkpoints of fixed size are of this family, with another tokenizer
    "siglip_vision_model": lambda: T.SiglipVisionModel(T.SiglipVisionConfig(**sizes())),
    "swin": swin,
}
TEXTS: dict[str, Callable[[], Any]] = {
    "bert": lambda: T.BertForMaskedLM(T.BertConfig(**text_sizes())),
    "clip_text_model": lambda: T.CLIPTextModelWithProjection(
        T.CLIPTextConfig(**text_sizes(), projection_dim=24, bos_token_id=9, eos_token_id=10)
    ),
    "siglip_text_model": lambda: siglip().text_model,
}
TOWERS = ("clip_b16", "siglip", "siglip2_fixed", *TEXTS)  # that read texts


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small random checkpoint of each family, as its authors save them."""
    found = {}
    for name, build in {**IMAGES, **TEXTS}.items():
        torch.manual_seed(0)
        found[name] = tmp_path_factory.mktemp(name)
        build().save_pretrained(found[name])
        pixels = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
        if name not in TEXTS:
            (found[name] / "preprocessor_config.json").write_text(json.dumps(pixels))
        if name in TOWERS:
            write_tokenizer(found[name], name)
    return found


def write_tokenizer(folder: Path, name: str) -> None:
    """As the hub has them: SigLIP 1 names a class that needs another package, SigLIP 2 Gemma's."""
    if name == "bert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s", "run"]
        (folder / "vocab.txt").write_text("\n".join(words) + "\n")
        return
    if name.startswith("clip"):
        words = ["a</w>", "d", "o", "g</w>", "do", "dog</w>", "s</w>", "dog", "g"]
        ids = {word: i for i, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
        merges = [("d", "o"), ("do", "g</w>"), ("do", "g")]
        T.CLIPTokenizer(vocab=ids, merges=merges).save_pretrained(folder)
        return
    if name in ("siglip", "siglip_text_model"):
        pieces = ["<pad>", "</s>", "<unk>", "▁a", "▁dog", "s", "▁"]
        model: Any = models.Unigram([(p, -float(i)) for i, p in enumerate(pieces)], unk_id=2)
        cut: Any = pre_tokenizers.Metaspace()
        kind, end, padding, normalised = "SiglipTokenizer", "</s>", "</s>", None
    else:
        pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", "a", "d", "o", "g", "s"]
        merges = [("▁", "d"), ("▁d", "o"), ("▁do", "g")]
        ids = {p: i for i, p in enumerate([*pieces, "▁d", "▁do", "▁dog"])}
        model = models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        cut = pre_tokenizers.Split(" ", "merged_with_previous")
        kind, end, padding = "GemmaTokenizerFast", "<eos>", "<pad>"
        normalised = normalizers.Replace(" ", "▁")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = cut
    if normalised is not None:
        tokenizer.normalizer = normalised
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": kind, "eos_token": end, "pad_token": padding, "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def reid(folder: Path | str, patch: int = 8, **backbone: Any) -> ReidConfig:
    config = parse_config(
        {
            "data": {"height": 4 * patch, "width": 2 * patch, "batch_size": 4, "instances": 2},
            "backbone": {"name": "checkpoint", "weights": str(folder), **backbone},
            "sdtps": {"decision": "gumbel_ste", "mask": "log"},
        }
    )
    assert isinstance(config, ReidConfig)
    return config


def retrieval(images: Path | None = None, texts: Path | None = None, **data: Any) -> RetrievalConfig:
    words = {"name": "tiny_bert", "width": 16}
    if texts is not None:
        words = {"name": "checkpoint", "weights": str(texts)}
    tree: dict[str, Any] = {
        "task": "retrieval",
        "text_encoder": words,
        "data": {"max_words": PLACES, "max_dense_words": PLACES, **data},
        "matching": {"embed": 16},
    }
    if images is not None:
        size = 3 * read_image(str(images)).patch
        tree["image_encoder"] = {"name": "checkpoint", "weights": str(images), "size": size}
    config = parse_config(tree)
    assert isinstance(config, RetrievalConfig)
    return config


def steps(model: torch.nn.Module, loss: Callable[[int], torch.Tensor]) -> None:
    """Two optimiser steps, the second from a smaller loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for step in (1, 2):
        optimizer.zero_grad()
        found = loss(step)
        found.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(found.item())
    assert losses[1] < losses[0]


def test_every_family_is_tried(folders: dict[str, Path]) -> None:
    kinds = {json.loads((f / "config.json").read_text())["model_type"] for f in folders.values()}
    assert kinds == FAMILIES.keys() | TEXT_FAMILIES.keys()


@pytest.mark.parametrize("name", IMAGES)
def test_a_folder_says_what_its_encoder_is(folders: dict[str, Path], name: str) -> None:
    found = read_image(str(folders[name]))
    patch = {"clip_b16": 16, "clip_b32": 32, "clip_l14": 14}.get(name, 8)
    assert (found.patch, found.size) == (patch, 4 * patch)
    assert found.width == (24 if name.startswith("clip") else 32)
    without = name == "swin" or name.startswith("siglip")
    assert found.prefix == {"deit": 2, "dinov2_with_registers": 5}.get(name, 0 if without else 1)
    assert (found.mean, found.std) == ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    assert patch_size(reid(folders[name]).backbone) == patch


@pytest.mark.parametrize("name", IMAGES)
def test_two_steps_in_both_tasks(folders: dict[str, Path], name: str) -> None:
    folder = folders[name]
    found = read_image(str(folder))
    torch.manual_seed(0)
    config = reid(folder, found.patch, camera_embedding=found.prefix > 0)
    model = ReidModel(config, pids=2, cameras=2).train()
    assert model.backbone is not None and model.backbone.patches == 4 * 2
    images = torch.randn(3, 4, 3, config.data.height, config.data.width)
    batch = ReidBatch(images, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]))
    steps(model, lambda step: reid_loss(model, config, batch)[0])
    names = {id(p): n for n, p in model.named_parameters()}
    assert [names[id(p)] for p in trunk(model) if p.requires_grad and p.grad is None] == []

    texts = folder if name in TOWERS else folders["bert"]
    matching = retrieval(folder, texts)
    shape = image_shape(matching.image_encoder)
    assert (shape.patches, shape.class_token) == (9, found.prefix > 0)
    encoder, words = build_image_encoder(matching.image_encoder), text_encoder(matching)
    net = RetrievalModel(matching, shape, encoder, words).train()
    size = matching.image_encoder.size
    captions = batch_of(words, ["a dog", "dogs", "dog dogs a", "a"])
    pairs = RetrievalBatch(torch.randn(4, 3, size, size), captions, captions, torch.arange(4))

    def loss(step: int) -> torch.Tensor:
        torch.manual_seed(0)  # BERT's dropout
        return retrieval_loss(net, matching, pairs, epoch=2, step=step, steps_per_epoch=2)[0]

    steps(net, loss)
    for part in (encoder, words):
        named = [(n, p) for n, p in part.named_parameters() if p.requires_grad]
        assert [n for n, p in named if p.grad is None] == []


def text_encoder(config: RetrievalConfig) -> TextEncoder:
    return build_text_encoder(config.text_encoder, [])


def batch_of(encoder: TextEncoder, texts: list[str]) -> TextBatch:
    found = tokenised(texts, encoder.vocabulary)
    rows = [found.of(i, encoder.vocabulary, PLACES) for i in range(len(texts))]
    return TextBatch(*padded(rows, encoder.vocabulary.padding))


@pytest.mark.parametrize("name", IMAGES)
def test_a_checkpoint_of_another_family_is_refused_by_name(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    shutil.copytree(folders[name], tmp_path / "x")
    other = folders["dinov2" if name != "dinov2" else "vit"]
    shutil.copy(other / "model.safetensors", tmp_path / "x" / "model.safetensors")
    kind = read_image(str(folders[name])).kind
    text = refused(reid(tmp_path / "x", read_image(str(folders[name])).patch))
    assert f"does not fit its config.json ({kind})" in text and "missing: " in text
    if name in TOWERS:
        with pytest.raises(WeightsError, match=rf"config\.json \({kind}\)[^$]*missing: "):
            text_encoder(retrieval(texts=tmp_path / "x"))


# -- text towers ------------------------------------------------------------------------------------


EXPECTED = {  # special tokens in front and after, padding; "A dog dogs" as words
    "bert": ((2,), (3,), 0, [[5], [6], [6, 7]]),
    "clip_b16": ((9,), (10,), 10, [[0], [5], [7, 6]]),
    "siglip": ((), (1,), 1, [[3], [4], [4, 5]]),
    "siglip2_fixed": ((), (1,), 0, [[6], [13], [13, 10]]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_tokenizers_words_and_special_tokens_are_its_own(folders: dict[str, Path], name: str) -> None:
    vocabulary = text_encoder(retrieval(texts=folders[name])).vocabulary
    found = (vocabulary.start, vocabulary.end, vocabulary.padding, *vocabulary.words(["A dog dogs"]))
    assert found == EXPECTED[name]
    assert (vocabulary.words(["a dog."]) == vocabulary.words(["a dog"])) == (name == "siglip")


@pytest.mark.parametrize("name", TOWERS)
def test_words_are_the_towers_own_and_do_not_depend_on_the_batch(
    folders: dict[str, Path], name: str
) -> None:
    """Alone and beside a longer text, as transformers' class gives them from the same folder."""
    encoder = text_encoder(retrieval(texts=folders[name])).eval()
    batch = batch_of(encoder, ["a dog", "dogs dogs a a"])
    (length, _), (ids, _) = batch.lengths.tolist(), batch.values
    with torch.no_grad():
        words = encoder(batch.values, batch.lengths)[0, :length]
        alone = encoder(ids[None, :length], batch.lengths[:1])[0]
    torch.testing.assert_close(words, alone, rtol=1e-5, atol=1e-6)
    kind = json.loads((folders[name] / "config.json").read_text())["model_type"]
    tower = getattr(T, TEXT_FAMILIES[kind]).from_pretrained(folders[name]).eval()
    with torch.no_grad():
        if "siglip" in name:
            padding = (0, PLACES - length)
            filled = torch.nn.functional.pad(ids[:length], padding, value=encoder.vocabulary.padding)
            hidden = tower(input_ids=filled[None]).last_hidden_state[0]
            expected = torch.cat([hidden[: length - 1], hidden[-1:]])
        else:
            found = tower(input_ids=ids[None, :length])
            expected = found.last_hidden_state[0]
            if name != "bert":
                expected = tower.text_projection(expected)
                torch.testing.assert_close(words[-1], found.text_embeds[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(words, expected, rtol=1e-5, atol=1e-6)


def test_texts_longer_than_the_tower_takes_are_refused(folders: dict[str, Path]) -> None:
    config = retrieval(folders["clip_b16"], folders["clip_b16"], max_dense_words=90)
    with pytest.raises(ConfigError, match=r"data\.max_dense_words is 90.*10 tokens at most"):
        check_text_limits(config)
    check_text_limits(retrieval(texts=folders["clip_b16"]))
    assert any("max_dense_words is 90" in text for text in look(config).mistakes)


def test_a_tokenizer_that_is_missing_or_of_another_checkpoint_is_told(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(folders["clip_b16"], tmp_path / "x")
    for file in (tmp_path / "x").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(WeightsError, match="no tokenizer beside the weights"):
        text_encoder(retrieval(texts=tmp_path / "x"))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(40))]
    shutil.copytree(folders["bert"], tmp_path / "y")
    (tmp_path / "y" / "vocab.txt").write_text("\n".join(words))
    with pytest.raises(WeightsError, match="has 45 entries, the encoder's table 20"):
        text_encoder(retrieval(texts=tmp_path / "y"))
    with pytest.raises(WeightsError, match="'vit', which is no text tower known here"):
        text_encoder(retrieval(texts=folders["vit"]))


# -- image encoders ---------------------------------------------------------------------------------


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


def refused(config: ReidConfig, cameras: int = 0) -> str:
    with pytest.raises(SdtpsError) as told:
        build_backbone(config.backbone, config.data.height, config.data.width, cameras)
    return str(told.value)


def test_an_incomplete_folder_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"has no config\.json"):
        read_image(str(tmp_path))


def test_what_a_family_cannot_do_is_said(folders: dict[str, Path]) -> None:
    assert "camera_embedding is added to the class token" in refused(reid(folders["siglip"]), 2)
    with pytest.raises(ConfigError, match="no multiple of 8"):
        build_backbone(reid(folders["vit"]).backbone, 60, 32, 0)
    with pytest.raises(ConfigError, match="name checkpoint needs weights"):
        reid("random")
    with pytest.raises(ConfigError, match=r"1x4 places at the end.*sides must be 16 pixels or more"):
        build_backbone(reid(folders["swin"], camera_embedding=False).backbone, 8, 32, 0)


def test_folders_are_listed_with_what_was_recognised(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    save_file({"a": torch.zeros(1)}, tmp_path / "other" / "model.safetensors")
    (tmp_path / "other" / "config.json").write_text(json.dumps({"model_type": "convnext"}))
    named = [str(folders[name]) for name in ("deit", "siglip", "bert")]
    assert main(["backbones", *named, str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    kinds = ("images: deit,", "images: siglip,", "texts: siglip,", "texts: bert,", "not recognised: ")
    assert all(kind in line for kind, line in zip(kinds, lines, strict=True))
    assert main(["backbones", str(tmp_path)]) == 1
