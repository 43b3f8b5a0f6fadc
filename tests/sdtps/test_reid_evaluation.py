"""Ranking equals a query-by-query reading of the protocol, and refuses what cannot be ranked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdtps.evaluation import reid as evaluation
from sdtps.evaluation.reid import rank
from sdtps.system.errors import DataError


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


def cumulative(ranks: torch.Tensor, length: int) -> torch.Tensor:
    """The CMC curve."""
    return (ranks[:, None] <= torch.arange(1, length + 1)).double().mean(0)


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
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evaluation, "QUERY_CHUNK", 3)
        ranking = rank(*tensors)
    np.testing.assert_allclose(cumulative(ranking["rank"], g), cmc / len(precisions), rtol=1e-12)
    np.testing.assert_allclose(ranking["AP"], precisions, rtol=1e-12)
    assert q - len(ranking["AP"]) == skipped


def test_a_diverged_model_is_not_ranked() -> None:
    with pytest.raises(FloatingPointError, match="diverged"):
        rank(torch.tensor([[float("nan")]]), *[torch.zeros(1)] * 4)


def slow_reranked(query: torch.Tensor, gallery: torch.Tensor, k1: int, k2: int) -> np.ndarray:
    """k-reciprocal re-ranking, one image after the other."""
    features = torch.cat([query, gallery]).double().numpy()
    squared = ((features[:, None] - features[None]) ** 2).sum(-1)
    distances = squared / squared.max(1, keepdims=True)
    order = np.argsort(distances, axis=1, kind="stable")

    def reciprocal(image: int, k: int) -> set[int]:
        return {int(j) for j in order[image, : k + 1] if image in order[j, : k + 1]}

    vectors = np.zeros_like(distances)
    for image in range(len(features)):
        own = reciprocal(image, k1)
        members = set(own)
        for candidate in own:
            theirs = reciprocal(candidate, round(k1 / 2))
            if len(theirs & own) > 2 / 3 * len(theirs):
                members |= theirs
        for j in members:
            vectors[image, j] = np.exp(-distances[image, j])
        vectors[image] /= vectors[image].sum()
    vectors = np.stack([vectors[order[image, :k2]].mean(0) for image in range(len(features))])
    count = len(query)
    result = np.empty((count, len(gallery)))
    for i in range(count):
        for j in range(len(gallery)):
            shared = np.minimum(vectors[i], vectors[count + j]).sum()
            result[i, j] = 0.7 * (1 - shared / (2 - shared)) + 0.3 * distances[i, count + j]
    return result


@pytest.mark.parametrize(("k1", "k2"), [(6, 3), (20, 6), (4, 1)])
def test_reranking_equals_a_plain_computation(k1: int, k2: int) -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(30, 5, generator=generator)
    features = torch.nn.functional.normalize(features.double())
    found = evaluation.reranked(features[:8], features[8:], k1=k1, k2=k2)
    expected = slow_reranked(features[:8], features[8:], k1, k2)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-9)


def test_a_metric_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def queries(query: evaluation.Features, gallery: evaluation.Features, rerank: bool) -> Any:
        yield "queries", float(len(query.values))

    monkeypatch.setattr(evaluation, "EVALUATORS", (queries,))
    one = evaluation.Features(torch.eye(3), torch.arange(3), torch.zeros(3))
    assert dict(evaluation.evaluate(one, one, suffix="rerank")) == {"queries@rerank": 3.0}
