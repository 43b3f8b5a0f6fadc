"""sdtps patches of retrieval runs: which patches a caption selects, and which of its words guided that.

For each run three pictures of an image with a caption: the scores of the selection as a heat map, and
what was kept, each kept patch with the number of the word that adds most to its score. The score's
guide is the cosine of a patch with the caption's mean word, which is a sum over words:

    cos(p, m) = sum_i (w_i . p) / (L |m| |p|),    m = (1/L) sum_i w_i

so that a word's part is exact. Below stand the numbered words, as dark as the share of the kept patches
that they lead. Scores and decisions are read from the cross-net while it scores the pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from analysis.figures.sheet import DROPPED, INK, MUTED, PAPER, borders, fitted, font, png
from sdtps.config import RetrievalConfig
from sdtps.run.folder import RunFolder
from sdtps.system.errors import RunError

if TYPE_CHECKING:
    from sdtps.trained.model import Trained

TILE = 252  # pixels of an image's side: 18 for each of 14 patches
GAP, GROUP_GAP, ROW_GAP, MARGIN, HEAD = 6, 26, 22, 16, 46
LINE = 19  # of words
WORD = np.array([230, 159, 0], dtype=np.float64)  # behind the words that lead most


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

    def led(self, number: int) -> float:
        """The share of the kept patches that a word leads."""
        return float((self.leader[self.kept] == number).mean()) if self.kept.any() else 0.0


@dataclass(frozen=True)
class GuidedRun:
    """A run on some pairs; `pairs` is empty without selection."""

    label: str
    pairs: tuple[Guided, ...]


@dataclass(frozen=True)
class Pair:
    """An image of the test split, pixels uint8 [S, S, 3] as the models see it, and one caption."""

    name: str
    pixels: np.ndarray
    caption: str
    number: int  # of the caption in the split


def write_retrieval(
    paths: Sequence[Path], count: int, captions: int, initial: bool
) -> tuple[bytes, str]:
    """The picture as PNG and its caption.

    Raises:
        RunError: a run that cannot be drawn (named), or runs on different test images.
    """
    pairs: list[Pair] = []
    runs: list[GuidedRun] = []
    for path, before in [(path, False) for path in paths] + [(paths[0], True)] * initial:
        found, run = guided_run(path, count, captions, initial=before)
        if pairs and [(p.name, p.caption) for p in found] != [(p.name, p.caption) for p in pairs]:
            raise RunError(f"{path}: has other test images or captions than {paths[0]}")
        pairs = pairs or found
        runs.append(run)
    if initial:
        runs = [runs[-1], *runs[:-1]]
    text = (
        f"{len({p.name for p in pairs})} test images with {captions} caption"
        f"{'s' * (captions > 1)} each. {'; '.join(r.label for r in runs)}. Left: the image; then for "
        "each run the selection's score (dark: low, yellow: high, each picture by itself) and the kept "
        "patches with the number of the word that adds most to a patch's score. Below: the words; the "
        "stronger the orange, the more kept patches a word leads."
    )
    return draw(pairs, runs), text


def guided_run(
    path: Path, count: int, captions: int, *, initial: bool = False
) -> tuple[list[Pair], GuidedRun]:
    """The first `captions` captions of the first `count` test images, and a run's selection for them.

    Args:
        initial: the weights before training instead of those of the last epoch.

    Raises:
        RunError: no weights, or weights that are not finite.
    """
    import torch

    from sdtps.trained.model import load, task_of

    folder = RunFolder(path)
    trained = load(folder.path, "last")
    config = trained.config
    assert isinstance(config, RetrievalConfig)
    train = config.train.model_copy(update={"device": "cpu"})
    config = config.model_copy(update={"train": train})
    task = task_of(trained, config, torch.device("cpu"))
    if initial:
        task = _before_training(trained, config)
    if not all(torch.isfinite(p).all() for p in task.model.parameters()):
        raise RunError(f"{path}: its weights are not finite; there is nothing to draw")
    task.model.eval()
    split = task.test.split
    numbers = [
        image * split.per_image + caption
        for image in range(min(count, len(split.images)))
        for caption in range(min(captions, split.per_image))
    ]
    pairs = [_pair(task, number) for number in numbers]
    when = "before training" if initial else f"step {trained.step}"
    label = f"{trained.name}, {when}"
    if task.model.crossnet.sparse_selection is None:
        return pairs, GuidedRun(label, ())
    with torch.inference_mode():
        return pairs, GuidedRun(label, tuple(_guided(task, number) for number in numbers))


def _before_training(trained: Trained, config: RetrievalConfig) -> Any:
    import torch

    from sdtps.training.device import seed_everything
    from sdtps.training.retrieval import RetrievalTask

    seed_everything(trained.seed)
    return RetrievalTask(config, trained.seed, torch.device("cpu"), trains=False)


def _pair(task: Any, number: int) -> Pair:
    from sdtps.data.images import open_image

    split = task.test.split
    file = split.images[number // split.per_image]
    size = task.config.image_encoder.size
    shown = open_image(file).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
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


# -- the picture --------------------------------------------------------------------------------


def draw(pairs: Sequence[Pair], runs: Sequence[GuidedRun]) -> bytes:
    """The picture as PNG; the same input gives the same bytes."""
    group = 2 * TILE + GAP
    texts = [
        max([_lines(run.pairs[row].words, group)[1] for run in runs if run.pairs] or [1]) + 1
        for row in range(len(pairs))
    ]
    heights = [TILE + lines * LINE + ROW_GAP for lines in texts]
    width = 2 * MARGIN + TILE + len(runs) * (GROUP_GAP + group)
    sheet = Image.new("RGB", (width, 2 * MARGIN + HEAD + sum(heights) + LINE), PAPER)
    pen = ImageDraw.Draw(sheet)
    top = MARGIN + HEAD
    for column, run in enumerate(runs):
        left = MARGIN + TILE + GROUP_GAP + column * (group + GROUP_GAP)
        pen.text((left, MARGIN), fitted(run.label, group, 13), INK, font(13))
        if not run.pairs:
            pen.text((left, top - 14), "no selection: all patches are aligned", MUTED, font(11))
            continue
        pen.text((left, top - 14), "score", MUTED, font(11))
        pen.text((left + TILE + GAP, top - 14), "kept, with the word that leads each", MUTED, font(11))
    for row, pair in enumerate(pairs):
        sheet.paste(_tile(pair.pixels), (MARGIN, top))
        _paragraph(pen, (MARGIN, top + TILE + 6), pair.caption, TILE)
        for column, run in enumerate(runs):
            if run.pairs:
                left = MARGIN + TILE + GROUP_GAP + column * (group + GROUP_GAP)
                _selection(sheet, pen, (left, top), pair.pixels, run.pairs[row])
        top += heights[row]
    legend = (
        "score: dark low, yellow high · number: the word that adds most to a kept patch's score · "
        "orange: share of the kept patches that a word leads"
    )
    pen.text((MARGIN, top), fitted(legend, width - 2 * MARGIN, 11), MUTED, font(11))
    return png(sheet)


def _selection(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, corner: tuple[int, int], pixels: np.ndarray, g: Guided
) -> None:
    left, top = corner
    sheet.paste(_heat(pixels, g.score), (left, top))
    right = left + TILE + GAP
    grey = np.repeat(pixels.mean(axis=2, keepdims=True), 3, axis=2) * DROPPED
    kept = np.asarray(
        Image.fromarray(g.kept.astype(np.uint8)).resize(pixels.shape[1::-1], Image.Resampling.NEAREST)
    )
    shown = np.where(kept[..., None] > 0, pixels * 0.8, grey)
    sheet.paste(_tile(shown.astype(np.uint8)), (right, top))
    borders(pen, g.kept, (right, top), (TILE, TILE))
    rows, columns = g.kept.shape
    letters = font(max(8, min(13, TILE // rows - 9)))
    for r, c in zip(*np.nonzero(g.kept), strict=True):
        middle = right + (c + 0.5) * TILE / columns, top + (r + 0.5) * TILE / rows
        leader = str(g.leader[r, c] + 1)
        pen.text(middle, leader, PAPER, letters, "mm", stroke_width=1, stroke_fill=INK)
    places, _ = _lines(g.words, 2 * TILE + GAP)
    y = top + TILE + 6
    most = max(g.led(number) for number in range(len(g.words))) or 1.0
    for number, ((x, line), word) in enumerate(zip(places, _numbered(g.words), strict=True)):
        place = left + x, y + line * LINE
        shade = 255 - (255 - WORD) * g.led(number) / most
        box = pen.textbbox(place, word, font(12))
        pen.rectangle((box[0] - 2, place[1] - 1, box[2] + 2, place[1] + 15), tuple(map(int, shade)))
        pen.text(place, word, INK, font(12))
    bottom = y + (places[-1][1] + 1) * LINE
    said = f"similarity {g.similarity:.3f}, {int(g.kept.sum())} of {g.kept.size} patches kept"
    pen.text((left, bottom), said, MUTED, font(11))


def _heat(pixels: np.ndarray, score: np.ndarray) -> Image.Image:
    """The picture in grey under its scores, from dark (lowest) to yellow (highest)."""
    import matplotlib as mpl

    low, high = score.min(), score.max()
    scaled = (score - low) / (high - low) if high > low else np.zeros_like(score)
    colours = (mpl.colormaps["viridis"](scaled)[..., :3] * 255).astype(np.uint8)
    heat = Image.fromarray(colours).resize((TILE, TILE), Image.Resampling.NEAREST)
    return Image.blend(_tile(pixels).convert("L").convert("RGB"), heat, 0.6)


def _tile(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels).resize((TILE, TILE), Image.Resampling.BILINEAR)


def _numbered(words: Sequence[str]) -> list[str]:
    return [f"{number} {word}" for number, word in enumerate(words, start=1)]


def _lines(words: Sequence[str], width: int) -> tuple[list[tuple[int, int]], int]:
    """Where each numbered word begins (pixels, line), and how many lines they take."""
    letters = font(12)
    places: list[tuple[int, int]] = []
    x = line = 0
    for word in _numbered(words):
        length = int(letters.getlength(word)) + 12
        if x and x + length > width:
            x, line = 0, line + 1
        places.append((x + 2, line))
        x += length
    return places, line + 1


def _paragraph(pen: ImageDraw.ImageDraw, corner: tuple[int, int], text: str, width: int) -> None:
    """Text in lines of `width` pixels; what needs more than four ends with an ellipsis."""
    lines: list[str] = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font(12).getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    if len(lines) > 2:
        lines = [lines[0], fitted(" ".join(lines[1:]), width, 12)]
    for number, line in enumerate(lines):
        pen.text((corner[0], corner[1] + number * LINE), fitted(line, width, 12), INK, font(12))
