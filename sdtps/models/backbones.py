"""Image encoders: one encoder for the three modalities, called once on all of them.

tiny_vit        a small pre-norm ViT for CPUs
clip_vit_b16    CLIP's vision tower (transformers' modules) with the projection on every token
checkpoint      what a Hugging Face folder describes (`sdtps.models.checkpoints`)

All return the class token [n, C] and the patches [n, N, C] of n images. What DeMo's CLIP does and
transformers' CLIPVisionModelWithProjection does not: `ln_post` and the projection act on all tokens,
the position embedding is interpolated from 14 x 14 to the image's grid, and a camera embedding is added
to the class token before the first layer (SIE; modeling/clip/model.py:446-484).

Patch size, width, class tokens and the normalisation of pixels of a checkpoint are read from its
folder; the position table is interpolated to the images' grid by the model's own rule.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps.config.reid import BackboneConfig
from sdtps.data.augment import DEVIATION, MEAN
from sdtps.models.checkpoints import HEADS, OTHER_TOWER, ImageTower, compile_layers, read_image
from sdtps.models.convert import CLIP_VISUAL
from sdtps.models.weights import find_weights, load_exactly, read_tensors
from sdtps.system.errors import ConfigError


class Backbone(nn.Module):
    """Images [n, 3, H, W] and camera numbers [n] -> class tokens [n, C] and patches [n, N, C].

    Attributes:
        patches: N; embed: C.
    """

    patches: int
    embed: int
    camera: nn.Parameter | None

    def make_camera(self, config: BackboneConfig, cameras: int, width: int) -> None:
        """The table of camera embeddings; none for 0 cameras."""
        self.coefficient = config.camera_coefficient
        self.camera = None
        if cameras:
            table = nn.init.trunc_normal_(torch.zeros(cameras, width), std=config.camera_std)
            self.camera = nn.Parameter(table)

    def add_camera(self, x: Tensor, camids: Tensor | None) -> Tensor:
        """Camera embedding on the class token only, as DeMo adds it."""
        if self.camera is None or camids is None:
            return x
        embedded = self.coefficient * self.camera[camids].to(x.dtype)
        return torch.cat([x[:, :1] + embedded.unsqueeze(1), x[:, 1:]], dim=1)

    def compile(self, **options: Any) -> None:
        """Compile one layer for all: every layer has the same code and the same shapes."""
        compile_layers(self, **options)


class TinyVit(Backbone):
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
        self.make_camera(config, cameras, config.width)
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
        x = self.add_camera(x, camids)
        for block in self.blocks:
            x = block(x)
        x = self.projection(self.norm(x))
        return x[:, 0], x[:, 1:]


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


class ClipVit(Backbone):
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
        self.make_camera(config, cameras, vision.hidden_size)
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
        x = self.add_camera(x, camids)
        x = vision.pre_layrnorm(x)
        for layer in vision.encoder.layers:
            x = layer(x, None)  # no attention mask
        x = self.tower.visual_projection(vision.post_layernorm(x))
        return x[:, 0], x[:, 1:]


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
        other = OTHER_TOWER["images"]
        vision = {
            name: value
            for name, value in tensors.items()
            if not (name.startswith(other) or HEADS.match(name))
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
    known = {name: value.contiguous() for name, value in CLIP_VISUAL.renamed(visual, "ours").items()}
    return known | unknown


class CheckpointBackbone(Backbone):
    """A checkpoint as the encoder of re-identification: class tokens [n, C] and patches [n, N, C].

    An encoder without class token (SigLIP) hands on the mean of its patches in its place. Pixels come
    normalised as DeMo's, and are brought to the checkpoint's own normalisation.

    Args:
        cameras: rows of the camera table; 0 = no camera embedding.
    """

    def __init__(self, config: BackboneConfig, height: int, width: int, cameras: int) -> None:
        super().__init__()
        checkpoint = read_image(config.weights)
        rows, columns = checkpoint.grid(height, width)
        if cameras and not checkpoint.prefix:
            raise ConfigError(
                f"backbone.camera_embedding is added to the class token, and {checkpoint.folder} "
                f"({checkpoint.kind}) has none: set it to false"
            )
        self.patches = rows * columns
        self.embed = checkpoint.width
        self.encoder = ImageTower(checkpoint)
        self.make_camera(config, cameras, checkpoint.settings.hidden_size)
        self._camids: Tensor | None = None
        if cameras:
            embeddings: nn.Module = self.encoder.trunk.embeddings
            embeddings.register_forward_hook(lambda _, inputs, x: self.add_camera(x, self._camids))
        mean, std = torch.tensor(checkpoint.mean), torch.tensor(checkpoint.std)
        self.scale: Tensor
        self.shift: Tensor
        self.register_buffer("scale", (DEVIATION / std)[:, None, None], persistent=False)
        self.register_buffer("shift", ((MEAN - mean) / std)[:, None, None], persistent=False)

    def forward(self, images: Tensor, camids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Images [n, 3, H, W] and camera numbers [n] -> class tokens [n, C], patches [n, N, C]."""
        self._camids = camids
        tokens = self.encoder(images * self.scale + self.shift)
        if not self.encoder.has_class:
            return tokens.mean(1), tokens
        return tokens[:, 0], tokens[:, 1:]


def patch_size(config: BackboneConfig) -> int:
    """Pixels of a patch's side. Raises WeightsError where a checkpoint cannot be read."""
    if config.name == "checkpoint":
        return read_image(config.weights).patch
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
            file = find_weights(config.weights)
            load_exactly(tiny, read_tensors(file), str(file))
        return tiny
    if config.name == "checkpoint":
        return CheckpointBackbone(config, height, width, cameras)
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
