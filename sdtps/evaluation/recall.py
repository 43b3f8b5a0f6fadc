"""Recall at 1, 5 and 10 between images and captions, in both directions, and their sum.

Image to text: a query is an image, its rank is that of the best of its captions. Text to image: a query
is a caption. Equal similarities count against the query, so that a collapsed model scores nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

RANKS = (1, 5, 10)
FOLD_IMAGES = 1000  # COCO-1K: five folds of 1,000 images


def recalls(similarity: Tensor, per_image: int) -> dict[str, float]:
    """Metrics of a similarity matrix.

    Args:
        similarity: (I, I x per_image); caption j belongs to image j // per_image.

    Returns:
        i2t_r1, i2t_r5, i2t_r10, t2i_r1, t2i_r5, t2i_r10 as fractions in [0, 1], and rsum, the sum of
        the six: in [0, 6] here, in [0, 600] where tables print per cent.

    Raises:
        FloatingPointError: the similarities are not finite.
    """
    if not torch.isfinite(similarity).all():
        raise FloatingPointError("similarities are not finite: the model has diverged")
    image_ranks, caption_ranks = ranks(similarity, per_image)
    result = {}
    for direction, found in (("i2t", image_ranks), ("t2i", caption_ranks)):
        for k in RANKS:
            result[f"{direction}_r{k}"] = (found < k).double().mean().item()
    result["rsum"] = sum(result.values())
    return result


def ranks(similarity: Tensor, per_image: int) -> tuple[Tensor, Tensor]:
    """Ranks from 0 of each image's best caption (I) and of each caption's image (I x per_image)."""
    images, captions = similarity.shape
    owner = torch.arange(captions) // per_image
    own = owner[None, :] == torch.arange(images)[:, None]
    best = similarity.masked_fill(~own, -torch.inf).amax(1, keepdim=True)
    image_ranks = ((similarity >= best) & ~own).sum(1)
    target = similarity.gather(0, owner[None, :])
    caption_ranks = ((similarity >= target) & ~own).sum(0)
    return image_ranks, caption_ranks


def recalls_in_folds(similarity: Tensor, per_image: int, images: int | None = None) -> dict[str, float]:
    """Mean of `recalls` over folds of `images` consecutive images; default 1,000 (COCO-1K).

    Raises:
        ValueError: fewer images than one fold.
    """
    images = images or FOLD_IMAGES
    folds = len(similarity) // images
    if folds == 0:
        raise ValueError(f"{len(similarity)} images are fewer than one fold of {images}")
    results = []
    for fold in range(folds):
        rows = slice(fold * images, (fold + 1) * images)
        columns = slice(rows.start * per_image, rows.stop * per_image)
        results.append(recalls(similarity[rows, columns], per_image))
    return {name: sum(r[name] for r in results) / folds for name in results[0]}
