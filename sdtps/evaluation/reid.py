"""Evaluation of re-identification: CMC and mean average precision, k-reciprocal re-ranking.

Protocol of DeMo: a query's own view is taken out of its gallery, queries without any match left are
skipped, AP = mean precision at the hits. The own view is the same identity in the same camera
(RGBNT201, RGBNT100) or in the same scene (MSVR310, camera ignored). Ranking is a stable sort: equal
distances keep gallery order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sdtps.models.losses import euclidean_distances
from sdtps.system.errors import DataError

RANKS = (1, 5, 10)
QUERY_CHUNK = 512  # rows sorted at once; bounds memory, cannot change a result


def rank(
    distances: Tensor,
    query_pids: Tensor,
    gallery_pids: Tensor,
    query_views: Tensor,
    gallery_views: Tensor,
) -> dict[str, Tensor]:
    """Rank the gallery for each query.

    Args:
        distances: [Q, G].
        query_pids, query_views: [Q]; gallery_pids, gallery_views: [G]. Views are camera ids
            (camera rule) or scene ids (MSVR310's scene rule).

    Returns:
        Of the queries with a match left: AP in [0, 1], rank (of the first hit, from 1), identity. A
        CMC curve is the share of the queries whose rank is at most 1, 2, ...

    Raises:
        DataError: no query has a match left in the gallery.
        FloatingPointError: a distance is not finite (the model diverged).
    """
    device = distances.device
    query_pids, query_views = query_pids.to(device), query_views.to(device)
    gallery_pids, gallery_views = gallery_pids.to(device), gallery_views.to(device)
    if not torch.isfinite(distances).all():
        raise FloatingPointError("ranking: a distance is not finite, the features have diverged")
    first_hits, precisions, ranked = [], [], []
    for start in range(0, len(distances), QUERY_CHUNK):
        rows = slice(start, start + QUERY_CHUNK)
        order = torch.sort(distances[rows], dim=1, stable=True).indices
        same_pid = gallery_pids[order] == query_pids[rows, None]
        kept = ~(same_pid & (gallery_views[order] == query_views[rows, None]))
        hits = same_pid & kept
        position = kept.cumsum(1)  # 1-based rank among what is kept
        found = hits.cumsum(1)
        valid = hits.any(1)
        precision = (found.double() / position.clamp_min(1) * hits).sum(1) / hits.sum(1).clamp_min(1)
        first = torch.where(hits, position, position.shape[1] + 1).amin(1)
        precisions.append(precision[valid])
        first_hits.append(first[valid])
        ranked.append(query_pids[rows][valid])
    if not any(map(len, ranked)):
        raise DataError(
            f"no query can be evaluated: none of {len(distances)} queries has its identity in the "
            "gallery outside its own camera or scene. Check the split and the identity labels."
        )
    by_query = {"AP": precisions, "rank": first_hits, "identity": ranked}
    return {name: torch.cat(parts).cpu() for name, parts in by_query.items()}


@dataclass(frozen=True)
class Features:
    """L2-normalised features [N, D] of query or gallery with their identities and views [N]."""

    values: Tensor
    pids: Tensor
    views: Tensor


# An evaluator is asked with (query, gallery, whether to re-rank) and yields metrics by name, fractions
# in [0, 1], or what it knows of each query, a tensor [Q]. A new metric of re-identification is one
# function in this table.
Evaluator = Callable[[Features, Features, bool], Iterator[tuple[str, float | Tensor]]]


def ranking(query: Features, gallery: Features, rerank: bool) -> Iterator[tuple[str, float | Tensor]]:
    """mAP, rank1, rank5 and rank10, and each query's AP, rank and identity; raises as `rank` does."""
    distances = euclidean_distances(query.values, gallery.values)
    if rerank:
        distances = reranked(query.values, gallery.values)
    found = rank(distances, query.pids, gallery.pids, query.views, gallery.views)
    yield "mAP", found["AP"].mean().item()
    for k in RANKS:
        yield f"rank{k}", (found["rank"] <= k).double().mean().item()
    yield from found.items()


EVALUATORS: tuple[Evaluator, ...] = (ranking,)


def evaluate(
    query: Features,
    gallery: Features,
    *,
    rerank: bool = False,
    suffix: str = "",
    queries: dict[str, Tensor] | None = None,
) -> Iterator[tuple[str, float]]:
    """Every evaluator's metrics; with a condition's name as NAME@CONDITION.

    Args:
        queries: takes what evaluators know of each query.
    """
    for evaluator in EVALUATORS:
        for name, value in evaluator(query, gallery, rerank):
            if not isinstance(value, Tensor):
                yield (f"{name}@{suffix}" if suffix else name), value
            elif queries is not None:
                queries[name] = value


def reranked(
    query: Tensor, gallery: Tensor, *, k1: int = 20, k2: int = 6, weight: float = 0.3
) -> Tensor:
    """Distances [Q, G] after k-reciprocal re-ranking of L2-normalised features [Q, D] and [G, D].

    Zhong et al., Re-ranking Person Re-identification with k-reciprocal Encoding (CVPR 2017), with its
    published constants: `weight` x the original distance + (1 - `weight`) x the Jaccard distance of
    k-reciprocal neighbourhoods. As its code does, distances are squared and divided by each row's
    largest. Memory grows with (Q + G)^2.
    """
    features = torch.cat([query, gallery]).double()
    count = len(features)
    squared = (2 - 2 * features @ features.T).clamp_min(0)
    distances = squared / squared.amax(1, keepdim=True).clamp_min(1e-12)
    k1, k2 = min(k1, count - 1), min(k2, count)
    order = torch.sort(distances, dim=1, stable=True).indices
    neighbours = torch.zeros(count, count, dtype=torch.bool, device=features.device)
    near = neighbours.scatter(1, order[:, : k1 + 1], True)
    reciprocal = near & near.T
    half = round(k1 / 2)
    near = neighbours.scatter(1, order[:, : half + 1], True)
    half_reciprocal = near & near.T
    # A neighbour's own half set joins where two thirds of it are in the set already.
    shared = half_reciprocal.double() @ reciprocal.double().T  # [candidate, probe]
    enough = 2 / 3 * half_reciprocal.sum(1)[None, :] < shared.T
    joined = (reciprocal & enough).double() @ half_reciprocal.double()
    members = reciprocal | (joined > 0)
    encoding = torch.exp(-distances) * members
    encoding = encoding / encoding.sum(1, keepdim=True).clamp_min(1e-12)
    if k2 > 1:  # local query expansion
        encoding = encoding[order[:, :k2]].mean(1)
    queries = len(query)
    shared = torch.stack([torch.minimum(row, encoding[queries:]).sum(1) for row in encoding[:queries]])
    jaccard = 1 - shared / (2 - shared)
    return (1 - weight) * jaccard + weight * distances[:queries, queries:]
