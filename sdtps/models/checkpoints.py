"""Image encoders from a Hugging Face folder, built as the folder's own config.json says.

CLIP (any patch size), ViT, DeiT, DINOv2 (with registers too) and SigLIP (SigLIP 2's checkpoints of
fixed size say `siglip`). Patch size, width, class tokens and the normalisation of pixels are read from
the folder; the position table is interpolated to the images' grid by the model's own rule. Nothing is
downloaded. `sdtps backbones FOLDER` prints what was recognised.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sdtps.data.augment import DEVIATION, MEAN
from sdtps.errors import ConfigError, WeightsError
from sdtps.models.weights import find_weights

# Parts of a checkpoint that have no place in an image encoder: text towers, heads, poolers.
LEFT_OUT = (
    "text_model.",
    "text_projection",
    "logit_",
    "classifier",
    "cls_classifier",
    "distillation_classifier",
    "pooler.",
    "head.",
    "vision_model.head.",
    "embeddings.mask_token",
    "embeddings.position_ids",
    "vision_model.embeddings.position_ids",
)


@dataclass(frozen=True)
class Family:
    """A kind of checkpoint.

    Attributes:
        model: name of transformers' class; built without pooler where it has one.
        prefix: tokens in front of the patches; the first is the class token, if there are any.
        pooler: whether the class takes `add_pooling_layer`.
        asks: whether positions are interpolated only when asked for.
    """

    model: str
    prefix: int = 1
    pooler: bool = False
    asks: bool = True


FAMILIES = {
    "clip": Family("CLIPVisionModelWithProjection"),
    "clip_vision_model": Family("CLIPVisionModelWithProjection"),
    "vit": Family("ViTModel", pooler=True),
    "deit": Family("DeiTModel", prefix=2, pooler=True),
    "dinov2": Family("Dinov2Model", asks=False),
    "dinov2_with_registers": Family("Dinov2WithRegistersModel", asks=False),
    "siglip": Family("SiglipVisionModel", prefix=0),
    "siglip_vision_model": Family("SiglipVisionModel", prefix=0),
}


@dataclass(frozen=True)
class Checkpoint:
    """What a folder says of its image encoder.

    Attributes:
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

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches.

        Raises:
            ConfigError: the size is no multiple of the patch.
        """
        if height % self.patch or width % self.patch:
            raise ConfigError(
                f"images of {height}x{width} are no multiple of {self.patch}, the patch size of "
                f"{self.folder}"
            )
        return height // self.patch, width // self.patch


@lru_cache(maxsize=32)
def read_checkpoint(weights: str) -> Checkpoint:
    """What the folder behind `weights` holds; no weight is read.

    Raises:
        WeightsError: no folder with a config.json, or of a kind that is not known here.
    """
    folder = find_weights(weights).parent
    tree = _json(folder / "config.json")
    kind = str(tree.get("model_type"))
    if kind not in FAMILIES:
        raise WeightsError(
            f"{folder}: config.json names the model type '{kind}'; known are {', '.join(FAMILIES)}"
        )
    import transformers

    settings = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    settings = getattr(settings, "vision_config", settings)
    if hasattr(settings, "vision_use_head"):
        settings.vision_use_head = False  # SigLIP's pooling
    family = FAMILIES[kind]
    has_projection = family.model.endswith("WithProjection")
    pixels = _json(folder / "preprocessor_config.json")
    return Checkpoint(
        folder,
        family,
        kind,
        settings,
        patch=settings.patch_size,
        prefix=family.prefix + getattr(settings, "num_register_tokens", 0),
        width=settings.projection_dim if has_projection else settings.hidden_size,
        size=settings.image_size,
        mean=tuple(pixels["image_mean"]),
        std=tuple(pixels["image_std"]),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeightsError(
            f"{path.parent}: has no {path.name}. A checkpoint is a Hugging Face folder with "
            "config.json, preprocessor_config.json and model.safetensors"
        ) from None
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from None
    wanted = ("image_mean", "image_std") if path.name.startswith("preprocessor") else ("model_type",)
    missing = [key for key in wanted if not isinstance(found, dict) or key not in found]
    if missing:
        raise WeightsError(f"{path}: says nothing of {' and '.join(missing)}")
    return dict(found)


def load_network(checkpoint: Checkpoint) -> nn.Module:
    """The folder's image encoder with its weights.

    Raises:
        WeightsError: weights that do not fit the configuration, or are not finite; names them.
    """
    import transformers

    kind = getattr(transformers, checkpoint.family.model)
    options: dict[str, Any] = {"add_pooling_layer": False} if checkpoint.family.pooler else {}
    told_before = transformers.logging.get_verbosity()
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
    finally:
        transformers.logging.set_verbosity(told_before)
    missing = list(told["missing_keys"])
    unexpected = [name for name in told["unexpected_keys"] if not _left_out(name)]
    wrong = [("missing", missing), ("unexpected", unexpected)]
    wrong.append(("of another shape", [str(m[0]) for m in told.get("mismatched_keys", ())]))
    wrong.append(("not finite", [n for n, p in network.state_dict().items() if not _finite(p)]))
    found = [f"{len(names)} {what}: {', '.join(sorted(names)[:8])}" for what, names in wrong if names]
    if found:
        raise WeightsError(
            f"{checkpoint.folder} does not fit its config.json:\n  " + "\n  ".join(found)
        )
    for name, parameter in network.named_parameters():
        if name.endswith("mask_token"):  # of DINOv2's own training; nothing here reads it
            parameter.requires_grad_(False)
    return network


def _left_out(name: str) -> bool:
    for prefix in ("vit.", "deit.", "dinov2.", "dinov2_with_registers."):
        name = name.removeprefix(prefix)
    return name.startswith(LEFT_OUT)


def _finite(values: Tensor) -> bool:
    return not values.is_floating_point() or bool(torch.isfinite(values).all())


class CheckpointEncoder(nn.Module):
    """Pixels (n, 3, H, W) -> class token, if there is one, and patches, (n, 1 + N, C) or (n, N, C).

    CLIP's tokens are normalised and projected, all of them (as DeMo does); the others' are the last
    layer's, normalised. Distillation and register tokens are left out.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.network = load_network(checkpoint)
        self.has_class = checkpoint.prefix > 0
        self.trunk: Any = getattr(self.network, "vision_model", self.network)

    def forward(self, pixels: Tensor) -> Tensor:
        options = (
            {} if self.checkpoint.kind.startswith("dinov2") else {"interpolate_pos_encoding": True}
        )
        hidden = self.trunk(pixel_values=pixels, **options).last_hidden_state
        if self.checkpoint.family.model.endswith("WithProjection"):
            hidden = self.network.visual_projection(self.trunk.post_layernorm(hidden))  # type: ignore[operator]
        patches = hidden[:, self.checkpoint.prefix :]
        if not self.has_class:
            return patches
        return torch.cat([hidden[:, :1], patches], dim=1)


class CheckpointBackbone(nn.Module):
    """A checkpoint as the encoder of re-identification: class tokens [n, C] and patches [n, N, C].

    An encoder without class token (SigLIP) hands on the mean of its patches in its place. Pixels come
    normalised as DeMo's, and are brought to the checkpoint's own normalisation.

    Args:
        cameras: rows of the camera table; 0 = no camera embedding.
    """

    def __init__(
        self,
        weights: str,
        height: int,
        width: int,
        *,
        cameras: int,
        coefficient: float,
        deviation: float,
    ) -> None:
        super().__init__()
        checkpoint = read_checkpoint(weights)
        rows, columns = checkpoint.grid(height, width)
        if cameras and not checkpoint.prefix:
            raise ConfigError(
                f"backbone.camera_embedding is added to the class token, and {checkpoint.folder} "
                f"({checkpoint.kind}) has none: set it to false"
            )
        self.patches = rows * columns
        self.patch = checkpoint.patch
        self.embed = checkpoint.width
        self.coefficient = coefficient
        self.encoder = CheckpointEncoder(checkpoint)
        self.camera: nn.Parameter | None = None
        if cameras:
            table = torch.zeros(cameras, checkpoint.settings.hidden_size)
            self.camera = nn.Parameter(nn.init.trunc_normal_(table, std=deviation))
            embeddings: nn.Module = self.encoder.trunk.embeddings
            embeddings.register_forward_hook(self._add_camera)
        self._added: Tensor | None = None
        mean, std = torch.tensor(checkpoint.mean), torch.tensor(checkpoint.std)
        self.scale: Tensor
        self.shift: Tensor
        self.register_buffer("scale", (DEVIATION / std)[:, None, None], persistent=False)
        self.register_buffer("shift", ((MEAN - mean) / std)[:, None, None], persistent=False)

    def _add_camera(self, _module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        if self._added is None:
            return output
        return torch.cat([output[:, :1] + self._added.to(output.dtype), output[:, 1:]], dim=1)

    def forward(self, images: Tensor, camids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Images [n, 3, H, W] and camera numbers [n] -> class tokens [n, C], patches [n, N, C]."""
        self._added = None
        if self.camera is not None and camids is not None:
            self._added = self.coefficient * self.camera[camids].unsqueeze(1)
        tokens = self.encoder(images * self.scale + self.shift)
        if not self.encoder.has_class:
            return tokens.mean(1), tokens
        return tokens[:, 0], tokens[:, 1:]

    def compile(self, **options: Any) -> None:
        """Compile each layer: all have the same code."""
        from sdtps.models.encoders import compile_layers

        compile_layers(self.encoder.network, **options)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb `backbones`."""
    parser.add_argument("folder", type=Path, nargs="+", help="a checkpoint, or a folder of some")


def command(arguments: argparse.Namespace) -> int:
    """Print what each folder holds; 1 where no image encoder was recognised."""
    recognised = 0
    for root in arguments.folder:
        folders = sorted({file.parent for file in root.rglob("config.json")})
        for folder in folders or [root]:
            try:
                found = read_checkpoint(str(folder))
            except WeightsError as error:
                print(f"{folder}: not recognised: {error}")
                continue
            recognised += 1
            tokens = f"{found.prefix} class or register token{'s' * (found.prefix != 1)}"
            print(
                f"{folder}: {found.kind}, patches of {found.patch} pixels, trained at {found.size}, "
                f"{found.width} channels, {tokens if found.prefix else 'no class token'}"
            )
    return 0 if recognised else 1
