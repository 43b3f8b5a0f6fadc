"""Outputs of a frozen backbone in place of images: computed once, shared by the jobs of a node.

One memory-mapped file for each split and everything that decides its content: images and size, the
backbone's weights (its random camera table too), precision, device and the code that computes it. With
`backbone.camera_embedding` false and weights from a file, all seeds share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from sdtps.config import ReidConfig
from sdtps.data import augment, reid_cache, reid_images
from sdtps.data.features import feature_key, state_digest
from sdtps.data.reid_cache import CachedTestBatches, MappedRows, mapped_once, new_map, pixels_key
from sdtps.data.reid_folders import Sample
from sdtps.data.reid_images import BICUBIC, BILINEAR, JpegTestBatches, ReidBatch, own_rows
from sdtps.data.sampler import PkSampler
from sdtps.models import backbones

# What turns a file into features; a change in one of them makes the cache anew.
_CODE = (augment, backbones, reid_cache, reid_images)
_LETTERS = "rnt"  # modalities in `eval.missing`


class TokenBatches:
    """Training batches of cached tokens: no pixels, nothing drawn but the order."""

    def __init__(
        self,
        samples: Sequence[Sample],
        config: ReidConfig,
        backbone: nn.Module,
        seed: int,
        device: torch.device,
        folder: Path,
    ) -> None:
        data = config.data
        self.sampler = PkSampler([s.label for s in samples], data.batch_size, data.instances, seed)
        self.steps_per_epoch = self.sampler.batches
        self.tokens = _Tokens(samples, config, backbone, BICUBIC, device, folder)
        self.own = own_rows(data.batch_size)

    def epoch(self, epoch: int, first: int) -> Iterator[ReidBatch]:
        """Batches `first`, `first` + 1, ... of `epoch` on the device."""
        for indices in self.sampler.epoch(epoch)[first:]:
            yield self.tokens.batch(indices[self.own])


class TokenTestBatches:
    """Test batches of cached tokens, in the order of `samples`.

    Missing modalities were black images when the tokens were computed.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        config: ReidConfig,
        backbone: nn.Module,
        device: torch.device,
        folder: Path,
    ) -> None:
        missing = config.eval.missing
        self.tokens = _Tokens(samples, config, backbone, BILINEAR, device, folder, missing)
        self.size = config.data.test_batch_size
        self.count = len(samples)

    def __iter__(self) -> Iterator[ReidBatch]:
        for start in range(0, self.count, self.size):
            yield self.tokens.batch(np.arange(start, min(start + self.size, self.count)))


class _Tokens:
    """What the backbone makes of each sample, by row."""

    def __init__(
        self,
        samples: Sequence[Sample],
        config: ReidConfig,
        backbone: nn.Module,
        resampling: Image.Resampling,
        device: torch.device,
        folder: Path,
        missing: str = "nothing",
    ) -> None:
        data = config.data

        def write(file: Path) -> None:
            batches: CachedTestBatches | JpegTestBatches
            if data.pipeline == "cached":
                batches = CachedTestBatches(samples, data, device, folder, resampling)
            else:
                batches = JpegTestBatches(samples, data, device, resampling)
            encode(batches, len(samples), backbone, config.train.amp, missing, file)

        self.labels = torch.tensor([s.label for s in samples], device=device)
        self.camids = torch.tensor([s.camid for s in samples], device=device)
        key = feature_key(
            pixels=pixels_key(samples, data, resampling),
            pipeline=data.pipeline,
            cameras=self.camids.tolist(),
            backbone=config.backbone.model_dump(exclude={"weights"}),
            tensors=state_digest(backbone),
            amp=config.train.amp,
            tf32=config.train.tf32 and device.type == "cuda",
            missing=missing,
            device=device.type,
            torch=torch.__version__,
            code=[hashlib.sha256(Path(str(m.__file__)).read_bytes()).hexdigest() for m in _CODE],
        )
        target = folder / f"tokens-{key}.npy"
        self.rows = MappedRows(mapped_once(target, (len(samples), 3), write), device)

    def batch(self, indices: np.ndarray) -> ReidBatch:
        tokens = self.rows.rows(indices)
        if tokens.dtype == torch.int16:
            tokens = tokens.view(torch.bfloat16)
        index = torch.from_numpy(indices).to(self.labels.device, non_blocking=True)
        return ReidBatch(tokens.transpose(0, 1), self.labels[index], self.camids[index])


@torch.no_grad()
def encode(
    batches: CachedTestBatches | JpegTestBatches,
    count: int,
    backbone: nn.Module,
    amp: str,
    missing: str,
    target: Path,
) -> None:
    """Write tokens [count, M, 1 + N, C], in the precision in which the backbone gives them.

    NumPy has no bfloat16: its bits are kept as int16.
    """
    backbone.eval()
    dtype = torch.float16 if amp == "fp16" else torch.bfloat16
    written, file = 0, None
    for batch in batches:
        modalities = len(batch.images)
        images = without(batch.images, missing).flatten(0, 1)
        with torch.autocast(images.device.type, dtype=dtype, enabled=amp != "off"):
            classes, patches = backbone(images, batch.camids.repeat(modalities))
        tokens = torch.cat([classes.unsqueeze(1), patches], dim=1)
        tokens = tokens.unflatten(0, (modalities, -1)).transpose(0, 1).cpu()
        if tokens.dtype == torch.bfloat16:
            tokens = tokens.contiguous().view(torch.int16)
        rows = tokens.numpy()
        if file is None:
            shape = (count, *rows.shape[1:])
            file = new_map(target, rows.dtype, shape)
        file[written : written + len(rows)] = rows
        written += len(rows)
    assert file is not None and written == count
    file.flush()


def without(images: Tensor, missing: str) -> Tensor:
    """Images [M, B, ...] with those of missing modalities (letters of r, n, t) zeroed."""
    if missing == "nothing":
        return images
    images = images.clone()
    images[torch.tensor([letter in missing for letter in _LETTERS], device=images.device)] = 0
    return images
