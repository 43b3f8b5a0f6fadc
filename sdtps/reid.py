"""Re-identification: the model, its losses and its evaluation, as a task of the training loop.

DeMo's model with SDTPS as second branch: one encoder for the three modalities, a branch on the plain
global features, a branch on the selected and aggregated tokens (or DeMo's own fusion), a BNNeck and a
bias-free classifier on each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps import distributed
from sdtps.backbones import ClipVit, TinyVit, build_backbone
from sdtps.config import ReidConfig
from sdtps.data.generated import generate_rgbnt201, generated_name, image_count
from sdtps.data.reid_cache import CachedBatches, CachedTestBatches
from sdtps.data.reid_features import TokenBatches, TokenTestBatches, without
from sdtps.data.reid_folders import ReidDataset, Sample, read_dataset
from sdtps.data.reid_images import JpegBatches, JpegTestBatches, ReidBatch
from sdtps.fusion import SETS, Fusion, Pife
from sdtps.locations import cache_root, data_root
from sdtps.losses import batch_hard_triplet, label_smooth_cross_entropy
from sdtps.metrics import rank_features
from sdtps.multimodal import MODALITIES, MultiModalSdtps
from sdtps.provenance import file_digest
from sdtps.weights import find_weights

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
        self.backbone: TinyVit | ClipVit | None = backbone
        width, patches = backbone.embed, backbone.patches
        self.pife = Pife(width) if config.fusion.global_local else None
        self.sdtps: MultiModalSdtps | None = None
        self.fusion: Fusion | None = None
        heads: dict[str, Head] = {}
        if config.sdtps.enabled:
            self.sdtps = MultiModalSdtps(config.sdtps, width, patches)
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
            # As without compilation, noise comes from torch's own generator.
            self.sdtps.compile(**(options or {"options": {"fallback_random": True}}))

    def take_backbone(self) -> TinyVit | ClipVit:
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
    features = model(batch.images, batch.camids)
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


class ReidTask:
    """`task.Task` of one re-identification run: its data read or generated, its model built.

    Raises:
        DataError, WeightsError: as the readers say.
    """

    select_metric = "mAP"
    selected_on = "test"  # as DeMo does: RGBNT201, RGBNT100 and MSVR310 have no validation split

    def __init__(self, config: ReidConfig, seed: int, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.dataset, generated = load_data(config)
        self.model = ReidModel(config, self.dataset.train_pids, self.dataset.cameras).to(device)
        self.record: dict[str, Any] = {
            "data": {
                "name": self.dataset.name,
                "root": str(self.dataset.root),
                "fingerprint": self.dataset.fingerprint(),
                "generated": generated,
            },
            "weights": None,
        }
        self.batches: JpegBatches | CachedBatches | TokenBatches
        self.test_batches: JpegTestBatches | CachedTestBatches | TokenTestBatches
        # Query and gallery of RGBNT201 are the same images: each is encoded once.
        samples = list(dict.fromkeys((*self.dataset.query, *self.dataset.gallery)))
        parts = [samples[k :: distributed.world_size()] for k in range(distributed.world_size())]
        # The row of a sample when the processes' rows stand one below the other.
        self.place = {sample: i for i, sample in enumerate(s for part in parts for s in part)}
        samples = parts[distributed.rank()]
        train, data = self.dataset.train, config.data
        if config.backbone.frozen:
            encoder = self.model.take_backbone()
            self.record["frozen_parameters"] = sum(p.numel() for p in encoder.parameters())
            self.batches = TokenBatches(train, config, encoder, seed, device, cache_root())
            self.test_batches = TokenTestBatches(samples, config, encoder, device, cache_root())
        elif data.pipeline == "cached":
            self.batches = CachedBatches(train, data, seed, device, cache_root())
            self.test_batches = CachedTestBatches(samples, data, device, cache_root())
        else:
            self.batches = JpegBatches(train, data, seed, device)
            self.test_batches = JpegTestBatches(samples, data, device)
        self.steps_per_epoch = self.batches.steps_per_epoch
        if config.backbone.weights != "random":
            file = find_weights(config.backbone.weights)
            self.record["weights"] = {"file": str(file), "sha256": file_digest(file)}

    def train_batches(self, epoch: int, first: int) -> Iterator[ReidBatch]:
        return self.batches.epoch(epoch, first)

    def batch_size(self, batch: ReidBatch) -> int:
        """Samples are triples."""
        return len(batch.labels)

    def loss(self, batch: ReidBatch, epoch: int, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """`reid_loss` of the batch."""
        return reid_loss(self.model, self.config, batch)

    def evaluate(self) -> dict[str, float]:
        """CMC and mAP on the test split, by the data set's rule.

        Raises:
            FloatingPointError: the features are not finite.
        """
        own = torch.cat([self.test_features(batch) for batch in self.test_batches])
        features = torch.cat(distributed.gather_parts(own, self.device))
        query, gallery = self.dataset.query, self.dataset.gallery
        pids, views = _tensors(query, self.dataset), _tensors(gallery, self.dataset)
        ranking = rank_features(
            features[[self.place[s] for s in query]],
            features[[self.place[s] for s in gallery]],
            pids[0],
            views[0],
            pids[1],
            views[1],
        )
        return ranking.metrics()

    def test_features(self, batch: ReidBatch) -> Tensor:
        """[B, D] L2-normalised features that are ranked, before any BNNeck.

        A model without second branch is ranked by its global feature, one trained without global
        branch by its second, whatever `eval.feature` says.
        """
        images = batch.images
        if self.model.backbone is not None:  # else they were black when the tokens were computed
            images = without(images, self.config.eval.missing)
        amp = self.config.train.amp
        dtype = torch.float16 if amp == "fp16" else torch.bfloat16
        with torch.autocast(self.device.type, dtype=dtype, enabled=amp != "off"):
            features = self.model(images, batch.camids)
        second = features.get("sdtps", features.get("fusion"))
        wanted = self.config.eval.feature
        if second is None:
            chosen = features["global"]
        elif wanted == "sdtps" or (wanted == "concat" and not self.config.loss.global_branch):
            chosen = second
        elif wanted == "global":
            chosen = features["global"]
        else:
            chosen = torch.cat([features["global"], second], dim=-1)
        return F.normalize(chosen.float())

    def trunk(self) -> list[nn.Parameter]:
        """See `trunk`."""
        return trunk(self.model)

    def module_groups(self) -> dict[str, list[nn.Parameter]]:
        """See `module_groups`."""
        return module_groups(self.model)


def _tensors(samples: tuple[Sample, ...], dataset: ReidDataset) -> tuple[Tensor, Tensor]:
    """Identities and views of samples, int64."""
    scene = dataset.view_rule == "scene"
    views = [s.sceneid if scene else s.camid for s in samples]
    return torch.tensor([s.pid for s in samples]), torch.tensor(views)


def load_data(config: ReidConfig) -> tuple[ReidDataset, dict[str, Any] | None]:
    """The data set of a run, and how it was generated (None: read from a benchmark's folder)."""
    data = config.data
    if data.generate is None:
        return read_dataset(data.dataset, data_root(data.root)), None
    parent = cache_root() if data.root is None else Path(data.root)
    root = parent / generated_name(data.generate, data.height, data.width)
    # A process costs a second to start: only where each has about a thousand images to write.
    processes = min(data.workers, image_count(data.generate) // 1000) or 1
    generate_rgbnt201(data.generate, data.height, data.width, root, processes=processes)
    return read_dataset(data.dataset, root), data.generate.model_dump()
