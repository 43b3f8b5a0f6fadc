"""Recalls against a slow and plain computation, and where ties and folds could cheat."""

from __future__ import annotations

import pytest
import torch

from sdtps.evaluation import retrieval
from sdtps.evaluation.retrieval import evaluate, in_folds, recall


def recalls(similarity: torch.Tensor, per_image: int) -> dict[str, float]:
    return dict(evaluate(similarity, per_image, "full"))


def slow(similarity: torch.Tensor, per_image: int) -> dict[str, float]:
    images, captions = similarity.shape
    found: dict[str, list[int]] = {"i2t": [], "t2i": []}
    for i in range(images):
        order = sorted(range(captions), key=lambda j: -similarity[i, j].item())
        own = range(i * per_image, (i + 1) * per_image)
        # The best of its captions; the other captions of the image are no mistakes before it.
        found["i2t"].append(min(order.index(j) for j in own))
    for j in range(captions):
        order = sorted(range(images), key=lambda i: -similarity[i, j].item())
        found["t2i"].append(order.index(j // per_image))
    result = {
        f"{d}_r{k}": sum(r < k for r in found[d]) / len(found[d]) for d in found for k in (1, 5, 10)
    }
    return {**result, "rsum": sum(result.values())}


@pytest.mark.parametrize("per_image", [1, 5])
def test_equals_the_plain_computation(per_image: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "RANKED_AT_ONCE", 5)  # of 12 images
    torch.manual_seed(per_image)
    similarity = torch.randn(12, 12 * per_image)
    similarity += 1.2 * torch.eye(12).repeat_interleave(per_image, dim=1)
    expected = slow(similarity, per_image)
    assert recalls(similarity, per_image) == pytest.approx(expected)
    assert 0 < expected["i2t_r1"] < 1


def test_a_collapsed_model_scores_nothing() -> None:
    assert recalls(torch.zeros(20, 100), 5)["rsum"] == 0


def test_folds_are_scored_apart_and_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    similarity = torch.randn(6, 12)
    expected = [recalls(similarity[a : a + 3, 2 * a : 2 * a + 6], 2)["i2t_r1"] for a in (0, 3)]
    monkeypatch.setattr(retrieval, "FOLD_IMAGES", 3)
    assert in_folds(recall, similarity, 2)["i2t_r1"] == pytest.approx(sum(expected) / 2)


def test_numbers_that_are_none_are_an_error() -> None:
    with pytest.raises(FloatingPointError):
        recalls(torch.full((2, 2), torch.nan), 1)
