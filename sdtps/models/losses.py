"""The losses of both tasks.

Re-identification: DeMo's label-smoothed cross-entropy and batch-hard triplet, in float32 at least and
outside autocast, because squared distances of raw features overflow float16. Retrieval: hinges over
similarities (equation 6); the ratio loss is an axis, in `sdtps.config.axes`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sdtps.selection import full_precision, no_autocast

SQUARED_DISTANCE_FLOOR = 1e-12  # keeps the square root's slope finite, DeMo


def label_smooth_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.1) -> Tensor:
    """Mean cross-entropy against (1 - smoothing) one-hot + smoothing / classes.

    Args:
        logits: [B, P]; labels: [B] in 0..P-1.
    """
    return F.cross_entropy(full_precision(logits), labels, label_smoothing=smoothing)


def euclidean_distances(first: Tensor, second: Tensor) -> Tensor:
    """Distances [B, D], [G, D] -> [B, G], as |x|^2 + |y|^2 - 2xy, at least 1e-6 (DeMo)."""
    with no_autocast(first):
        first, second = full_precision(first), full_precision(second)
        squared = first.square().sum(1, keepdim=True) + second.square().sum(1) - 2 * first @ second.T
        return squared.clamp_min(SQUARED_DISTANCE_FLOOR).sqrt()


def batch_hard_triplet(features: Tensor, labels: Tensor, margin: float | None = None) -> Tensor:
    """Each image's farthest positive against its nearest negative, on un-normalised features.

    Args:
        features: [B, D]; labels: [B]. An image is its own positive where it has no other.
        margin: None = soft margin, mean log(1 + exp(d_ap - d_an)), which DeMo trains with;
            a number = mean max(0, d_ap - d_an + margin).
    """
    distances = euclidean_distances(features, features)
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    farthest_positive = distances.masked_fill(~same, float("-inf")).amax(dim=1)
    nearest_negative = distances.masked_fill(same, float("inf")).amin(dim=1)
    gap = farthest_positive - nearest_negative
    return F.softplus(gap).mean() if margin is None else F.relu(gap + margin).mean()


def contrastive_loss(
    scores: Tensor, *, margin: float = 0.2, hardest: bool = False, image_ids: Tensor | None = None
) -> Tensor:
    """Triplet hinges of every pair against its row and its column (equation 6).

    Args:
        scores: similarity (B, B) of image i (row) and caption j (column); the diagonal is paired.
        hardest: keep each row's and each column's largest hinge (released: from the second epoch on)
            instead of the sum of all.
        image_ids: (B) source image of each pair; captions of one image are no negatives of each other.

    Returns:
        Scalar, summed over the batch (not averaged), as released.
    """
    paired = scores.diagonal()
    if image_ids is None:
        same = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    else:
        same = image_ids[:, None] == image_ids[None, :]
    captions = (margin + scores - paired[:, None]).clamp(min=0).masked_fill(same, 0.0)
    images = (margin + scores - paired[None, :]).clamp(min=0).masked_fill(same, 0.0)
    if hardest:
        return captions.amax(1).sum() + images.amax(0).sum()
    return captions.sum() + images.sum()
