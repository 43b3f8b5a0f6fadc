"""Losses by hand on small batches, and in low precision."""

from __future__ import annotations

import math

import pytest
import torch

from sdtps.models.losses import batch_hard_triplet, euclidean_distances, label_smooth_cross_entropy

FEATURES = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
LABELS = torch.tensor([0, 0, 1, 1])


def test_batch_hard_takes_the_farthest_positive_and_nearest_negative() -> None:
    gaps = [1 - 3, 1 - 2, 4 - 2, 4 - 6]
    soft = sum(math.log1p(math.exp(g)) for g in gaps) / 4
    hard = sum(max(0.0, g + 0.3) for g in gaps) / 4
    assert batch_hard_triplet(FEATURES, LABELS).item() == pytest.approx(soft)
    assert batch_hard_triplet(FEATURES, LABELS, 0.3).item() == pytest.approx(hard)


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


def test_label_smoothing_spreads_epsilon_over_all_classes() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0]])
    log_p = logits.log_softmax(1)[0]
    expected = -(0.9 * log_p[0] + 0.1 * log_p.mean())
    torch.testing.assert_close(label_smooth_cross_entropy(logits, torch.tensor([0])), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_distances_of_large_features_do_not_overflow_in_half_precision(dtype: torch.dtype) -> None:
    features = torch.full((2, 8), 400.0, dtype=dtype)  # squares overflow float16
    features[1] = -400.0
    with torch.autocast("cpu", dtype=dtype):
        distances = euclidean_distances(features, features)
    assert distances.dtype == torch.float32
    assert distances[0, 1].item() == pytest.approx(800 * math.sqrt(8), rel=1e-3)
