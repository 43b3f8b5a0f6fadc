"""Losses of image-text retrieval: hinges over similarities, and the ratio loss in three forms."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


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


def ratio_loss(
    sparse: Tensor,
    dense: Tensor | None,
    *,
    form: Literal["released", "separate", "eq7"],
    keep_ratio: float,
    lambda_sparse: float = 1.0,
    lambda_dense: float = 1.0,
) -> Tensor:
    """How far the decisions D (T, B, N) of the two branches are from keeping `keep_ratio`; a scalar.

    `released`: (mean(Ds + Dd) - rho)^2. `separate`: l1 (mean Ds - rho)^2 + l2 (mean Dd - rho)^2, the
    paper-version module's. `eq7`: (rho - l1 mean Ds - l2 mean Dd)^2 with means over the selected
    patches alone, as the paper writes it. With exact Top-K all three are constants without gradient.
    `dense` is None where no dense text is used.
    """
    if form == "released":
        total = sparse if dense is None else sparse + dense
        return (total.mean() - keep_ratio) ** 2
    if form == "separate":
        loss = lambda_sparse * (sparse.mean() - keep_ratio) ** 2
        if dense is not None:
            loss = loss + lambda_dense * (dense.mean() - keep_ratio) ** 2
        return loss
    kept = lambda_sparse * _mean_over_kept(sparse)
    if dense is not None:
        kept = kept + lambda_dense * _mean_over_kept(dense)
    return (keep_ratio - kept) ** 2


def _mean_over_kept(decision: Tensor) -> Tensor:
    """Mean of D where it is 1; a straight-through D brings its gradient along."""
    kept = (decision.detach() > 0.5).to(decision.dtype)
    return (decision * kept).sum() / kept.sum()
