"""Evaluation of image-text retrieval: similarities of images and captions, and the recalls they give.

Recall at 1, 5 and 10 in both directions, and their sum. Image to text: a query is an image, its rank is
that of the best of its captions. Text to image: a query is a caption. Equal similarities count against
the query, so that a collapsed model scores nothing.

Visual tokens stay on the device; captions are encoded a block at a time. Similarities are kept as
float32 on the CPU: COCO's 5,000 images x 25,000 captions take 0.5 GB, its tokens (49 x 512) as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sdtps.config import RetrievalConfig
from sdtps.config.retrieval import DenseText
from sdtps.data.cache import Ragged
from sdtps.data.caption_batches import Source, Texts, dense_owner
from sdtps.evaluation import Progress, no_progress
from sdtps.models.retrieval import RetrievalModel
from sdtps.system import distributed

RANKS = (1, 5, 10)
FOLD_IMAGES = 1000  # COCO-1K: five folds of 1,000 images
# Images that a CPU scores with a block of captions before it reports and can be stopped: a second.
IMAGES_BETWEEN_REPORTS = 32
RANKED_AT_ONCE = 256  # rows of the matrix; a mask of all would be a quarter of its size


class Scorer:
    """Scores any images of a split with any of its captions.

    The dense text of a query caption is chosen by the query's target image: `own` takes the target's
    (the leak of the published evaluation), `shuffled` another image's, `none` none.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: RetrievalModel,
        source: Source,
        config: RetrievalConfig,
        device: torch.device,
        progress: Progress = no_progress,
    ) -> None:
        model.eval()
        self.model = model
        self.source = source
        self.config = config
        self.device = device
        count, done = len(source.split.images), 0
        for pixels in source.image_blocks(config.data.test_batch_size, config.data.workers):
            tokens = model.tokens(pixels.to(device))
            if done == 0:  # joined afterwards, they would be held twice
                self.tokens = tokens.new_empty(count, *tokens.shape[1:])
            self.tokens[done : done + len(tokens)] = tokens
            done += len(tokens)
            progress(done, count)

    @torch.no_grad()
    def score(
        self,
        images: np.ndarray,
        captions: np.ndarray,
        modes: Sequence[DenseText],
        targets: np.ndarray | None = None,
        progress: Progress = no_progress,
    ) -> dict[DenseText, Tensor]:
        """Similarity (images, captions) for each mode; equal matrices where no dense text is taken.

        Args:
            images, captions: indices into the split, in any number and order.
            targets: the image that each caption is asked for; default the one it belongs to.
            progress: called after each block with the pairs scored and their number.
        """
        source, config = self.source, self.config
        if targets is None:
            targets = captions // source.split.per_image
        owners: dict[DenseText, np.ndarray] = {}  # of the dense text that a mode gives each caption
        if takes_dense(config) and source.dense is not None:
            count = len(source.dense)
            owners = {mode: dense_owner(count, mode)[targets] for mode in modes if mode != "none"}
        results = {mode: torch.empty(len(images), len(captions)) for mode in modes}
        rows, done = torch.from_numpy(images).to(self.device), 0
        size = config.data.test_batch_size
        if self.device.type == "cpu":
            size = min(size, IMAGES_BETWEEN_REPORTS)
        for part in _blocks(len(captions), config.data.test_batch_size):
            similarities = self._texts(captions[part], {m: owners[m][part] for m in owners}, modes)
            scored: list[dict[DenseText, Tensor]] = []
            for block in rows.split(size):
                scored.append(similarities(self.tokens[block]))
                done += len(block) * (part.stop - part.start)
                progress(done, len(rows) * len(captions))
            for mode, result in results.items():  # once a block of captions: a copy makes a GPU wait
                result[:, part] = torch.cat([similarity[mode] for similarity in scored])
        return results

    def _texts(
        self,
        captions: np.ndarray,
        owners: dict[DenseText, np.ndarray],
        modes: Sequence[DenseText],
    ) -> Callable[[Tensor], dict[DenseText, Tensor]]:
        """Encode captions and dense texts; what gives images' similarities with them in each mode.

        Where the form allows it, a dense text that captions share is scored once for all of them, and
        a caption once for all modes.
        """
        net, source, data = self.model.crossnet, self.source, self.config.data
        sparse = self._words(source.captions, captions, data.max_words)
        if not owners or source.dense is None:
            return lambda tokens: dict.fromkeys(modes, net(tokens, *sparse).similarity)
        unique, place = np.unique(np.stack(list(owners.values())), return_inverse=True)
        words, lengths = self._words(source.dense, unique, data.max_dense_words)
        places = torch.from_numpy(place.reshape(len(owners), -1))
        rows = dict(zip(owners, places.to(self.device, non_blocking=True), strict=True))

        def apart(tokens: Tensor) -> dict[DenseText, Tensor]:
            alone, shared = net.apart(tokens, *sparse, words, lengths)
            return {m: alone + shared[:, rows[m]] if m in rows else alone for m in modes}

        if net.scores_apart:
            return apart
        chosen = {m: (words[rows[m]], lengths[at]) for m, at in zip(owners, places, strict=True)}
        return lambda tokens: {m: net(tokens, *sparse, *chosen.get(m, ())).similarity for m in modes}

    def _words(self, texts: Texts | Ragged, indices: np.ndarray, limit: int) -> tuple[Tensor, Tensor]:
        """Words on the device, and lengths where they can be read without waiting for it."""
        batch = self.source.texts(texts, indices.tolist(), limit)
        return self.model.words(batch.to(self.device)), batch.lengths


def _blocks(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def similarities(
    model: RetrievalModel,
    source: Source,
    config: RetrievalConfig,
    modes: Sequence[DenseText],
    device: torch.device,
    progress: Progress = no_progress,
) -> dict[DenseText, Tensor]:
    """The matrix (I, I x per_image) of a whole split for each mode, in every process.

    Each process scores its share of the captions against all images. Progress counts images encoded
    and captions scored; it is reported, and the evaluation can be stopped, after every block of either.
    """
    images = np.arange(len(source.split.images))
    shares = np.array_split(np.arange(len(source.split.captions)), distributed.world_size())
    captions = shares[distributed.rank()]
    total = len(images) + len(captions)
    scorer = Scorer(model, source, config, device, lambda done, _: progress(done, total))
    own = scorer.score(
        images,
        captions,
        modes,
        progress=lambda done, of: progress(len(images) + len(captions) * done // of, total),
    )
    whole = {}
    for mode, part in own.items():
        parts = distributed.gather_parts(part, device)
        whole[mode] = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return whole


def takes_dense(config: RetrievalConfig) -> bool:
    """Whether the model looks at dense text at all."""
    return config.matching.axis.dense and config.sdtps.enabled


# An evaluator is asked with the similarities and the number of captions of an image and yields metrics
# by name, or what it knows of each query, a tensor [queries]. A new metric of retrieval is one function
# in this table.
Evaluator = Callable[[Tensor, int], Iterator[tuple[str, float | Tensor]]]


def recall(similarity: Tensor, per_image: int) -> Iterator[tuple[str, float | Tensor]]:
    """Recalls, and the rank (from 1) and the image of each query, both ways.

    Args:
        similarity: (I, I x per_image); caption j belongs to image j // per_image.

    Yields:
        i2t_r1, i2t_r5, i2t_r10, t2i_r1, t2i_r5, t2i_r10 as fractions in [0, 1], and rsum, the sum of
        the six: in [0, 6] here, in [0, 600] where tables print per cent. Then tensors.

    Raises:
        FloatingPointError: the similarities are not finite.
    """
    if not all(torch.isfinite(rows).all() for rows in similarity.split(RANKED_AT_ONCE)):
        raise FloatingPointError("similarities are not finite: the model has diverged")
    found = dict(zip(("i2t", "t2i"), ranks(similarity, per_image), strict=True))
    shares = {f"{way}_r{k}": (found[way] < k).double().mean().item() for way in found for k in RANKS}
    yield from shares.items()
    yield "rsum", sum(shares.values())
    for way, values in found.items():
        yield f"{way}_rank", values + 1
        yield f"{way}_identity", torch.arange(len(values)) // (1 if way == "i2t" else per_image)


EVALUATORS: tuple[Evaluator, ...] = (recall,)


def evaluate(
    similarity: Tensor,
    per_image: int,
    protocol: Literal["full", "1k_folds", "both"],
    *,
    suffix: str = "",
    queries: dict[str, Tensor] | None = None,
) -> Iterator[tuple[str, float]]:
    """Every evaluator's metrics under `protocol`, as NAME SUFFIX; folds of `both` as NAME@1k.

    Args:
        queries: takes what evaluators know of each query of the whole split.
    """
    for evaluator in EVALUATORS:
        if protocol != "1k_folds":
            for name, value in evaluator(similarity, per_image):
                if not isinstance(value, Tensor):
                    yield f"{name}{suffix}", value
                elif queries is not None:
                    queries[name] = value
        if protocol != "full":
            folds = "@1k" if protocol == "both" else ""
            for name, value in in_folds(evaluator, similarity, per_image).items():
                yield f"{name}{folds}{suffix}", value


def in_folds(evaluator: Evaluator, similarity: Tensor, per_image: int) -> dict[str, float]:
    """Mean of an evaluator over folds of 1,000 consecutive images (COCO-1K), of which there is one."""
    folds = []
    for first in range(0, len(similarity) - FOLD_IMAGES + 1, FOLD_IMAGES):
        rows = slice(first, first + FOLD_IMAGES)
        columns = slice(rows.start * per_image, rows.stop * per_image)
        found = evaluator(similarity[rows, columns], per_image)
        folds.append({name: value for name, value in found if not isinstance(value, Tensor)})
    return {name: sum(fold[name] for fold in folds) / len(folds) for name in folds[0]}


def ranks(similarity: Tensor, per_image: int) -> tuple[Tensor, Tensor]:
    """Ranks from 0 of each image's best caption (I) and of each caption's image (I x per_image).

    Counted over blocks of images: nothing is sorted, and no copy of the matrix is made.
    """
    images, captions = similarity.shape
    owner = torch.arange(captions) // per_image
    target = similarity.gather(0, owner[None, :])[0]  # of each caption with its image
    best = target.view(images, per_image).amax(1)
    image_ranks = torch.empty(images, dtype=torch.long)
    caption_ranks = torch.zeros(captions, dtype=torch.long)
    for block in _blocks(images, RANKED_AT_ONCE):
        rows = similarity[block]
        other = owner[None, :] != torch.arange(block.start, block.stop)[:, None]
        image_ranks[block] = ((rows >= best[block, None]) & other).sum(1)
        caption_ranks += ((rows >= target) & other).sum(0)
    return image_ranks, caption_ranks
