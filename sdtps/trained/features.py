"""What a trained model makes of pictures, and in retrieval of texts, that it has never seen."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sdtps.config import ReidConfig
from sdtps.config.reid import MODALITY_LETTERS
from sdtps.config.retrieval import DenseText
from sdtps.data.captions import CaptionSplit, with_digests
from sdtps.data.images import BILINEAR, raise_mistakes
from sdtps.data.own import Picture
from sdtps.data.reid_batches import TestBatches, decode
from sdtps.data.reid_folders import Sample
from sdtps.evaluation.retrieval import Scorer, takes_dense
from sdtps.system.errors import RunError
from sdtps.trained.model import Trained, reid_model, task_of
from sdtps.training.device import prepare_torch
from sdtps.training.reid import ranked_features


def features_of(trained: Trained, pictures: Sequence[Picture]) -> Tensor:
    """Re-identification: [N, D] L2-normalised features. Retrieval: visual tokens [N, V, C].

    Raises:
        DataError: a camid that the model was not trained with.
    """
    if isinstance(trained.config, ReidConfig):
        with torch.no_grad():
            return _reid(trained, trained.config, pictures)
    return _scorer(trained, pictures).tokens.cpu()


def _reid(trained: Trained, config: ReidConfig, pictures: Sequence[Picture]) -> Tensor:
    device = prepare_torch(config)
    model = reid_model(trained, config, device).eval()
    assert model.backbone is not None
    table = model.backbone.camera
    cameras = 0 if table is None else len(table)
    camids = {str(number + 1): number for number in range(cameras)}
    if table is not None:
        wrong = {p.camid: f"camid '{p.camid}', of {p.name} for one" for p in pictures}
        told = [text for camid, text in wrong.items() if camid not in {"", *camids}]
        raise_mistakes(
            f"the model has cameras 1 to {cameras}, numbered in sorted order; leave others empty", told
        )
        if not all(p.camid for p in pictures):
            print(
                "The model has an embedding for each training camera; pictures without a camid are "
                "embedded without it.",
                file=sys.stderr,
            )
        model.backbone.camera = nn.Parameter(F.pad(table, (0, 0, 0, 1)))  # a row for no camera
    size, found = config.data.test_batch_size, []
    for start in range(0, len(pictures), size):
        block = pictures[start : start + size]
        samples = []
        for picture in block:
            rgb, nir, tir = (picture.paths.get(m, picture.shown) for m in MODALITY_LETTERS)
            samples.append(Sample((rgb, nir, tir), False, -1, camids.get(picture.camid, cameras), -1))
        pixels = np.stack([decode(sample, config.data, BILINEAR) for sample in samples])
        (batch,) = TestBatches(samples, pixels, size, device)
        for row, picture in enumerate(block):
            for modality, letter in enumerate(MODALITY_LETTERS):
                if letter not in picture.paths:
                    batch.images[modality, row] = 0
        found.append(ranked_features(model, config, batch.images, batch.camids).cpu())
    return torch.cat(found)


def similarities_of(
    trained: Trained, pictures: Sequence[Picture], texts: Sequence[str], dense: Sequence[str] = ()
) -> Tensor:
    """Similarity [texts, pictures] in retrieval; `dense` descriptions guide the selection.

    Raises:
        RunError: dense texts for a model that takes none.
    """
    scorer = _scorer(trained, pictures, texts, dense)
    if dense and not takes_dense(scorer.config):
        raise RunError(f"--dense: {trained.name} takes no dense text")
    which = np.arange(len(texts))
    mode: DenseText = "own" if dense else "none"
    return scorer.score(np.arange(len(pictures)), which, [mode], targets=which)[mode].T


def _scorer(
    trained: Trained,
    pictures: Sequence[Picture],
    texts: Sequence[str] = ("",),
    dense: Sequence[str] = (),
) -> Scorer:
    """The pictures encoded, to be scored with the texts."""
    device = prepare_torch(trained.config)
    task = task_of(trained, trained.config, device)  # its data have the vocabulary
    files = tuple(picture.shown for picture in pictures)
    split = CaptionSplit("pictures", files, tuple(texts), 1, tuple(dense) or None)
    split = with_digests(split, Path(os.path.commonpath([file.parent for file in files])))
    return Scorer(task.model, task.encoders.source(split), task.config, device)
