"""Image encoders: one encoder for the three modalities, called once on all of them.

tiny_vit        a small pre-norm ViT for CPUs
clip_vit_b16    CLIP's vision tower (transformers' modules) with the projection on every token
checkpoint      what a Hugging Face folder describes: CLIP (any patch size), ViT, DeiT, DINOv2 (with
                registers too) and SigLIP (SigLIP 2's checkpoints of fixed size say `siglip`)

All return the class token [n, C] and the patches [n, N, C] of n images. What DeMo's CLIP does and
transformers' CLIPVisionModelWithProjection does not: `ln_post` and the projection act on all tokens,
the position embedding is interpolated from 14 x 14 to the image's grid, and a camera embedding is added
to the class token before the first layer (SIE; modeling/clip/model.py:446-484).

Patch size, width, class tokens and the normalisation of pixels of a checkpoint are read from its
folder; the position table is interpolated to the images' grid by the model's own rule. Nothing is
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
from torch.nn import functional as F

from sdtps.config.reid import BackboneConfig
from sdtps.data.augment import DEVIATION, MEAN
from sdtps.errors import ConfigError, WeightsError
from sdtps.models.published import CLIP_VISUAL
from sdtps.models.weights import find_weights, load_exactly, load_weights, read_tensors


class TinyVit(nn.Module):
    """Pre-norm ViT: patch embedding, class token, learned positions, `depth` blocks, projection.

    Args:
        config: patch, width, depth, heads, embed and the camera settings.
        height, width: of the images, in pixels.
        cameras: rows of the camera table; 0 = no camera embedding.
    """

    def __init__(self, config: BackboneConfig, height: int, width: int, cameras: int) -> None:
        super().__init__()
        self.patch = config.patch
        self.patches = (height // config.patch) * (width // config.patch)
        self.embed = config.embed
        # A linear map of flattened patches: a convolution of stride `patch` without its CPU overhead.
        self.patch_embedding = nn.Linear(3 * config.patch**2, config.width)
        self.class_token = nn.Parameter(torch.zeros(config.width))
        self.positions = nn.Parameter(torch.zeros(1 + self.patches, config.width))
        self.camera = _camera_table(config, cameras, config.width)
        self.coefficient = config.camera_coefficient
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.projection = nn.Linear(config.width, config.embed, bias=False)
        nn.init.trunc_normal_(self.positions, std=0.02)
        nn.init.trunc_normal_(self.class_token, std=0.02)

    def forward(self, images: Tensor, camids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Images [n, 3, H, W] and camera numbers [n] -> class tokens [n, C], patches [n, N, C]."""
        x = self.patch_embedding(_unfold(images, self.patch))
        first = self.class_token.expand(len(x), 1, -1)
        x = torch.cat([first, x], dim=1) + self.positions
        x = _add_camera(x, self.camera, camids, self.coefficient)
        for block in self.blocks:
            x = block(x)
        x = self.projection(self.norm(x))
        return x[:, 0], x[:, 1:]

    def compile(self, **options: Any) -> None:
        """Compile one block for all."""
        for block in self.blocks:
            block.compile(**options)


class Block(nn.Module):
    """x + attention(LN(x)), then x + MLP(LN(x)); scaled-dot-product attention in one kernel."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(n, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, tokens, width))
        return x + self.mlp(self.norm_mlp(x))


class ClipVit(nn.Module):
    """CLIP's vision tower with all tokens projected.

    Args:
        tower: a transformers CLIPVisionModelWithProjection.
        config: camera settings.
        height, width: of the images, in pixels.
        cameras: rows of the camera table.
    """

    def __init__(
        self, tower: Any, config: BackboneConfig, height: int, width: int, cameras: int
    ) -> None:
        super().__init__()
        vision = tower.config
        self.grid = (height // vision.patch_size, width // vision.patch_size)
        self.patches = self.grid[0] * self.grid[1]
        self.embed = vision.projection_dim
        self.tower = tower
        self.coefficient = config.camera_coefficient
        self.camera = _camera_table(config, cameras, vision.hidden_size)
        self.fit_positions()

    def fit_positions(self) -> None:
        """Interpolate the position embedding, as loaded, to this image size's grid, once."""
        embeddings = self.tower.vision_model.embeddings
        table = interpolate_positions(embeddings.position_embedding.weight.data, self.grid)
        embeddings.position_embedding = nn.Embedding.from_pretrained(table, freeze=False)
        # transformers keeps the row numbers of the original grid in a buffer; we add the table itself.
        embeddings.position_ids = torch.arange(len(table)).unsqueeze(0)

    def forward(self, images: Tensor, camids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Images [n, 3, H, W] and camera numbers [n] -> class tokens [n, C], patches [n, N, C]."""
        vision = self.tower.vision_model
        embeddings = vision.embeddings
        kernel = embeddings.patch_embedding.weight.flatten(1)
        x = F.linear(_unfold(images, embeddings.patch_size), kernel)
        first = embeddings.class_embedding.to(x.dtype).expand(len(x), 1, -1)
        x = torch.cat([first, x], dim=1) + embeddings.position_embedding.weight.to(x.dtype)
        x = _add_camera(x, self.camera, camids, self.coefficient)
        x = vision.pre_layrnorm(x)
        for layer in vision.encoder.layers:
            x = layer(x, None)  # no attention mask
        x = self.tower.visual_projection(vision.post_layernorm(x))
        return x[:, 0], x[:, 1:]

    def compile(self, **options: Any) -> None:
        """Compile one layer for all: every layer has the same code and the same shapes."""
        for layer in self.tower.vision_model.encoder.layers:
            layer.compile(**options)


def interpolate_positions(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Position table [1 + g^2, C] -> [1 + h w, C], bilinear, the class token's row kept (DeMo)."""
    side = round((len(table) - 1) ** 0.5)
    if (side, side) == grid:
        return table.clone()
    square = table[1:].T.reshape(1, -1, side, side)
    fitted = F.interpolate(square.float(), size=grid, mode="bilinear", align_corners=False)
    return torch.cat([table[:1], fitted.flatten(2)[0].T.to(table.dtype)])


def load_clip_weights(tower: nn.Module, path: str) -> None:
    """Load CLIP's vision tower into a transformers CLIPVisionModelWithProjection.

    The text tower of a whole CLIP is left out; nothing else is. Raises WeightsError.
    """
    file = find_weights(path)
    tensors = read_tensors(file)
    if "visual.conv1.weight" in tensors:
        vision = clip_from_openai(tensors)
    else:
        text = ("text_model.", "text_projection.", "logit_scale")
        # Older files hold the row numbers of the position table, a constant.
        vision = {
            name: value
            for name, value in tensors.items()
            if not name.startswith(text) and not name.endswith("embeddings.position_ids")
        }
    load_exactly(tower, vision, str(file))


def clip_from_openai(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The vision tower of OpenAI's layout under transformers' names, in float32.

    A name below `visual.` that no ViT of OpenAI's has stays as it is, so that loading reports it beside
    everything else that does not fit.
    """
    visual = {
        name.removeprefix("visual."): value.float()
        for name, value in tensors.items()
        if name.startswith("visual.")
    }
    unknown = {name: visual.pop(name) for name in CLIP_VISUAL.refused(visual)}
    known = {name: value.contiguous() for name, value in CLIP_VISUAL.to_ours(visual).items()}
    return known | unknown


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
        compile_layers(self.encoder.network, **options)


Backbone = TinyVit | ClipVit | CheckpointBackbone


def patch_size(config: BackboneConfig) -> int:
    """Pixels of a patch's side. Raises WeightsError where a checkpoint cannot be read."""
    if config.name == "checkpoint":
        return read_checkpoint(config.weights).patch
    return 16 if config.name == "clip_vit_b16" else config.patch


def build_backbone(config: BackboneConfig, height: int, width: int, cameras: int) -> Backbone:
    """The encoder of a configuration with its weights loaded.

    Raises:
        WeightsError: the file is missing or does not fit (tensors named). Random weights must be asked
            for: `backbone.weights: random`.
    """
    cameras = cameras if config.camera_embedding else 0
    if config.name == "tiny_vit":
        tiny = TinyVit(config, height, width, cameras)
        if config.weights != "random":
            load_weights(tiny, config.weights)
        return tiny
    if config.name == "checkpoint":
        return CheckpointBackbone(
            config.weights,
            height,
            width,
            cameras=cameras,
            coefficient=config.camera_coefficient,
            deviation=config.camera_std,
        )
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    # The published ViT-B/16: 12 layers of 768, 12 heads, patches of 16 at 224 pixels, 512 outputs.
    vision = CLIPVisionConfig(patch_size=16, image_size=224, projection_dim=512)
    vision._attn_implementation = "sdpa"
    tower = CLIPVisionModelWithProjection(vision)
    if config.weights != "random":
        load_clip_weights(tower, config.weights)
    return ClipVit(tower, config, height, width, cameras)


def _unfold(images: Tensor, patch: int) -> Tensor:
    """[n, 3, H, W] -> [n, N, 3 patch^2], patches in reading order."""
    n, channels, height, width = images.shape
    rows, columns = height // patch, width // patch
    cut = images.view(n, channels, rows, patch, columns, patch)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(n, rows * columns, channels * patch**2)


def _camera_table(config: BackboneConfig, cameras: int, width: int) -> nn.Parameter | None:
    if not cameras:
        return None
    table = nn.Parameter(torch.zeros(cameras, width))
    nn.init.trunc_normal_(table, std=config.camera_std)
    return table


def _add_camera(x: Tensor, table: Tensor | None, camids: Tensor | None, coefficient: float) -> Tensor:
    """Camera embedding on the class token only, as DeMo adds it."""
    if table is None or camids is None:
        return x
    embedded = coefficient * table[camids].to(x.dtype)
    return torch.cat([x[:, :1] + embedded.unsqueeze(1), x[:, 1:]], dim=1)


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


def compile_layers(network: nn.Module, **options: Any) -> None:
    """Compile the layers that a network repeats: the members of its innermost module lists."""
    for module in network.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if not any(isinstance(part, nn.ModuleList) for part in layer.modules()):
                    layer.compile(**options)
