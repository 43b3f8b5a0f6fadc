"""Checkpoints as their authors publish them: Hugging Face folders of image encoders and text towers.

A folder says what it is: config.json the family and its sizes, preprocessor_config.json how pixels are
normalised, the tokenizer's files how texts become ids. `read_image` and `read_text` read that without a
weight; `ImageTower` and `TextTower` load the weights, strictly, and hand on tokens and words.

    images   CLIP (any patch size), ViT, DeiT, DINOv2 (with registers too), SigLIP, Swin
    texts    BERT, CLIP, SigLIP

SigLIP 2's checkpoints of fixed image size are `siglip`, too.
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


CLIP = "CLIPVisionModelWithProjection"
# Model type -> class of transformers, and tokens in front of the patches, the class token first.
FAMILIES = {
    "clip": (CLIP, 1),
    "clip_vision_model": (CLIP, 1),
    "vit": ("ViTModel", 1),
    "deit": ("DeiTModel", 2),
    "dinov2": ("Dinov2Model", 1),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", 1),
    "siglip": ("SiglipVisionModel", 0),
    "siglip_vision_model": ("SiglipVisionModel", 0),
    "swin": ("SwinModel", 0),
}
TEXT_FAMILIES = {
    "bert": "BertModel",
    "clip": "CLIPTextModelWithProjection",
    "clip_text_model": "CLIPTextModelWithProjection",
    "siglip": "SiglipTextModel",
    "siglip_text_model": "SiglipTextModel",
}
WITH_POOLER = ("ViTModel", "DeiTModel", "SwinModel", "BertModel")  # that nothing here reads
INTERPOLATING = (CLIP, "ViTModel", "DeiTModel", "SiglipVisionModel")  # positions, when asked


@dataclass(frozen=True)
class ImageCheckpoint:
    """What a folder says of its image encoder.

    Attributes:
        model: name of transformers' class.
        patch: pixels of a token's side: the patch, in Swin after all its mergings.
        prefix: tokens in front of the patches, registers included.
        width: channels of the tokens handed on.
        size: pixels that it was trained at.
        mean, std: how its pixels, in [0, 1], are normalised.
    """

    folder: Path
    model: str
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
        model: name of transformers' class.
        places: ids that a text has at most, special ones included.
        width: channels of the words handed on.
        tokens: entries of its table of ids.
    """

    folder: Path
    model: str
    kind: str
    settings: Any
    places: int
    width: int
    tokens: int

    @property
    def is_padded(self) -> bool:
        """Whether texts are padded to all places without a mask, as in SigLIP's training.

        The last place is what it pools. BERT masks padding; a causal mask hides CLIP's.
        """
        return self.model == "SiglipTextModel"

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
    model, prefix = FAMILIES[kind]
    pixels = _json(folder / "preprocessor_config.json")
    patch = settings.patch_size
    if kind == "swin":
        patch *= 2 ** (len(settings.depths) - 1)
    return ImageCheckpoint(
        folder,
        model,
        kind,
        settings,
        patch=patch,
        prefix=prefix + getattr(settings, "num_register_tokens", 0),
        width=_width(model, settings),
        size=settings.image_size,
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
    model = TEXT_FAMILIES[kind]
    return TextCheckpoint(
        folder,
        model,
        kind,
        settings,
        places=settings.max_position_embeddings,
        width=_width(model, settings),
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

    kind = getattr(transformers, checkpoint.model)
    options: dict[str, Any] = {}
    if checkpoint.model in WITH_POOLER:
        options["add_pooling_layer"] = False
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
        found = self.checkpoint
        options = {"interpolate_pos_encoding": True} if found.model in INTERPOLATING else {}
        hidden = self.trunk(pixel_values=pixels, **options).last_hidden_state
        if found.model == CLIP:
            hidden = self.network.visual_projection(self.trunk.post_layernorm(hidden))  # type: ignore[operator]
        patches = hidden[:, found.prefix :]
        if not self.has_class:
            return patches
        return torch.cat([hidden[:, :1], patches], dim=1)


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
        if checkpoint.is_padded:
            self.network.head = nn.Identity()  # acts on the pooled token alone

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        is_padded, longest = self.checkpoint.is_padded, ids.shape[1]
        places = self.checkpoint.places if is_padded else longest
        place = torch.arange(places, device=ids.device)
        present = place < lengths[:, None]
        if is_padded:  # as in its training: to the end, without a mask
            ids = nn.functional.pad(ids, (0, places - longest), value=self.padding)
            ids = ids.masked_fill(~present, self.padding)
            hidden: Tensor = self.network(input_ids=ids).last_hidden_state
            is_end = place == lengths[:, None] - 1
            words = torch.where(is_end.unsqueeze(-1), hidden[:, -1:], hidden)
            return words[:, :longest]
        if self.checkpoint.kind == "bert":
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
