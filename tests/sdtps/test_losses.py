"""Losses by hand on small batches, and in low precision."""

from __future__ import annotations

import math

import pytest
import torch

from sdtps.models.losses import batch_hard_triplet, euclidean_distances

FEATURES = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
LABELS = torch.tensor([0, 0, 1, 1])


def test_one_identity_alone_has_no_triplet_and_no_nan() -> None:
    features = FEATURES.clone().requires_grad_(True)
    loss = batch_hard_triplet(features, torch.zeros(4))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(features.grad, torch.zeros(4, 1))


def test_equal_features_have_finite_gradients() -> None:
    features = torch.ones(4, 3, requires_grad=True)
    batch_hard_triplet(features, LABELS).backward()
    assert torch.isfinite(features.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_distances_of_large_features_do_not_overflow_in_half_precision(dtype: torch.dtype) -> None:
    features = torch.full((2, 8), 400.0, dtype=dtype)  # squares overflow float16
    features[1] = -400.0
    with torch.autocast("cpu", dtype=dtype):
        distances = euclidean_distances(features, features)
    assert distances.dtype == torch.float32
    assert distances[0, 1].item() == pytest.approx(800 * math.sqrt(8), rel=1e-3)
