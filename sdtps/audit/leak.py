"""The leak audit: does an evaluation tell a query more than its own words?

Two questions to a scoring, both answered by scoring, not by reading configurations:

* Does the score of a pair depend on the other pairs? It is scored again in subsets and other orders of
  images and captions, which are not paired one to one. Code that needs the pairing fails or changes.
* Does the score of an image and the same words depend on which image the query is meant for? Where it
  does, the query carries text that is keyed by its own target. In the published evaluation of SEPS each
  query caption comes with the dense description of the very image that it is to find.

What that text is worth is the difference between a run's recalls with it and without
(`eval.also_dense_text`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sdtps.audit.findings import Finding, Severity
from sdtps.audit.toys import tiny
from sdtps.config import RetrievalConfig
from sdtps.config.retrieval import DenseText
from sdtps.evaluation.retrieval import Scorer
from sdtps.training.retrieval import RetrievalTask

# Scores are sums of two means of cosines; chunks and padding move them by rounding only.
ROUNDING = 1e-4


# Scores by mode of images with captions that are asked for target images; as `Scorer.score`.
Scoring = Callable[..., dict[DenseText, Tensor]]


@dataclass(frozen=True)
class Leak:
    """How far the scores of the same pairs and words move. Scores are about 1 in size."""

    mode: DenseText
    other_pairs: float  # when other images and captions are scored beside them
    failed: str | None  # what a scoring said that cannot be asked without the pairing
    target: float  # when the same words are asked for another image

    @property
    def depends_on_pairs(self) -> bool:
        return self.failed is not None or self.other_pairs > ROUNDING

    @property
    def keyed_by_target(self) -> bool:
        return self.target > ROUNDING


def audit_scoring(scoring: Scoring, images: int, per_image: int, mode: DenseText, seed: int) -> Leak:
    """Ask both questions of a scoring of `images` images with `per_image` captions each."""
    rng = np.random.default_rng([seed, 401])
    every_image, every_caption = np.arange(images), np.arange(images * per_image)
    whole = scoring(every_image, every_caption, (mode,))[mode]
    largest, failed = 0.0, None
    orders = [
        (rng.permutation(every_image), rng.permutation(every_caption)),  # reordered, unpaired
        (every_image[: images // 2], every_caption[-images * per_image // 3 :]),  # disjoint halves
        (every_image[:1], rng.permutation(every_caption)[: per_image + 1]),
        (every_image[::-1][: max(2, images // 3)], every_caption[:1]),
    ]
    for rows, columns in orders:
        try:
            part = scoring(rows.copy(), columns.copy(), (mode,))[mode]
        except (RuntimeError, IndexError, ValueError, AssertionError) as error:
            failed = f"{type(error).__name__}: {error}"
            continue
        largest = max(largest, _difference(part, whole[rows.copy()][:, columns.copy()]))
    elsewhere = np.roll(every_caption // per_image, per_image)
    moved = scoring(every_image, every_caption, (mode,), targets=elsewhere)[mode]
    return Leak(mode, largest, failed, _difference(moved, whole))


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def audit_leak(config: RetrievalConfig, seed: int = 0) -> Leak:
    """Audit the evaluation of a configuration at the size of a toy, on generated data."""
    small = tiny(config)
    assert isinstance(small, RetrievalConfig)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        task = RetrievalTask(small, seed, torch.device("cpu"))
    split = task.test.split
    scorer = Scorer(task.model, task.test, small, task.device)
    mode = config.matching.eval_dense_text
    return audit_scoring(scorer.score, len(split.images), split.per_image, mode, seed)


def leak_findings(variant: str, leak: Leak) -> list[Finding]:
    """What is to be said about a variant's evaluation; nothing where it is sound."""
    found = []
    if leak.failed is not None:
        text = f"the evaluation needs images and captions paired: {leak.failed}"
        found.append(Finding(variant, "error", "leak", text))
    elif leak.depends_on_pairs:
        text = (
            f"a pair's score changes by up to {leak.other_pairs:.2g} with the other images and "
            "captions scored beside it"
        )
        found.append(Finding(variant, "error", "leak", text))
    if leak.keyed_by_target:
        text = (
            f"the score of an image with the same words changes by up to {leak.target:.2g} with the "
            "image that the query is meant for: "
        )
        severity: Severity = "warning"
        if leak.mode == "own":
            text += "each query carries the dense text of its own target image (a leak)"
        else:
            severity = "note"
            text += (
                "each query carries the dense text of another image, chosen by its target (a control)"
            )
        found.append(Finding(variant, severity, "leak", text))
    return found
