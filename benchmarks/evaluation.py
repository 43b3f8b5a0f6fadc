"""Ranking of RGBNT201's test split beside a loop over queries, on random features."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.machine import compare, machine
from sdtps.evaluation.reid import MAX_RANK, rank_features
from sdtps.models.losses import euclidean_distances


def ranking_loop(features: Tensor, pids: Tensor, camids: Tensor) -> tuple[float, float]:
    """mAP and rank-1 by the published protocol, one query after the other, in NumPy."""
    normal = F.normalize(features)
    distances = euclidean_distances(normal, normal).cpu().numpy()
    pid, camera = pids.cpu().numpy(), camids.cpu().numpy()
    precisions, curves = [], []
    for query in range(len(distances)):
        order = np.argsort(distances[query], kind="stable")
        kept = order[~((pid[order] == pid[query]) & (camera[order] == camera[query]))]
        hits = (pid[kept] == pid[query]).astype(np.int64)
        if not hits.any():
            continue
        found = hits.cumsum()
        precision = [count / (place + 1.0) for place, count in enumerate(found)]
        precisions.append((np.asarray(precision) * hits).sum() / hits.sum())
        curves.append(np.minimum(found, 1)[:MAX_RANK])
    return float(np.mean(precisions)), float(np.mean(curves, axis=0)[0])


def run(
    device: torch.device, *, queries: int = 836, width: int = 1536, repeats: int = 7
) -> dict[str, Any]:
    """Seconds to rank every image among all others, from features on the device."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(queries, width, generator=generator).to(device)
    pids = (torch.arange(queries) % 30).to(device)
    camids = (torch.arange(queries) // 30 % 2).to(device)

    def ours() -> dict[str, float]:
        return rank_features(features, features, pids, pids, camids, camids).metrics()

    metrics, reference = ours(), ranking_loop(features, pids, camids)
    timed = compare(
        ours, lambda: ranking_loop(features, pids, camids), device, repeats=repeats, warmup=1
    )
    return {
        "bench": "eval",
        **machine(device),
        "queries": queries,
        "width": width,
        **timed,
        "difference": {
            "mAP": abs(metrics["mAP"] - reference[0]),
            "rank1": abs(metrics["rank1"] - reference[1]),
        },
    }
