"""Checkpoints as their authors publish them: Hugging Face folders of image encoders and text towers.

A folder says what it is: config.json the family and its sizes, preprocessor_config.json how pixels are
normalised, the tokenizer's files how texts become ids. `read_image` and `read_text` read that without a
weight; `ImageTower` and `TextTower` load the weights, strictly, and hand on tokens and words.

    images   CLIP (any patch size), ViT, DeiT, DINOv2 (with registers too), SigLIP, SigLIP 2, Swin
    texts    BERT, CLIP, SigLIP, SigLIP 2

SigLIP 2's checkpoints of fixed image size say `siglip`; those of any size (NaFlex) say `siglip2`.
Nothing is downloaded. `sdtps backbones FOLDER` prints what was recognised.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sdtps.models.weights import find_weights, not_finite, refuse
from sdtps.system.errors import ConfigError, WeightsError

# What of a checkpoint is no part of an encoder: heads, poolers, constants.
HEADS = re.compile(
    r"(\w+\.)?(logit_|cls\.|\w*classifier|pooler\.|head\.|pre_logits\.|_fc\.|"
    r"embeddings\.(mask_token|position_ids))"
)
OTHER_TOWER = {
    "images": ("text_model.", "text_projection"),
    "texts": ("vision_model.", "visual_projection"),
}
PREFIXES = ("vit.", "deit.", "dinov2.", "dinov2_with_registers.", "swin.", "bert.")


@dataclass(frozen=True)
class Family:
    """A kind of image encoder.

    Attributes:
        model: name of transformers' class; built without pooler where it has one.
        prefix: tokens in front of the patches; the first is the class token, if there are any.
        pooler: whether the class takes `add_pooling_layer`.
        asks: whether positions are interpolated only when asked for.
        any_size: NaFlex: takes patches and their grid instead of an image.
    """

    model: str
    prefix: int = 1
    pooler: bool = False
    asks: bool = True
    any_size: bool = False


FAMILIES = {
    "clip": Family("CLIPVisionModelWithProjection"),
    "clip_vision_model": Family("CLIPVisionModelWithProjection"),
    "vit": Family("ViTModel", pooler=True),
    "deit": Family("DeiTModel", prefix=2, pooler=True),
    "dinov2": Family("Dinov2Model", asks=False),
    "dinov2_with_registers": Family("Dinov2WithRegistersModel", asks=False),
    "siglip": Family("SiglipVisionModel", prefix=0),
    "siglip_vision_model": Family("SiglipVisionModel", prefix=0),
    "siglip2": Family("Siglip2VisionModel", prefix=0, any_size=True),
    "siglip2_vision_model": Family("Siglip2VisionModel", prefix=0, any_size=True),
    "swin": Family("SwinModel", prefix=0, pooler=True, asks=False),
}


@dataclass(frozen=True)
class TextFamily:
    """A kind of text tower.

    Attributes:
        model: name of transformers' class.
        masked: padding is masked; elsewhere it follows the words, and a causal mask hides it (CLIP).
        padded: texts are padded to all places without a mask, as the tower was trained, and the last
            place is what it pools (SigLIP).
    """

    model: str
    masked: bool = False
    padded: bool = False


TEXT_FAMILIES = {
    "bert": TextFamily("BertModel", masked=True),
    "clip": TextFamily("CLIPTextModelWithProjection"),
    "clip_text_model": TextFamily("CLIPTextModelWithProjection"),
    "siglip": TextFamily("SiglipTextModel", padded=True),
    "siglip_text_model": TextFamily("SiglipTextModel", padded=True),
    "siglip2": TextFamily("Siglip2TextModel", padded=True),
    "siglip2_text_model": TextFamily("Siglip2TextModel", padded=True),
}


@dataclass(frozen=True)
class ImageCheckpoint:
    """What a folder says of its image encoder.

    Attributes:
        patch: pixels of a token's side: the patch, in Swin after all its mergings.
        prefix: tokens in front of the patches, registers included.
        width: channels of the tokens handed on.
        size: pixels that it was trained at.
        mean, std: how its pixels, in [0, 1], are normalised.
    """

    folder: Path
    family: Family
    kind: str
    settings: Any
    patch: int
    prefix: int
    width: int
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __str__(self) -> str:
        tokens = f"{self.prefix} class or register token{'s' * (self.prefix != 1)}"
        return (
            f"images: {self.kind}, patches of {self.patch} pixels, trained at {self.size}, "
            f"{self.width} channels, {tokens if self.prefix else 'no class token'}"
        )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches.

        Raises:
            ConfigError: the size is no multiple of the patch, or too small for Swin's windows.
        """
        if height % self.patch or width % self.patch:
            raise ConfigError(
                f"images of {height}x{width} are no multiple of {self.patch}, the patch size of "
                f"{self.folder}"
            )
        rows, columns = height // self.patch, width // self.patch
        window = self.settings.window_size if self.kind == "swin" else 1
        if min(rows, columns) < window:
            raise ConfigError(
                f"images of {height}x{width} give {rows}x{columns} places at the end, fewer than the "
                f"windows of {self.folder} ({window}x{window}): its sides must be "
                f"{window * self.patch} pixels or more"
            )
        return rows, columns


@dataclass(frozen=True)
class TextCheckpoint:
    """What a folder says of its text tower.

    Attributes:
        places: ids that a text has at most, special ones included.
        width: channels of the words handed on.
        tokens: entries of its table of ids.
    """

    folder: Path
    family: TextFamily
    kind: str
    settings: Any
    places: int
    width: int
    tokens: int

    def __str__(self) -> str:
        return f"texts: {self.kind}, {self.places} tokens at most, {self.width} channels"


def _settings_of(weights: str, known: dict[str, Any], part: str, what: str) -> tuple[Path, str, Any]:
    """Folder, family and the settings of one part of a checkpoint.

    Raises:
        WeightsError: no folder with a config.json, or of a family that is not `known`.
    """
    folder = find_weights(weights).parent
    kind = str(_json(folder / "config.json").get("model_type"))
    if kind not in known:
        raise WeightsError(
            f"{folder}: config.json names the model type '{kind}', which is no {what} known here; "
            f"known are {', '.join(known)}"
        )
    import transformers

    settings = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    return folder, kind, getattr(settings, part, settings)


@lru_cache(maxsize=32)
def read_image(weights: str) -> ImageCheckpoint:
    """What the folder behind `weights` says of its image encoder; no weight is read.

    Raises:
        WeightsError: no folder with a config.json, or of a kind that is not known here.
    """
    folder, kind, settings = _settings_of(weights, FAMILIES, "vision_config", "image encoder")
    if hasattr(settings, "vision_use_head"):
        settings.vision_use_head = False  # SigLIP's pooling
    family = FAMILIES[kind]
    pixels = _json(folder / "preprocessor_config.json")
    patch = settings.patch_size
    if kind == "swin":
        patch *= 2 ** (len(settings.depths) - 1)
    size = settings.image_size if not family.any_size else round(settings.num_patches**0.5) * patch
    return ImageCheckpoint(
        folder,
        family,
        kind,
        settings,
        patch=patch,
        prefix=family.prefix + getattr(settings, "num_register_tokens", 0),
        width=_width(family.model, settings),
        size=size,
        mean=tuple(pixels["image_mean"]),
        std=tuple(pixels["image_std"]),
    )


@lru_cache(maxsize=32)
def read_text(weights: str) -> TextCheckpoint:
    """What the folder behind `weights` says of its text tower; no weight is read.

    Raises:
        WeightsError: no folder with a config.json, or of a kind that is not known here.
    """
    folder, kind, settings = _settings_of(weights, TEXT_FAMILIES, "text_config", "text tower")
    family = TEXT_FAMILIES[kind]
    return TextCheckpoint(
        folder,
        family,
        kind,
        settings,
        places=settings.max_position_embeddings,
        width=_width(family.model, settings),
        tokens=settings.vocab_size,
    )


def _width(model: str, settings: Any) -> int:
    projected = model.endswith("WithProjection")
    return int(settings.projection_dim if projected else settings.hidden_size)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeightsError(
            f"{path.parent}: has no {path.name}. A checkpoint is a Hugging Face folder with "
            "config.json, preprocessor_config.json (for images), its tokenizer (for texts) and "
            "model.safetensors"
        ) from None
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from None
    wanted = ("image_mean", "image_std") if path.name.startswith("preprocessor") else ("model_type",)
    missing = [key for key in wanted if not isinstance(found, dict) or key not in found]
    if missing:
        raise WeightsError(f"{path}: says nothing of {' and '.join(missing)}")
    return dict(found)


def load_network(checkpoint: ImageCheckpoint | TextCheckpoint) -> nn.Module:
    """The folder's image encoder or text tower with its weights.

    Raises:
        WeightsError: weights that do not fit the configuration, or are not finite; names them.
    """
    import transformers

    kind = getattr(transformers, checkpoint.family.model)
    without_pooler = checkpoint.kind == "bert" or getattr(checkpoint.family, "pooler", False)
    options: dict[str, Any] = {"add_pooling_layer": False} if without_pooler else {}
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        network, told = kind.from_pretrained(
            checkpoint.folder,
            config=checkpoint.settings,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below
            dtype=torch.float32,
            **options,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise WeightsError(f"{checkpoint.folder}: {str(error)[:300]}") from None
    other = OTHER_TOWER["images" if isinstance(checkpoint, ImageCheckpoint) else "texts"]
    unexpected = [n for n in told["unexpected_keys"] if not (n.startswith(other) or HEADS.match(n))]
    refuse(
        f"{checkpoint.folder} does not fit its config.json ({checkpoint.kind})",
        {
            "missing": sorted(told["missing_keys"]),
            "unexpected": sorted(unexpected),
            "of another shape": sorted(str(m[0]) for m in told.get("mismatched_keys", ())),
            "with NaN or infinite values": not_finite(network.state_dict()),
        },
    )
    for name, parameter in network.named_parameters():
        if name.endswith("mask_token"):  # of DINOv2's own training; nothing here reads it
            parameter.requires_grad_(False)
    return network  # type: ignore[no-any-return]


class ImageTower(nn.Module):
    """Pixels (n, 3, H, W) -> class token, if there is one, and patches, (n, 1 + N, C) or (n, N, C).

    CLIP's tokens are normalised and projected, all of them (as DeMo does); the others' are the last
    layer's, normalised. Distillation and register tokens are left out.
    """

    def __init__(self, checkpoint: ImageCheckpoint) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.network = load_network(checkpoint)
        self.has_class = checkpoint.prefix > 0
        self.trunk: Any = getattr(self.network, "vision_model", self.network)

    def forward(self, pixels: Tensor) -> Tensor:
        found, family = self.checkpoint, self.checkpoint.family
        if family.any_size:
            hidden = self._of_patches(pixels)
        else:
            options = {"interpolate_pos_encoding": True} if family.asks else {}
            hidden = self.trunk(pixel_values=pixels, **options).last_hidden_state
        if family.model.endswith("WithProjection"):
            hidden = self.network.visual_projection(self.trunk.post_layernorm(hidden))  # type: ignore[operator]
        patches = hidden[:, found.prefix :]
        if not self.has_class:
            return patches
        return torch.cat([hidden[:, :1], patches], dim=1)

    def _of_patches(self, pixels: Tensor) -> Tensor:
        """SigLIP 2 of any size: patches in reading order, their pixels' channels last."""
        n, channels, height, width = pixels.shape
        side = self.checkpoint.patch
        rows, columns = height // side, width // side
        cut = pixels.view(n, channels, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
        patches = cut.reshape(n, rows * columns, -1)
        shapes = torch.tensor([[rows, columns]], device=pixels.device).expand(n, 2)
        present = patches.new_ones(n, rows * columns, dtype=torch.long)
        hidden: Tensor = self.trunk(
            pixel_values=patches, pixel_attention_mask=present, spatial_shapes=shapes
        ).last_hidden_state
        return hidden


class TextTower(nn.Module):
    """Ids (T, L) and lengths (T) -> words (T, L, C); special tokens are words too.

    The last word is the tower's own feature of the whole text, where it has one: CLIP's end token, and
    for SigLIP the last of all its places, put where the end token stands. CLIP's words are projected,
    as its patches are (`ImageTower`); SigLIP's and BERT's are the last layer's, normalised.

    Args:
        padding: the id that fills the places after a text.
    """

    def __init__(self, checkpoint: TextCheckpoint, padding: int) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.padding = padding
        self.network: Any = load_network(checkpoint)
        if checkpoint.family.padded:
            self.network.head = nn.Identity()  # acts on the pooled token alone

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        family, (_, longest) = self.checkpoint.family, ids.shape
        places = self.checkpoint.places if family.padded else longest
        place = torch.arange(places, device=ids.device)
        present = place < lengths[:, None]
        if family.padded:  # as in its training: to the end, without a mask
            ids = nn.functional.pad(ids, (0, places - longest), value=self.padding)
            ids = ids.masked_fill(~present, self.padding)
            hidden: Tensor = self.network(input_ids=ids).last_hidden_state
            is_end = place == lengths[:, None] - 1
            words = torch.where(is_end.unsqueeze(-1), hidden[:, -1:], hidden)
            return words[:, :longest]
        if family.masked:
            masked: Tensor = self.network(
                input_ids=ids, attention_mask=present.to(torch.long)
            ).last_hidden_state
            return masked
        hidden = self.network.text_model(input_ids=ids).last_hidden_state
        projected: Tensor = self.network.text_projection(hidden)
        return projected


def compile_layers(network: nn.Module, **options: Any) -> None:
    """Compile the layers that a network repeats: the members of its innermost module lists."""
    for module in network.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if not any(isinstance(part, nn.ModuleList) for part in layer.modules()):
                    layer.compile(**options)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb `backbones`."""
    parser.add_argument("folder", type=Path, nargs="+", help="a checkpoint, or a folder of some")


def command(arguments: argparse.Namespace) -> int:
    """Print what each folder holds, for images and for texts; 1 where nothing was recognised."""
    recognised = 0
    for root in arguments.folder:
        folders = sorted({file.parent for file in root.rglob("config.json")})
        for folder in folders or [root]:
            try:
                kind = str(_json(folder / "config.json").get("model_type"))
                fitting: list[Callable[[str], object]] = []
                fitting += [read_image] * (kind in FAMILIES) + [read_text] * (kind in TEXT_FAMILIES)
                if not fitting:
                    known = ", ".join(sorted(FAMILIES.keys() | TEXT_FAMILIES.keys()))
                    print(f"{folder}: not recognised: model type '{kind}'; known are {known}")
                for read in fitting:
                    print(f"{folder}: {read(str(folder))}")
                    recognised += 1
            except WeightsError as error:
                print(f"{folder}: not recognised: {error}")
    return 0 if recognised else 1
