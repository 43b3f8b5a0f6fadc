"""Evaluation of COCO's size, 5,000 x 25,000: measured on a slice of generated features, projected.

The slice goes through the product's own scoring (`sdtps.evaluation.retrieval.similarities`) in the
released form with dense text, 49 patches. Its longest pause between two reports is how long a stop can
take. Ranks are counted on a whole matrix. For a GPU that is not there, the operations of one block are
traced without values; each costs the longer of its multiplications and its memory traffic.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.crossnet import DENSE_WORDS, SPARSE_WORDS, SWIN, WIDTH, Case
from benchmarks.machine import machine
from sdtps.config import RetrievalConfig, parse_config
from sdtps.data.caption_batches import Source, TextBatch
from sdtps.evaluation.retrieval import recalls, similarities
from sdtps.models.retrieval import RetrievalModel

IMAGES, PER_IMAGE = 5000, 5
BLOCK = 128  # test_batch_size of base/coco.yaml
# Of an H100: docs/performance.md measured its copying and its bf16 product, of which TF32 has half;
# plain float32 is the maker's figure.
BYTES_PER_S = 2.93e12
FLOP_PER_S = {"tf32": 747e12 / 2, "float32": 67e12}


class Features(nn.Module):
    """Generated features as data and as the encoders of a model; `crossnet` is the real one."""

    def __init__(self, images: int, device: torch.device) -> None:
        super().__init__()
        self.crossnet = Case("evaluate", "released", images, BLOCK, SWIN, device.type).network()
        self.images = images
        self.captions = self.dense = SimpleNamespace()
        self.split = SimpleNamespace(
            images=range(images), captions=range(images * PER_IMAGE), per_image=PER_IMAGE
        )

    def image_blocks(self, size: int, workers: int) -> Iterator[Tensor]:
        for start in range(0, self.images, size):
            yield torch.randn(min(size, self.images - start), SWIN.patches, WIDTH)

    def texts(self, texts: object, indices: Sequence[int], limit: int) -> TextBatch:
        lengths = torch.randint(limit // 4, limit + 1, (len(indices),))
        return TextBatch(torch.randn(len(indices), limit, WIDTH), lengths)

    def tokens(self, images: Tensor) -> Tensor:
        return images

    def words(self, texts: TextBatch) -> Tensor:
        return texts.values


class Cost(TorchDispatchMode):
    """Seconds that operations take at least, for each speed of multiplying."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = dict.fromkeys(FLOP_PER_S, 0.0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in (*args, result) if isinstance(x, Tensor)]
        if func.is_view or not tensors:
            return result
        size = sum(min(x.nbytes, x.untyped_storage().nbytes()) for x in tensors)
        flop = 0
        if func.overloadpacket.__name__ in ("mm", "bmm", "addmm", "baddbmm"):
            flop = 2 * result.numel() * tensors[-2].shape[-2]  # the right factor's rows
        for name, rate in FLOP_PER_S.items():
            self.seconds[name] += max(flop / rate, size / BYTES_PER_S)
        return result


def run(device: torch.device, images: int = 16) -> dict[str, Any]:
    """Seconds and memory as one JSON-ready dictionary.

    Args:
        images: of the slice, each with five captions.
    """
    torch.manual_seed(0)
    config = parse_config(
        {
            "task": "retrieval",
            "data": {
                "generate": {},
                "test_batch_size": BLOCK,
                "max_words": SPARSE_WORDS,
                "max_dense_words": DENSE_WORDS,
            },
            "sdtps": {"aggregation": "single"},
            "matching": {"form": "released", "alignment": "mean"},
        }
    )
    assert isinstance(config, RetrievalConfig)
    features = Features(images, device)
    told = [time.perf_counter()]
    scored = similarities(
        cast(RetrievalModel, features),
        cast(Source, features),
        config,
        ("own",),
        device,
        lambda done, total: told.append(time.perf_counter()),
    )["own"]
    seconds = told[-1] - told[0]
    pairs = IMAGES * IMAGES * PER_IMAGE
    matrix = torch.rand(IMAGES, IMAGES * PER_IMAGE)
    begun = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    recalls(matrix, PER_IMAGE)
    ranking = time.perf_counter() - begun
    return {
        "bench": "coco",
        **machine(device),
        "images": IMAGES,
        "captions": IMAGES * PER_IMAGE,
        "slice_pairs": scored.numel(),
        "seconds_a_pair": seconds / scored.numel(),
        "longest_pause_s": round(max(b - a for a, b in pairwise(told)), 2),
        "ranking_s": round(ranking, 2),
        "ranking_adds_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024,
        "tokens_mib": IMAGES * SWIN.patches * WIDTH * 4 // 2**20,
        "similarities_mib": pairs * 4 // 2**20,
        "seconds": seconds / scored.numel() * pairs + ranking,
        "projected_h100_s": {name: round(s, 1) for name, s in projected().items()},
    }


def projected() -> dict[str, float]:
    """Seconds of the whole at least, on an H100 by precision of the products."""
    case = Case("evaluate", "released", BLOCK, BLOCK, SWIN, "meta", chunk=BLOCK * BLOCK)
    net, inputs = case.network(), case.inputs()
    # Autocast knows no device without values.
    with torch.no_grad(), Cost() as cost, patch.object(torch, "autocast", lambda **_: nullcontext()):
        net(*inputs)
    blocks = IMAGES / BLOCK * IMAGES * PER_IMAGE / BLOCK
    return {name: seconds * blocks for name, seconds in cost.seconds.items()}
