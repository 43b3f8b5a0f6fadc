"""The re-identification model and its loss: DeMo's with SDTPS as second branch.

One encoder for the three modalities, a branch on the plain global features, a branch on the selected
and aggregated tokens (or DeMo's own fusion), a BNNeck and a bias-free classifier on each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sdtps import distributed
from sdtps.config import ReidConfig
from sdtps.data.reid_batches import ReidBatch
from sdtps.models.backbones import Backbone, build_backbone
from sdtps.models.fusion import SETS, Fusion, Pife
from sdtps.models.losses import batch_hard_triplet, label_smooth_cross_entropy
from sdtps.multimodal import MODALITIES, MultiModal

CLASSIFIER_STD = 0.001  # DeMo


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
        self.pife = Pife(width) if config.fusion.global_local else None
        self.sdtps: MultiModal | None = None
        self.fusion: Fusion | None = None
        heads: dict[str, Head] = {}
        if config.sdtps.enabled:
            self.sdtps = MultiModal(config.sdtps, width, patches)
            heads["sdtps"] = Head(3 * width, pids)
        elif config.fusion.kind != "none":
            self.fusion = Fusion(config.fusion.kind, width, config.fusion.heads)
            heads["fusion"] = Head(len(SETS) * width, pids)
        if config.loss.global_branch:
            if config.fusion.direct:
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

        `global` [B, 3C], one for each modality [B, C], and `sdtps` [B, 3C] or `fusion` [B, 7C] where
        the model has that branch.
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
        if self.sdtps is not None:
            features["sdtps"] = self.sdtps(patches_of, globals_)["feature"]
        if self.fusion is not None:
            features["fusion"] = self.fusion(patches_of, globals_)
        return features


def reid_loss(
    model: ReidModel, config: ReidConfig, batch: ReidBatch
) -> tuple[Tensor, dict[str, Tensor]]:
    """DeMo's sum over branches of 0.25 label-smoothed CE + soft batch-hard triplet, and its parts."""
    settings = config.loss
    size = config.train.micro_batch
    pieces = distributed.in_pieces(model, size, batch.images, batch.camids, dim=1)
    features = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    labels = distributed.gather_batch(batch.labels)
    total = torch.zeros((), device=labels.device)
    parts: dict[str, Tensor] = {}
    for name, head in model.heads.items():
        feature = distributed.gather_batch(features[name])
        identity = label_smooth_cross_entropy(head(feature), labels, settings.label_smoothing)
        triplet = batch_hard_triplet(feature, labels, settings.triplet_margin)
        weight = config.sdtps.loss_weight if name == "sdtps" else 1.0
        loss = settings.id_weight * identity + settings.triplet_weight * triplet
        total = total + weight * loss
        parts |= {f"{name}_id": identity.detach(), f"{name}_triplet": triplet.detach()}
    return total, parts


def trunk(model: ReidModel) -> list[nn.Parameter]:
    """The pretrained encoder; its camera table is new and trains with the head (DeMo)."""
    if model.backbone is None:
        return []
    return [p for n, p in model.backbone.named_parameters() if n != "camera"]


def module_groups(model: ReidModel) -> dict[str, list[nn.Parameter]]:
    """backbone, score_mlp, aggregation, fusion, pife, and each head."""
    groups: dict[str, list[nn.Parameter]] = {}
    if model.backbone is not None:
        groups["backbone"] = list(model.backbone.parameters())
    for name, parameter in model.named_parameters():
        if name.startswith("sdtps."):
            part = "score_mlp" if "score_mlp" in name else "aggregation"
            groups.setdefault(part, []).append(parameter)
    for part in ("fusion", "pife"):
        module = getattr(model, part)
        if module is not None:
            groups[part] = list(module.parameters())
    for name, head in model.heads.items():
        groups[f"head_{name}"] = list(head.parameters())
    return groups
