"""Ranking equals a query-by-query reading of the protocol, and refuses what cannot be ranked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdtps.errors import DataError
from sdtps.evaluation import reid as evaluation
from sdtps.evaluation.reid import rank, rank_features


def by_hand(distances: np.ndarray, qp: np.ndarray, gp: np.ndarray, qv: np.ndarray, gv: np.ndarray):
    """The protocol in words, one query at a time."""
    cmc, precisions, skipped = np.zeros(distances.shape[1]), [], 0
    for q in range(len(qp)):
        order = [
            g
            for g in np.argsort(distances[q], kind="stable")
            if not (gp[g] == qp[q] and gv[g] == qv[q])
        ]
        hits = [k for k, g in enumerate(order) if gp[g] == qp[q]]
        if not hits:
            skipped += 1
            continue
        cmc[hits[0] :] += 1
        precisions.append(np.mean([(i + 1) / (k + 1) for i, k in enumerate(hits)]))
    return cmc, precisions, skipped


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 12), st.integers(1, 4))
def test_rank_equals_the_protocol_query_by_query(seed: int, q: int, g: int, pids: int) -> None:
    random = np.random.default_rng(seed)
    distances = random.integers(0, 4, (q, g)).astype(float)  # many ties: the sort must be stable
    arrays = [random.integers(0, n, size) for n, size in ((pids, q), (pids, g), (2, q), (2, g))]
    cmc, precisions, skipped = by_hand(distances, *arrays)
    tensors = [torch.from_numpy(a) for a in (distances, *arrays)]
    if not precisions:
        with pytest.raises(DataError, match=f"none of {q} queries"):
            rank(*tensors)
        return
    ranking = rank(*tensors)
    np.testing.assert_allclose(ranking.cmc, cmc / len(precisions), rtol=1e-12)
    assert ranking.mean_average_precision == pytest.approx(np.mean(precisions), rel=1e-12)
    assert (ranking.queries, ranking.skipped) == (len(precisions), skipped)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    arguments = (torch.rand(10, 30), torch.arange(10) % 3, torch.arange(30) % 3)
    views = (torch.zeros(10), torch.arange(30) % 2)
    whole = rank(*arguments, *views)
    monkeypatch.setattr(evaluation, "QUERY_CHUNK", 3)
    parts = rank(*arguments, *views)
    assert torch.equal(whole.cmc, parts.cmc)
    assert whole.metrics() == parts.metrics()


def test_camera_and_scene_rules_differ_only_in_the_views_given() -> None:
    distances = torch.tensor([[0.1, 0.2, 0.3]])
    pids, gallery = torch.tensor([7]), torch.tensor([7, 8, 7])
    same_camera = rank(distances, pids, gallery, torch.tensor([0]), torch.tensor([0, 0, 1]))
    other_scene = rank(distances, pids, gallery, torch.tensor([5]), torch.tensor([6, 6, 5]))
    assert same_camera.metrics()["rank1"] == 0.0
    assert other_scene.metrics()["rank1"] == 1.0


def test_features_are_normalised_before_distances() -> None:
    query = torch.tensor([[100.0, 1.0]])
    gallery = torch.tensor([[1.0, 0.0], [90.0, 90.0]])
    ranking = rank_features(
        query, gallery, torch.tensor([1]), torch.tensor([1, 2]), torch.tensor([0]), torch.tensor([1, 1])
    )
    assert ranking.metrics() == {"mAP": 1.0, "rank1": 1.0, "rank5": 1.0, "rank10": 1.0}


def test_a_diverged_model_is_not_ranked() -> None:
    with pytest.raises(FloatingPointError, match="diverged"):
        rank(torch.tensor([[float("nan")]]), *[torch.zeros(1)] * 4)
