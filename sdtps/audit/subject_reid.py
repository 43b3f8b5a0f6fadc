"""What the gradient audit examines in re-identification, without data on disk."""

from __future__ import annotations

import torch
from torch import nn

from sdtps.audit.subject import Subject
from sdtps.config import ReidConfig
from sdtps.data.reid_images import ReidBatch
from sdtps.models.reid import ReidModel, module_groups, reid_loss, trunk
from sdtps.models.tiny import tiny
from sdtps.multimodal import MODALITIES

CAMERAS = 2


def reid_subject(full: ReidConfig, seed: int) -> Subject:
    """A configuration's model at the size of a toy, its loss, and noise around fixed patterns."""
    config = tiny(full)
    assert isinstance(config, ReidConfig)
    pids = 2 * config.data.batch_size // config.data.instances
    model = ReidModel(config, pids, CAMERAS)
    shape: tuple[int, ...] = (3, config.data.height, config.data.width)
    if config.backbone.frozen:
        backbone = model.take_backbone()
        shape = (1 + backbone.patches, backbone.embed)
    patterns = torch.randn(pids, len(MODALITIES), *shape, generator=torch.Generator().manual_seed(seed))

    def batch(step: int) -> ReidBatch:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        chosen = torch.randperm(pids, generator=generator)[: pids // 2]
        labels = chosen.repeat_interleave(config.data.instances)
        noise = torch.randn(len(MODALITIES), len(labels), *shape, generator=generator)
        camids = torch.arange(len(labels)) % CAMERAS
        return ReidBatch(patterns[labels].transpose(0, 1) + noise, labels, camids)

    groups: dict[str, list[nn.Parameter]] = {}
    for name, parameters in module_groups(model).items():
        part = "heads" if name.startswith("head_") else name
        groups.setdefault(part, []).extend(parameters)
    if "backbone" in groups:
        groups["encoder"] = groups.pop("backbone")
    return Subject(
        config,
        model,
        lambda images: reid_loss(model, config, images)[0],
        batch,
        groups,
        trunk(model),
    )
