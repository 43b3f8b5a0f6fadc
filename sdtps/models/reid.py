"""The re-identification model and its loss: DeMo's with SDTPS as second branch.

One encoder for the three modalities, a branch on the plain global features, a branch on the selected
and aggregated tokens (or DeMo's own fusion, or DeMo2's modules, `sdtps.models.demo2`), a BNNeck and a
bias-free classifier on each. DeMo's fusion of three modalities (AAAI 2025):

PIFE    class token and mean patch of a modality -> its global feature
HDM     seven learnable queries, one for each non-empty set of modalities, attend to the set's tokens
ATMoE   an expert for each of the seven vectors, weighed by an attention gate
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from sdtps.config import ReidConfig
from sdtps.data.reid_batches import ReidBatch
from sdtps.models.backbones import Backbone, build_backbone
from sdtps.models.demo2 import Dgaf, Frca, Lif, build_sacr, lif_losses, to_map, to_patches
from sdtps.models.losses import batch_hard_triplet, label_smooth_cross_entropy
from sdtps.multimodal import MODALITIES, MultiModal
from sdtps.selection import part_of
from sdtps.system import distributed

# The non-empty sets of modalities in DeMo's order, by first letters.
SETS = ("r", "n", "t", "rn", "rt", "nt", "rnt")
_LETTER = {modality[0]: modality for modality in MODALITIES}
CLASSIFIER_STD = 0.001  # DeMo


class QuickGELU(nn.Module):
    """x sigmoid(1.702 x), CLIP's activation."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Pife(nn.ModuleDict):
    """Patch-integrated feature: QuickGELU(Linear(LN([class token, mean patch]))), one a modality.

    1.58 M parameters at C = 512.
    """

    def __init__(self, width: int) -> None:
        super().__init__(
            {
                m: nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, width), QuickGELU())
                for m in MODALITIES
            }
        )

    def forward(
        self, patches: Mapping[str, Tensor], classes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Patches [B, N, C] and class tokens [B, C] a modality -> global features [B, C]."""
        return {
            m: reduce(torch.cat([classes[m], patches[m].mean(dim=1)], dim=-1))
            for m, reduce in self.items()
        }


class Hdm(nn.Module):
    """Hierarchical decoupling: seven vectors, one for each set of modalities.

    Args:
        width: C, a multiple of 64 (heads of 64).
    """

    def __init__(self, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens = nn.ParameterDict(
            {s: nn.Parameter(width**-0.5 * torch.randn(1, 1, width)) for s in SETS}
        )
        self.attention = nn.ModuleDict(
            {
                s: nn.MultiheadAttention(width, max(1, width // 64), dropout, batch_first=True)
                for s in SETS
            }
        )

    def forward(self, patches: Mapping[str, Tensor], globals_: Mapping[str, Tensor]) -> Tensor:
        """Patches [B, N, C] and global features [B, C] a modality -> [B, 7, C] in the order of SETS."""
        sequences = {m: torch.cat([globals_[m].unsqueeze(1), patches[m]], dim=1) for m in MODALITIES}
        vectors = []
        for name in SETS:
            members = torch.cat([sequences[_LETTER[letter]] for letter in name], dim=1)
            query = self.tokens[name].expand(len(members), -1, -1).to(members.dtype)
            vectors.append(self.attention[name](query, members, members, need_weights=False)[0])
        return torch.cat(vectors, dim=1)


class GateAttention(nn.Module):
    """Gate of ATMoE: softmax over the seven vectors of q k / sqrt(C / heads), per head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.bottleneck = nn.Sequential(
            nn.Linear(len(SETS) * width, width), QuickGELU(), distributed.BatchNorm1d(width)
        )
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, 7, C] -> [B, heads, 7], rows sum to 1."""
        batch, count, width = vectors.shape
        head = width // self.heads
        query = self.query(self.bottleneck(vectors.flatten(1))).view(batch, self.heads, 1, head)
        key = self.key(vectors).view(batch, count, self.heads, head).transpose(1, 2)
        return ((query * key).sum(dim=-1) * head**-0.5).softmax(dim=-1)


class Expert(nn.Sequential):
    """One head's slice of one vector: Linear, QuickGELU, BatchNorm."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, width), QuickGELU(), distributed.BatchNorm1d(width))


class AtMoe(nn.Module):
    """Attention-triggered mixture of experts: experts' outputs times their gate, concatenated.

    Args:
        width: C; heads: gate heads, 4 (RGBNT201) or 8 (RGBNT100, MSVR310).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.gate = GateAttention(width, heads)
        self.experts = nn.ModuleList(  # [head][vector]
            nn.ModuleList(Expert(width // heads) for _ in SETS) for _ in range(heads)
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, 7, C] -> [B, 7C], vector by vector, each one's heads side by side."""
        gate = self.gate(vectors)
        slices = vectors.chunk(self.heads, dim=-1)
        experts = [cast(nn.ModuleList, of_head) for of_head in self.experts]
        outputs = [
            experts[h][v](slices[h][:, v]) * gate[:, h, v].unsqueeze(-1)
            for v in range(len(SETS))
            for h in range(self.heads)
        ]
        return torch.cat(outputs, dim=-1)


class Fusion(nn.Module):
    """HDM, with or without ATMoE, as the second branch of the re-identification model.

    Args:
        kind: `hdm` concatenates the seven vectors; `hdm_atmoe` gates them.
        width: C; heads: of ATMoE.
    """

    def __init__(self, kind: Literal["hdm", "hdm_atmoe"], width: int, heads: int) -> None:
        super().__init__()
        self.hdm = Hdm(width)
        self.moe = AtMoe(width, heads) if kind == "hdm_atmoe" else None

    def forward(self, patches: Mapping[str, Tensor], globals_: Mapping[str, Tensor]) -> Tensor:
        """Patches [B, N, C] and global features [B, C] a modality -> [B, 7C]."""
        vectors = self.hdm(patches, globals_)
        return vectors.flatten(1) if self.moe is None else self.moe(vectors)


class Head(nn.Module):
    """BNNeck (its bias frozen at 0) and a classifier without bias."""

    def __init__(self, width: int, pids: int) -> None:
        super().__init__()
        self.neck = nn.BatchNorm1d(width)
        self.neck.bias.requires_grad_(False)
        self.classifier = nn.Linear(width, pids, bias=False)
        nn.init.normal_(self.classifier.weight, std=CLASSIFIER_STD)

    def forward(self, feature: Tensor) -> Tensor:
        """[B, D] -> [B, P] logits."""
        return self.classifier(self.neck(feature))


class ReidModel(nn.Module):
    """Features of each branch from three images; heads turn them into logits in training.

    Args:
        config: the run's configuration.
        pids: training identities (P).
        cameras: rows of the camera table.
    """

    def __init__(self, config: ReidConfig, pids: int, cameras: int) -> None:
        super().__init__()
        backbone = build_backbone(config.backbone, config.data.height, config.data.width, cameras)
        # None where batches hold its outputs (see `take_backbone`).
        self.backbone: Backbone | None = backbone
        width, patches = backbone.embed, backbone.patches
        fusion = config.fusion
        self.kind = fusion.kind
        # Rows of the map that patches make.
        self.rows = round(math.sqrt(patches * config.data.height / config.data.width))
        self.pife = Pife(width) if fusion.global_local else None
        self.sacr = build_sacr(fusion, width)
        self.lif = Lif(fusion.lif_beta) if fusion.lif else None
        self.sdtps = MultiModal(config.sdtps, width, patches) if config.sdtps.enabled else None
        self.frca = nn.ModuleDict({m: Frca(width) for m in MODALITIES}) if fusion.frca else None
        self.fusion: Fusion | Dgaf | None = None
        if fusion.kind in ("hdm", "hdm_atmoe"):
            self.fusion = Fusion(fusion.kind, width, fusion.heads)
        elif fusion.kind != "none":
            attends = fusion.kind in ("dgaf_v3", "parallel")
            self.fusion = Dgaf(width, fusion.tau, fusion.alpha, fusion.heads if attends else None)
        # The second branch's heads; DGAF's replaces that of SDTPS unless it stands beside it.
        second: dict[str, int] = {}
        if fusion.kind == "parallel":
            second = {f"{part}_{m}": width for part in ("sdtps", "fusion") for m in MODALITIES}
        else:
            if config.sdtps.enabled and (fusion.kind == "none" or fusion.beside_sdtps):
                second["sdtps"] = 3 * width
            if self.fusion is not None or fusion.frca:
                hdm = isinstance(self.fusion, Fusion)
                second["fusion"] = (len(SETS) if hdm else len(MODALITIES)) * width
        self.second = tuple(second)
        heads = {name: Head(size, pids) for name, size in second.items()}
        if config.loss.global_branch:
            if fusion.direct:
                heads["global"] = Head(3 * width, pids)
            else:
                heads |= {m: Head(width, pids) for m in MODALITIES}
        self.heads = nn.ModuleDict(heads)

    def compile(self, **options: Any) -> None:
        """Compile the parts that repeat, one of each: the encoder's layer and a modality's SDTPS.

        The whole as one graph takes twelve times as long to compile and is another graph for each
        variant; the layer is the same in all, so that a study compiles it once (docs/performance.md).
        """
        if self.backbone is not None:
            self.backbone.compile(**options)
        if self.sdtps is not None:
            self.sdtps.compile(**options)

    def take_backbone(self) -> Backbone:
        """Take the (frozen) backbone out: from now on `forward` gets its outputs for images."""
        backbone = self.backbone
        assert backbone is not None
        self.backbone = None
        return backbone

    def forward(self, images: Tensor, camids: Tensor) -> dict[str, Tensor]:
        """Images [M, B, 3, H, W], or tokens [M, B, 1 + N, C]; camids [B] -> features by name.

        `global` [B, 3C], one for each modality [B, C], and those of the second branch (`self.second`)
        where the model has one; in training `lif` [3], the losses of LIF's quality maps.
        """
        count, batch = images.shape[:2]
        if self.backbone is None:
            classes, patches = images[:, :, 0], images[:, :, 1:]
        else:
            encoded = self.backbone(images.flatten(0, 1), camids.repeat(count))
            classes, patches = (tokens.unflatten(0, (count, batch)) for tokens in encoded)
        class_of = dict(zip(MODALITIES, classes, strict=True))
        patches_of = dict(zip(MODALITIES, patches, strict=True))
        globals_ = class_of if self.pife is None else self.pife(patches_of, class_of)
        features = {**globals_, "global": torch.cat([globals_[m] for m in MODALITIES], dim=-1)}
        if self.sacr is not None:
            patches_of = self.sacr(patches_of, self.rows)
        if self.lif is not None:
            images_of = dict(zip(MODALITIES, images, strict=True))
            qualities = self.lif.qualities(images_of)
            patches_of = self.lif.weigh(patches_of, qualities, self.rows)
            if self.training:
                features["lif"] = lif_losses(qualities, images_of)
        return features | self._second_branch(patches_of, globals_)

    def _second_branch(self, patches: Mapping[str, Tensor], globals_: Mapping[str, Tensor]) -> Any:
        """Its features by name, from patches [B, N, C] and global features [B, C] a modality."""
        if not self.second:
            return {}
        if isinstance(self.fusion, Fusion):
            return {"fusion": self.fusion(patches, globals_)}
        tokens = patches
        if self.sdtps is not None:
            tokens = self.sdtps(patches, globals_)["tokens"]
        elif self.frca is not None:
            tokens = {m: to_patches(self.frca[m](to_map(patches[m], self.rows))) for m in MODALITIES}
        means = {m: tokens[m].mean(dim=1) for m in MODALITIES}
        fused = means
        if self.fusion is not None:
            inputs = {"dgaf_v1": means, "dgaf_v3": tokens, "parallel": patches}.get(self.kind)
            if inputs is None:  # dgaf_v1_global
                assert self.pife is not None
                inputs = self.pife(tokens, globals_)
            fused = self.fusion(inputs)
        features = {f"sdtps_{m}": means[m] for m in MODALITIES}
        features |= {f"fusion_{m}": fused[m] for m in MODALITIES}
        features["sdtps"] = torch.cat([means[m] for m in MODALITIES], dim=-1)
        features["fusion"] = torch.cat([fused[m] for m in MODALITIES], dim=-1)
        return {name: features[name] for name in self.second}


def reid_loss(
    model: ReidModel, config: ReidConfig, batch: ReidBatch
) -> tuple[Tensor, dict[str, Tensor]]:
    """DeMo's sum over branches of 0.25 label-smoothed CE + soft batch-hard triplet, and its parts.

    The part `accuracy` is that of the first head: the second branch's where there is one, as in DeMo.
    """
    settings = config.loss
    size = config.train.micro_batch
    pieces = distributed.in_pieces(model, size, batch.images, batch.camids, dim=1)
    features = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    labels = distributed.gather_batch(batch.labels)
    total = torch.zeros((), device=labels.device)
    parts: dict[str, Tensor] = {}
    for name, head in model.heads.items():
        feature = distributed.gather_batch(features[name])
        logits = head(feature)
        if not parts:
            parts["accuracy"] = (logits.detach().argmax(dim=1) == labels).double().mean()
        identity = label_smooth_cross_entropy(logits, labels, settings.label_smoothing)
        triplet = batch_hard_triplet(feature, labels, settings.triplet_margin)
        # As published: of the first head, whatever it is of.
        weight = config.sdtps.loss_weight if config.sdtps.enabled and len(parts) == 1 else 1.0
        loss = settings.id_weight * identity + settings.triplet_weight * triplet
        total = total + weight * loss
        parts |= {f"{name}_id": identity.detach(), f"{name}_triplet": triplet.detach()}
    if model.lif is not None:
        quality = distributed.gather_batch(features["lif"]).sum() / distributed.world_size()
        total = total + config.fusion.lif_weight * quality
        parts["lif"] = quality.detach()
    return total, parts


def trunk(model: ReidModel) -> list[nn.Parameter]:
    """The pretrained encoder; its camera table is new and trains with the head (DeMo)."""
    if model.backbone is None:
        return []
    return [p for n, p in model.backbone.named_parameters() if n != "camera"]


def module_groups(model: ReidModel) -> dict[str, list[nn.Parameter]]:
    """backbone, SDTPS's parts, the modules beside it, and each head."""
    groups: dict[str, list[nn.Parameter]] = {}
    if model.backbone is not None:
        groups["backbone"] = list(model.backbone.parameters())
    for name, parameter in model.named_parameters():
        if name.startswith("sdtps."):
            groups.setdefault(part_of(name), []).append(parameter)
    for part in ("fusion", "pife", "sacr", "lif", "frca"):
        module = getattr(model, part)
        if module is not None:
            groups[part] = list(module.parameters())
    for name, head in model.heads.items():
        groups[f"head_{name}"] = list(head.parameters())
    return groups
