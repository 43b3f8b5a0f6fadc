"""The modules that DeMo2 sets beside SDTPS, as its logs ran them (cc6ed51 and the commits named).

SACR            patches as a map: parallel dilated convolutions and a channel gate, before SDTPS
MultiModalSACR  the same on the three modalities' maps below one another
LIF             patches weighted by a quality map of each raw image, trained to hand-made targets
FRCA            a channel gate made in the frequency domain, in SDTPS's place
DGAF            the modalities' vectors mixed by their entropy and by learned gates, behind SDTPS

Shapes: patches [B, N, C] a modality, N = h x w row by row; maps [B, C, h, w].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps.config.reid import FusionConfig
from sdtps.multimodal import MODALITIES
from sdtps.selection import full_precision, no_autocast
from sdtps.system.distributed import BatchNorm2d

Modal = Mapping[str, Tensor]
LUMINANCE = (0.299, 0.587, 0.114)
LAPLACIAN = ((0.0, 1.0, 0.0), (1.0, -4.0, 1.0), (0.0, 1.0, 0.0))
WINDOW = 15  # of LIF's local mean, pixels
EPSILON = 1e-8  # of DGAF's entropy
TARGET_EPSILON = 1e-6  # of LIF's targets


def to_map(patches: Tensor, height: int) -> Tensor:
    """[B, N, C] -> [B, C, h, w]"""
    return patches.transpose(1, 2).unflatten(2, (height, -1))


def to_patches(features: Tensor) -> Tensor:
    """[B, C, h, w] -> [B, N, C]"""
    return features.flatten(2).transpose(1, 2)


def build_sacr(config: FusionConfig, width: int) -> Sacr | None:
    """As `fusion.sacr` says, for C channels."""
    if config.sacr == "none":
        return None
    if config.sacr == "single":
        return Sacr(width, config.dilations)
    return MultiModalSacr(width, config.dilations, attention=config.sacr == "multimodal_v2")


def _normed(convolution: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(convolution, BatchNorm2d(convolution.out_channels), nn.ReLU())


class Sacr(nn.Module):
    """Scale-adaptive context of one map: 8,393,733 parameters at C = 512, no residual.

    Args:
        width: C; dilations: of the 3 x 3 branches beside a 1 x 1.
    """

    def __init__(self, width: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.point = _normed(nn.Conv2d(width, width, 1, bias=False))
        self.dilated = nn.ModuleList(
            _normed(nn.Conv2d(width, width, 3, padding=d, dilation=d, bias=False)) for d in dilations
        )
        self.fusion = _normed(nn.Conv2d((1 + len(dilations)) * width, width, 1, bias=False))
        size = int(abs((math.log2(width) + 1) / 2))
        size = max(3, size + 1 - size % 2)
        self.gate = nn.Conv1d(1, 1, size, padding=size // 2, bias=False)

    def context(self, features: Tensor) -> Tensor:
        """[B, C, h, w] -> the same shape."""
        branches = [self.point(features), *(branch(features) for branch in self.dilated)]
        fused = self.fusion(torch.cat(branches, dim=1))
        gate = self.gate(fused.mean(dim=(2, 3)).unsqueeze(1)).squeeze(1).sigmoid()
        return fused * gate[:, :, None, None]

    def forward(self, patches: Modal, height: int) -> dict[str, Tensor]:
        """Each modality by itself, with the same weights."""
        return {m: to_patches(self.context(to_map(patches[m], height))) for m in MODALITIES}


class MultiModalSacr(Sacr):
    """SACR on the three maps below one another, 3h x w.

    Args:
        attention: False = v1, a 1 x 1 convolution of the result is added; True = v2, modality
            embeddings before, self-attention over all tokens behind (8 heads).
    """

    def __init__(self, width: int, dilations: Sequence[int], *, attention: bool) -> None:
        super().__init__(width, dilations)
        self.attention: nn.MultiheadAttention | None = None
        if attention:
            self.embedding = nn.Parameter(0.02 * torch.randn(3, 1, width))
            self.norm = nn.LayerNorm(width)
            self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
        else:
            self.cross = _normed(nn.Conv2d(width, width, 1, bias=False))

    def forward(self, patches: Modal, height: int) -> dict[str, Tensor]:
        rows = [patches[m] for m in MODALITIES]
        if self.attention is not None:
            rows = [row + e for row, e in zip(rows, self.embedding, strict=True)]
        features = self.context(to_map(torch.cat(rows, dim=1), 3 * height))
        if self.attention is None:
            features = features + self.cross(features)
        tokens = to_patches(features)
        if self.attention is not None:
            x = self.norm(tokens)
            tokens = tokens + self.attention(x, x, x, need_weights=False)[0]
        return dict(zip(MODALITIES, tokens.chunk(3, dim=1), strict=True))


class QualityMap(nn.Sequential):
    """[B, 3, H, W] -> [B, 1, H / 8, W / 8], at least 0."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 32), (32, 8), (8, 8)):
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            layers += [
                nn.Sequential(convolution, BatchNorm2d(outputs), nn.SiLU()),
                nn.AvgPool2d(2),
            ]
        super().__init__(*layers, nn.Conv2d(8, 1, 1), nn.ReLU())


class Lif(nn.ModuleDict):
    """Patches weighted by the softmax over modalities of their images' quality; 169,635 parameters.

    Args:
        beta: the softmax's logits are quality x 10 beta.
    """

    def __init__(self, beta: float) -> None:
        super().__init__({m: QualityMap() for m in MODALITIES})
        self.beta = beta

    def qualities(self, images: Modal) -> dict[str, Tensor]:
        """Normalised images [B, 3, H, W] -> [B, 1, H / 8, W / 8] a modality."""
        return {m: self[m](images[m]) for m in MODALITIES}

    def weigh(self, patches: Modal, qualities: Modal, height: int) -> dict[str, Tensor]:
        """Patches times their modality's share."""
        size = height, patches["rgb"].shape[1] // height
        maps = torch.stack([_resized(qualities[m], size) for m in MODALITIES])
        shares = (10 * self.beta * maps).softmax(dim=0)
        return {m: patches[m] * to_patches(s) for m, s in zip(MODALITIES, shares, strict=True)}


def _resized(maps: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(maps, tuple(size), mode="bilinear", align_corners=False)


def _variance(image: Tensor) -> Tensor:
    """Variance in WINDOW x WINDOW pixels; zeros outside the image are counted."""
    mean, square = (
        F.avg_pool2d(x, WINDOW, stride=1, padding=WINDOW // 2) for x in (image, image.square())
    )
    return (square - mean.square()).clamp_min(0)


def lif_losses(qualities: Modal, images: Modal) -> Tensor:
    """MSE of each modality's quality map to its target, [3].

    Luminance (RGB), local variance of edges (NIR), local deviation (TIR); the last two are divided by
    each image's maximum.
    """
    with no_autocast(images["rgb"]):
        rgb, nir, tir = (full_precision(images[m]) for m in MODALITIES)
        nir, tir = (image.mean(dim=1, keepdim=True) for image in (nir, tir))
        edges = F.conv2d(nir, nir.new_tensor(LAPLACIAN)[None, None], padding=1)
        targets = {
            "rgb": (rgb * rgb.new_tensor(LUMINANCE)[:, None, None]).sum(dim=1, keepdim=True),
            "nir": _variance(edges),
            "tir": (_variance(tir) + TARGET_EPSILON).sqrt(),
        }
        losses = []
        for m in MODALITIES:
            quality = full_precision(qualities[m])
            target = _resized(targets[m], quality.shape[2:])
            if m != "rgb":
                target = target / (target.amax(dim=(1, 2, 3), keepdim=True) + TARGET_EPSILON)
            losses.append(F.mse_loss(quality, target))
        return torch.stack(losses)


class Frca(nn.Module):
    """Channel gate from amplitude and phase of the mean map's spectrum; 4,724,228 parameters.

    The spectrum in float32, as from 4365e8d on: 22 x 24 values have none in float16.
    """

    def __init__(self, width: int, slope: float = 0.1) -> None:
        super().__init__()
        self.rows = math.isqrt(width)
        self.columns = -(-width // self.rows)
        self.features = _leaky(width, 3, slope)
        self.amplitude, self.phase = _leaky(1, 1, slope), _leaky(1, 1, slope)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.norm = nn.GroupNorm(math.gcd(32, width), width)

    def forward(self, features: Tensor) -> Tensor:
        """[B, C, h, w] -> the same shape."""
        f = self.features(features)
        with no_autocast(features):
            mean = full_precision(f).mean(dim=(2, 3))
            padded = F.pad(mean, (0, self.rows * self.columns - mean.shape[1]))
            spectrum = torch.fft.fft2(padded.unflatten(1, (self.rows, self.columns)).unsqueeze(1))
            amplitude, phase = spectrum.abs(), spectrum.angle()
            amplitude = amplitude * self.amplitude(amplitude)
            phase = phase * self.phase(phase)
            back = torch.fft.ifft2(torch.polar(amplitude, phase)).real
            gate = back.flatten(1)[:, : mean.shape[1]].sigmoid()[:, :, None, None]
        return self.norm(self.depthwise(f * gate.to(f.dtype) + features)).relu()


def _leaky(width: int, size: int, slope: float) -> nn.Sequential:
    layers = [nn.Conv2d(width, width, size, padding=size // 2, bias=False) for _ in range(2)]
    return nn.Sequential(layers[0], nn.LeakyReLU(slope), layers[1])


class Dgaf(nn.Module):
    """Dual-gated fusion of the modalities' vectors.

    v1 (1,315,844 parameters at C = 512) takes vectors; v3 (2,369,028) takes tokens and pools them by
    attention with a learned query of each modality.

    Args:
        width: C; tau: temperature of the entropies; alpha: start of the balance, before its sigmoid.
        heads: of v3's attention; None = v1.
    """

    def __init__(self, width: int, tau: float, alpha: float, heads: int | None) -> None:
        super().__init__()
        self.tau = tau
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.entropy = nn.Linear(width, width)
        self.gates = nn.Sequential(
            nn.Linear(3 * width, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 3)
        )
        self.output = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
        self.pool: nn.MultiheadAttention | None = None
        if heads is not None:
            self.queries = nn.ParameterDict(
                {m: nn.Parameter(0.02 * torch.randn(1, 1, width)) for m in MODALITIES}
            )
            self.pool = nn.MultiheadAttention(width, heads, batch_first=True)
            self.norm = nn.LayerNorm(width)

    def forward(self, inputs: Modal) -> dict[str, Tensor]:
        """Vectors [B, C] (v1) or tokens [B, N, C] (v3) of each modality -> [B, C]."""
        vectors = {m: self._pooled(m, inputs[m]) for m in MODALITIES}
        stacked = torch.stack([vectors[m] for m in MODALITIES], dim=1)  # [B, 3, C]
        size = full_precision(stacked).abs() + EPSILON
        shares = size / size.sum(dim=-1, keepdim=True)
        entropy = -(shares * (shares + EPSILON).log()).sum(dim=-1)
        weights = (self.entropy(stacked).mean(dim=-1) * (-entropy / self.tau).exp()).softmax(dim=1)
        by_entropy = (weights.unsqueeze(-1) * stacked).sum(dim=1)
        by_gate = (self.gates(stacked.flatten(1)).sigmoid().unsqueeze(-1) * stacked).sum(dim=1)
        balance = self.alpha.sigmoid()
        mixed = self.output(balance * by_entropy + (1 - balance) * by_gate)
        return {m: vectors[m] + mixed for m in MODALITIES}

    def _pooled(self, modality: str, tokens: Tensor) -> Tensor:
        if self.pool is None:
            return tokens
        query = self.queries[modality].expand(len(tokens), -1, -1).to(tokens.dtype)
        return self.norm(self.pool(query, tokens, tokens, need_weights=False)[0].squeeze(1))
