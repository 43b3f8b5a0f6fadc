"""Outputs of frozen encoders, computed once and shared by every run that wants the same.

A file of the cache holds what an encoder makes of the images or texts of a split; its key names all
that decides the content: files and size, the encoder's weights (its random camera table too),
precision, device and the code that computes it. With weights from a file and no camera table, all seeds
share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from sdtps.config import ReidConfig
from sdtps.data import augment, cache, images, reid_batches
from sdtps.data.cache import Ragged, cache_key, mapped_once, new_map
from sdtps.data.caption_batches import Source, Texts
from sdtps.data.reid_batches import TestBatches, cached_pixels, pixels_key, without
from sdtps.data.reid_folders import Sample
from sdtps.models import backbones, checkpoints

# What turns a file into features; a change in one of them makes the cache anew.
_CODE = (augment, backbones, cache, checkpoints, images, reid_batches)
TEXTS_AT_ONCE = 64  # through a frozen text encoder
IMAGES_ON_CPU = 20  # at once through a convolutional encoder: of more, a core's cache holds too little


def state_digest(module: nn.Module) -> str:
    """sha256 of a module's parameters and buffers with their names."""
    digest = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        digest.update(key.encode())
        digest.update(np.ascontiguousarray(value.cpu().numpy()).tobytes())
    return digest.hexdigest()


def backbone_tokens(
    samples: Sequence[Sample],
    config: ReidConfig,
    backbone: nn.Module,
    resampling: Image.Resampling,
    device: torch.device,
    folder: Path,
    missing: str = "nothing",
    absent: str = "",
) -> np.ndarray:
    """What the backbone makes of each sample: [samples, M, 1 + N, C], the class token first.

    In the precision in which the backbone gives them; bfloat16's bits as int16, which NumPy lacks.

    Args:
        missing, absent: modalities whose images are zero (letters of r, n, t).
    """
    data = config.data

    def write(file: Path) -> None:
        pixels = cached_pixels(samples, data, resampling, folder)
        batches = TestBatches(samples, pixels, data.test_batch_size, device, absent)
        encoded = _encoded(batches, backbone, config.train.amp, missing)
        _write_rows(file, len(samples), encoded)

    key = cache_key(
        pixels=pixels_key(samples, data, resampling),
        cameras=[s.camid for s in samples],
        backbone=config.backbone.model_dump(exclude={"weights"}),
        tensors=state_digest(backbone),
        amp=config.train.amp,
        tf32=config.train.tf32 and device.type == "cuda",
        missing=f"{missing} {absent}".strip(),
        device=device.type,
        torch=torch.__version__,
        code=[hashlib.sha256(Path(str(m.__file__)).read_bytes()).hexdigest() for m in _CODE],
    )
    return mapped_once(folder / f"tokens-{key}.npy", (len(samples), 3), write)


@torch.no_grad()
def _encoded(batches: TestBatches, backbone: nn.Module, amp: str, missing: str) -> Iterator[np.ndarray]:
    """Tokens [B, M, 1 + N, C] of each batch."""
    backbone.eval()
    dtype = torch.float16 if amp == "fp16" else torch.bfloat16
    for batch in batches:
        modalities = len(batch.images)
        pixels = without(batch.images, missing).flatten(0, 1)
        with torch.autocast(pixels.device.type, dtype=dtype, enabled=amp != "off"):
            classes, patches = backbone(pixels, batch.camids.repeat(modalities))
        tokens = torch.cat([classes.unsqueeze(1), patches], dim=1)
        tokens = tokens.unflatten(0, (modalities, -1)).transpose(0, 1).cpu()
        if tokens.dtype == torch.bfloat16:
            tokens = tokens.contiguous().view(torch.int16)
        yield tokens.numpy()


def image_features(
    source: Source, encoder: nn.Module, digest: str, at_once: int, device: torch.device, folder: Path
) -> np.ndarray:
    """float16 (I, V, width): each image of a split as the encoder's tokens.

    float16 rounds by far less than training moves what reads the features.

    Args:
        digest: of the encoder's name and weights.
    """
    size, count = source.pixels.size, len(source.split.images)
    at_once = min(at_once, IMAGES_ON_CPU) if device.type == "cpu" else at_once

    @torch.no_grad()
    def write(file: Path) -> None:
        encoder.eval().to(device)
        blocks = (range(i, min(i + at_once, count)) for i in range(0, count, at_once))
        encoded = (encoder(source.images(block).to(device)) for block in blocks)
        _write_rows(file, count, (tokens.half().cpu().numpy() for tokens in encoded))

    key = cache_key(images=source.split.digests, size=size, encoder=digest)
    return mapped_once(folder / f"images-{key}.npy", (count,), write)


def text_features(
    source: Source,
    texts: Texts,
    limit: int,
    encoder: nn.Module,
    digest: str,
    device: torch.device,
    folder: Path,
) -> Ragged:
    """float16 (words, width): each text as the encoder's words, `limit` at most."""
    special = len(source.vocabulary.start) + len(source.vocabulary.end)
    lengths = np.minimum(texts.lengths, limit - special) + special
    total = int(lengths.sum())

    @torch.no_grad()
    def write(file: Path) -> None:
        encoder.eval().to(device)
        values = None
        starts = lengths.cumsum() - lengths
        order = np.argsort(lengths, kind="stable")  # texts of like lengths need little padding
        for begin in range(0, len(order), TEXTS_AT_ONCE):
            indices = order[begin : begin + TEXTS_AT_ONCE].tolist()
            batch = source.texts(texts, indices, limit)
            hidden = encoder(*batch.to(device)).half().cpu().numpy()
            if values is None:
                values = new_map(file, hidden.dtype, (total, *hidden.shape[2:]))
            for text, row in zip(indices, hidden, strict=True):
                values[starts[text] : starts[text] + lengths[text]] = row[: lengths[text]]
        assert values is not None
        values.flush()

    content = hashlib.sha256(texts.values.tobytes() + texts.lengths.tobytes()).hexdigest()
    key = cache_key(texts=content, limit=limit, encoder=digest)
    return Ragged(mapped_once(folder / f"texts-{key}.npy", (total,), write), lengths)


def _write_rows(target: Path, count: int, blocks: Iterator[np.ndarray]) -> None:
    """An array of `count` rows from blocks of rows; its type and width are those of the first."""
    written, file = 0, None
    for rows in blocks:
        if file is None:
            file = new_map(target, rows.dtype, (count, *rows.shape[1:]))
        file[written : written + len(rows)] = rows
        written += len(rows)
    assert file is not None and written == count
    file.flush()
