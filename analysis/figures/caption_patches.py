"""sdtps patches of retrieval runs: which patches a caption selects, and which of its words guided that.

For each run two pictures of an image with a caption: the scores of the selection as a heat map, and
what was kept, each kept patch with the number of the word that adds most to its score. The score's
guide is the cosine of a patch with the caption's mean word, which is a sum over words:

    cos(p, m) = sum_i (w_i . p) / (L |m| |p|),    m = (1/L) sum_i w_i

so that a word's part is exact. Below stand those words, each with the share of the kept patches that it
leads. Scores and decisions are read from the cross-net while it scores the pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from analysis.figures.patches import check_finite, label_of
from analysis.figures.sheet import DARK, Group, Tile, drawn
from sdtps.config import RetrievalConfig
from sdtps.system.errors import RunError

if TYPE_CHECKING:
    from sdtps.trained.model import Trained

TILE = 1.9  # inches


@dataclass(frozen=True)
class Guided:
    """One caption's selection on one image; patches on their grid [rows, columns].

    Attributes:
        words: of the caption, special tokens too.
        score: of the branch that the caption guides.
        kept: by it, or (two branches) by at least one of the two.
        leader: the number of the word that adds most to a patch's score.
        similarity: of image and caption.
    """

    words: tuple[str, ...]
    score: np.ndarray
    kept: np.ndarray
    leader: np.ndarray
    similarity: float

    def led(self) -> dict[int, float]:
        """Number of a word to the share of the kept patches that it leads, the largest first."""
        numbers, counts = np.unique(self.leader[self.kept], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {int(numbers[i]): float(counts[i] / counts.sum()) for i in order}


@dataclass(frozen=True)
class Pair:
    """An image of the test split, pixels uint8 [S, S, 3] as the models see it, and one caption."""

    name: str
    pixels: np.ndarray
    caption: str
    number: int  # of the caption in the split


def retrieval_picture(
    runs: Sequence[tuple[Trained, bool]], count: int, captions: int
) -> tuple[bytes, str]:
    """The picture as PNG and its caption.

    Args:
        runs: each with whether it is shown before training.

    Raises:
        RunError: a run that cannot be drawn (named), or runs on different test images.
    """
    pairs: list[Pair] = []
    groups: list[Group] = []
    for run, initial in runs:
        found, guided = guided_run(run, count, captions, initial=initial)
        if pairs and [(p.name, p.caption) for p in found] != [(p.name, p.caption) for p in pairs]:
            raise RunError(f"{run.file}: has other test images or captions than {runs[0][0].file}")
        if not pairs:
            pairs = found
            groups.append(Group("images", {"": [Tile(p.pixels, below=p.caption) for p in pairs]}))
        groups.append(_group(label_of(run, initial), pairs, guided))
    text = (
        f"{len({p.name for p in pairs})} test images with {captions} caption"
        f"{'s' * (captions > 1)} each. {'; '.join(label_of(*run) for run in runs)}. Left: the image; "
        "then for each run the selection's score (dark: low, yellow: high, each picture by itself) and "
        "the kept patches with the number of the word that adds most to a patch's score. Below: these "
        "words, each with the share of the kept patches that it leads."
    )
    legend = (
        "score: dark low, yellow high · number: the word that adds most to a kept patch's score · "
        "below: the share of the kept patches that a word leads"
    )
    return drawn(groups, legend, TILE), text


def _group(label: str, pairs: Sequence[Pair], guided: Sequence[Guided]) -> Group:
    """A run's score and kept patches; the image alone where it selects none."""
    import matplotlib as mpl

    if not guided:
        return Group(f"{label} (no selection)", {"all patches": [Tile(p.pixels) for p in pairs]})
    scores, kept = [], []
    for pair, g in zip(pairs, guided, strict=True):
        scaled = (g.score - g.score.min()) / max(float(np.ptp(g.score)), 1e-12)
        grey = np.repeat(pair.pixels.mean(axis=2, keepdims=True), 3, axis=2).astype(np.uint8)
        said = f"similarity {g.similarity:.3f}, {int(g.kept.sum())} of {g.kept.size} patches kept"
        scores.append(Tile(grey, mpl.colormaps["viridis"](scaled, alpha=0.6), below=said))
        dark = np.where(g.kept[..., None], (0.0, 0.0, 0.0, 0.2), DARK)
        marks = np.where(g.kept, (g.leader + 1).astype(str), "")
        words = (f"{n + 1} {g.words[n]}: {100 * share:.0f} %" for n, share in g.led().items())
        kept.append(Tile(pair.pixels, dark, g.kept, marks, "; ".join(words)))
    return Group(label, {"score": scores, "kept, with the word that leads each": kept})


def guided_run(
    run: Trained, count: int, captions: int, *, initial: bool = False
) -> tuple[list[Pair], list[Guided]]:
    """The first `captions` captions of the first `count` test images, and a run's selection for them;
    empty where it selects none.

    Args:
        initial: the weights before training instead of those of the last epoch.

    Raises:
        RunError: weights that are not finite.
    """
    import torch

    from sdtps.trained.model import task_of
    from sdtps.training.device import seed_everything
    from sdtps.training.retrieval import RetrievalTask

    config = cast("RetrievalConfig", run.config)
    train = config.train.model_copy(update={"device": "cpu"})
    config = config.model_copy(update={"train": train})
    cpu = torch.device("cpu")
    if initial:
        seed_everything(run.seed)
        task: Any = RetrievalTask(config, run.seed, cpu, trains=False)
    else:
        task = task_of(run, config, cpu)
    check_finite(task.model, run)
    task.model.eval()
    split = task.test.split
    numbers = [
        image * split.per_image + caption
        for image in range(min(count, len(split.images)))
        for caption in range(min(captions, split.per_image))
    ]
    pairs = [_pair(task, number) for number in numbers]
    if task.model.crossnet.sparse_selection is None:
        return pairs, []
    with torch.inference_mode():
        return pairs, [_guided(task, number) for number in numbers]


def _pair(task: Any, number: int) -> Pair:
    from sdtps.data.images import BICUBIC, open_image

    split = task.test.split
    file = split.images[number // split.per_image]
    size = task.config.image_encoder.size
    shown = open_image(file).convert("RGB").resize((size, size), BICUBIC)
    return Pair(file.name, np.asarray(shown), split.captions[number], number)


def _guided(task: Any, number: int) -> Guided:
    """The selection that the model makes for one caption and its own image."""
    model, source, config = task.model, task.test, task.config
    image = number // source.split.per_image
    tokens = model.tokens(source.images([image]))
    sparse = source.texts(source.captions, [number], config.data.max_words)
    guides = []
    if config.matching.axis.dense and config.matching.eval_dense_text != "none":
        from sdtps.data.caption_batches import dense_owner

        owner = dense_owner(len(source.split.images), config.matching.eval_dense_text)
        dense = source.texts(source.dense, [int(owner[image])], config.data.max_dense_words)
        guides = [model.words(dense), dense.lengths]
    words = model.words(sparse)
    chosen: list[Any] = []
    net = model.crossnet
    choose = net._choose

    def recorded(*arguments: Any) -> Any:
        chosen.append(choose(*arguments))
        return chosen[-1]

    net._choose = recorded
    try:
        matches = net(tokens, words, sparse.lengths, *guides)
    finally:
        del net._choose
    parts = _parts(words[0, : int(sparse.lengths[0])], tokens[0, int(net.class_token) :])
    names, belongs = _words(source, number, config.data.max_words)
    leader = np.zeros((len(names), parts.shape[1]))
    np.add.at(leader, belongs, parts)
    kept = np.logical_or.reduce([c.is_kept[0, 0].numpy() for c in chosen])
    side = round(len(kept) ** 0.5)
    return Guided(
        names,
        chosen[0].choice.score[0, 0].double().numpy().reshape(side, side),
        kept.reshape(side, side),
        leader.argmax(0).reshape(side, side),
        float(matches.similarity[0, 0]),
    )


def _parts(words: Any, patches: Any) -> np.ndarray:
    """What each word [L, C] adds to a patch's [N, C] cosine with the mean word: [L, N]."""
    length = words.mean(0).norm() * len(words)
    found = words @ patches.T / (length * patches.norm(dim=-1)).clamp_min(1e-12)
    return np.asarray(found.double().numpy())


def _words(source: Any, number: int, limit: int) -> tuple[tuple[str, ...], np.ndarray]:
    """The words of a caption as the model reads them, and to which each of its tokens belongs."""
    from sdtps.data.caption_batches import tokenised

    vocabulary = source.vocabulary
    text = tokenised([source.split.captions[number]], vocabulary)
    ids = text.of(0, vocabulary, limit)
    start, end = len(vocabulary.start), len(vocabulary.end)
    inner = len(ids) - start - end
    begins = np.concatenate([np.ones(start, bool), text.first[:inner], np.ones(end, bool)])
    belongs = begins.cumsum() - 1
    groups = [ids[belongs == word].tolist() for word in range(int(begins.sum()))]
    return tuple(vocabulary.text(group) for group in groups), belongs
