"""Batches of image-text pairs: what the encoders take, or what frozen encoders gave.

Texts become token ids by a `Vocabulary`; `with_noise` is the word noise of training. Words are kept
apart as groups of sub-word ids, because the noise acts on whole words. [CLS] and [SEP] count as words
of a caption (LAPS, SEPS).

`Source` is one split ready to be indexed: images as files or as cached features, texts as word groups
or as cached features. Training draws depend on (seed, epoch, position in the epoch) alone.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sdtps.config.retrieval import DenseText, RetrievalDataConfig
from sdtps.data.augment import cropped_photograph, whole_photograph
from sdtps.data.cache import Ragged, padded
from sdtps.data.captions import CaptionSplit, too_few_captions
from sdtps.data.images import PixelFormat, open_image
from sdtps.data.reid_batches import own_rows
from sdtps.system.errors import DataError, WeightsError

# Of the words that the noise hits (released SEPS): masked, replaced by a random one, left out.
MASKED = 0.5
REPLACED = 0.1
TEXTS_AT_ONCE = 4096  # through a tokenizer

Words = list[list[int]]  # sub-word ids of each word of a text


class Vocabulary(Protocol):
    """What turns texts into ids."""

    size: int
    start: tuple[int, ...]  # in front of a text: [CLS]
    end: tuple[int, ...]  # after it: [SEP]
    padding: int
    mask: int | None  # CLIP and SigLIP have none

    def words(self, texts: Iterable[str]) -> list[Words]:
        """The sub-word ids of every word of every text, without special tokens."""

    def text(self, ids: Sequence[int]) -> str:
        """What is read where these ids stand: a word of its sub-words, or a special token's name."""


class OwnVocabulary:
    """Whole words of the training texts, most frequent first; for encoders without pretrained weights.

    Args:
        texts: sparse and dense training texts.
        size: words kept at most, special ones included; the others become [UNK].
    """

    start: tuple[int, ...] = (2,)
    end: tuple[int, ...] = (3,)
    padding, unknown = 0, 1
    mask: int | None = 4

    def __init__(self, texts: Iterable[str], size: int = 30_522) -> None:
        counts = Counter(word for text in texts for word in _split(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        self.ids = {word: i for i, word in enumerate(ranked[: size - 5], start=5)}
        self.size = len(self.ids) + 5

    def words(self, texts: Iterable[str]) -> list[Words]:
        return [[[self.ids.get(word, self.unknown)] for word in _split(text)] for text in texts]

    def text(self, ids: Sequence[int]) -> str:
        known = dict(enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")))
        known |= {i: word for word, i in self.ids.items()}
        return "".join(known[i] for i in ids)


def _split(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


class PublishedVocabulary:
    """The tokenizer in a checkpoint's folder: WordPiece, CLIP's, or SentencePiece.

    Special tokens, padding and mask are the tokenizer's own. Nothing is downloaded.

    Args:
        lower: texts are written small first, whether the tokenizer does it or not; where it is
            SigLIP's first one, their punctuation is removed, too: both as in its training. Hugging
            Face's files leave it to the class of the tokenizer, which needs another package.

    Raises:
        WeightsError: no tokenizer in the folder, or one that cannot be read or adds no special token.
    """

    def __init__(self, folder: Path, *, lower: bool = False) -> None:
        tokenizer = _tokenizer(folder)
        self.tokenizer = tokenizer
        self.lower = lower
        self.removed: dict[int, None] = {}
        settings = folder / "tokenizer_config.json"
        if lower and settings.is_file() and '"SiglipTokenizer' in settings.read_text("utf-8"):
            self.removed = dict.fromkeys(map(ord, string.punctuation))
        self.size = len(tokenizer)
        plain = tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = tokenizer("a")["input_ids"]
        first = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), None)
        if not plain or first is None or len(whole) == len(plain):
            raise WeightsError(
                f"{folder}: its tokenizer puts no special token around a text ('a' becomes {whole}); "
                "is it complete?"
            )
        self.start = tuple(whole[:first])
        self.end = tuple(whole[first + len(plain) :])
        padding = tokenizer.pad_token_id
        self.padding = int(whole[-1] if padding is None else padding)
        self.mask = None if tokenizer.mask_token_id is None else int(tokenizer.mask_token_id)
        # SentencePiece marks what begins a word; others tell the words themselves.
        names = tokenizer.convert_ids_to_tokens(list(range(self.size)))
        self._begins = [name is not None and name.startswith("▁") for name in names]

    def words(self, texts: Iterable[str]) -> list[Words]:
        prepared = [self._prepared(text) for text in texts]
        encoded = self.tokenizer(prepared, add_special_tokens=False, truncation=False, verbose=False)
        result = []
        for i, ids in enumerate(encoded["input_ids"]):
            places = encoded.word_ids(i) if self.tokenizer.is_fast else [0] * len(ids)
            words: Words = []
            before = None
            for place, token in zip(places, ids, strict=True):
                if not words or place != before or self._begins[token]:
                    words.append([])
                words[-1].append(token)
                before = place
            result.append(words)
        return result

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids))).strip()

    def _prepared(self, text: str) -> str:
        if self.lower:
            text = text.lower()
        return " ".join(text.translate(self.removed).split()) if self.removed else text


def _tokenizer(folder: Path) -> Any:
    """The folder's tokenizer. Raises WeightsError where there is none or it cannot be read."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    files = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")
    if not any((folder / name).is_file() for name in files):
        raise WeightsError(f"{folder}: no tokenizer beside the weights (none of {', '.join(files)})")
    told = ""
    for kind in (AutoTokenizer, PreTrainedTokenizerFast):  # the second needs tokenizer.json alone
        try:
            return kind.from_pretrained(str(folder), local_files_only=True, use_fast=True)
        except Exception as error:  # a missing package, a broken file: what the libraries raise
            told = told or str(error).strip()[:200]
    raise WeightsError(
        f"{folder}: its tokenizer cannot be read ({told}). With a sound tokenizer.json in the folder "
        "no other package is needed"
    )


class Texts(Ragged):
    """The sub-words of many texts as one int32 array; `first` marks those that begin a word."""

    def __init__(self, ids: np.ndarray, first: np.ndarray, lengths: np.ndarray) -> None:
        super().__init__(ids, lengths)
        self.first = first

    def of(
        self,
        index: int,
        vocabulary: Vocabulary,
        limit: int,
        noise: tuple[float, np.random.Generator] | None = None,
    ) -> np.ndarray:
        """The sub-words of a text between special tokens: int64, `limit` at most, the end is cut off.

        Args:
            noise: share of the words that `with_noise` hits, and its generator.
        """
        ids = self.row(index)
        if noise is not None:
            first = self.first[self.starts[index] : self.starts[index + 1]]
            ids = with_noise(ids, first, noise[0], vocabulary, noise[1])
        start, end = vocabulary.start, vocabulary.end
        ids = ids[: limit - len(start) - len(end)]
        return np.concatenate([start, ids, end]).astype(np.int64)


def tokenised(texts: Sequence[str], vocabulary: Vocabulary) -> Texts:
    """All texts as sub-word ids, a few at a time: as Python lists they would take 20 times the room."""
    ids, first, lengths = [], [], []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        for words in vocabulary.words(texts[start : start + TEXTS_AT_ONCE]):
            sizes = np.array([len(word) for word in words], np.int64)
            begins = np.zeros(sizes.sum(), bool)
            begins[sizes.cumsum() - sizes] = True
            ids.append(np.array([token for word in words for token in word], np.int32))
            first.append(begins)
            lengths.append(len(begins))
    return Texts(np.concatenate(ids), np.concatenate(first), np.array(lengths))


def with_noise(
    ids: np.ndarray,
    first: np.ndarray,
    share: float,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
) -> np.ndarray:
    """A share of the words masked (half), replaced (a tenth) or left out (the rest), as released.

    A vocabulary without mask (CLIP, SigLIP): left out instead.

    Args:
        ids: sub-words of one text.
        first: which of them begin a word; whole words are hit.
    """
    if share == 0:
        return ids
    word = first.cumsum() - 1  # of each sub-word
    draw, kind = rng.random((2, int(first.sum())))
    hit = draw < share
    masked = hit & (kind < MASKED)
    replaced = hit & ~masked & (kind < MASKED + REPLACED)
    if vocabulary.mask is None:
        masked, noisy = np.zeros_like(hit), ids.copy()
    else:
        noisy = np.where(masked[word], vocabulary.mask, ids)
    drawn = replaced[word]
    noisy[drawn] = rng.integers(vocabulary.size, size=drawn.sum())
    kept: np.ndarray = noisy[~hit[word] | masked[word] | drawn]
    return kept


class TextBatch(NamedTuple):
    """Token ids (T, L), or words (T, L, width) of a frozen encoder; lengths (T)."""

    values: Tensor
    lengths: Tensor

    def to(self, device: torch.device) -> TextBatch:
        return TextBatch(
            self.values.to(device, non_blocking=True), self.lengths.to(device, non_blocking=True)
        )

    def rows(self, index: Tensor) -> TextBatch:
        return TextBatch(self.values[index], self.lengths[index])


class RetrievalBatch(NamedTuple):
    """Pairs: pixels (B, 3, S, S) or tokens of a frozen encoder (B, V, width); image_ids (B)."""

    images: Tensor
    sparse: TextBatch
    dense: TextBatch | None
    image_ids: Tensor

    def to(self, device: torch.device) -> RetrievalBatch:
        return RetrievalBatch(
            self.images.to(device, non_blocking=True),
            self.sparse.to(device),
            None if self.dense is None else self.dense.to(device),
            self.image_ids.to(device, non_blocking=True),
        )


@dataclass
class Source:
    """One split. `image_features` and the text features stand in for what frozen encoders would do."""

    split: CaptionSplit
    pixels: PixelFormat
    image_features: np.ndarray | None  # (I, V, width)
    captions: Texts | Ragged
    dense: Texts | Ragged | None
    vocabulary: Vocabulary

    def images(self, indices: Sequence[int]) -> Tensor:
        """Images as they are evaluated."""
        if self.image_features is not None:
            return torch.from_numpy(self.image_features[list(indices)]).float()
        return torch.from_numpy(np.stack([self.photograph(i) for i in indices]))

    def image_blocks(self, size: int, workers: int) -> Iterator[Tensor]:
        """All images of the split as they are evaluated, `size` at a time, decoded by workers."""
        count = len(self.split.images)
        blocks: Any = [range(i, min(i + size, count)) for i in range(0, count, size)]
        if self.image_features is not None or len(blocks) == 1:
            workers = 0
        options: dict[str, Any] = {"num_workers": workers, "generator": torch.Generator()}
        return iter(DataLoader(blocks, batch_size=None, collate_fn=self.images, **options))

    def photograph(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
        image = open_image(self.split.images[index])
        if rng is None:
            return whole_photograph(image, self.pixels)
        return cropped_photograph(image, self.pixels, rng)

    def texts(
        self,
        texts: Texts | Ragged,
        indices: Sequence[int],
        limit: int,
        noise: tuple[float, np.random.Generator] | None = None,
    ) -> TextBatch:
        """Texts of `indices`, padded to the longest."""
        if isinstance(texts, Texts):
            rows = [texts.of(index, self.vocabulary, limit, noise) for index in indices]
            return TextBatch(*padded(rows, self.vocabulary.padding))
        values, lengths = padded([texts.row(index) for index in indices])
        return TextBatch(values.float(), lengths)


def dense_owner(images: int, mode: DenseText, seed: int = 0) -> np.ndarray:
    """Whose dense text goes with each image: its own, or (shuffled) always another's; fixed."""
    if mode != "shuffled" or images < 2:
        return np.arange(images)
    order = np.random.default_rng([seed, 301]).permutation(images)
    owner = np.empty(images, dtype=np.int64)
    owner[order] = np.roll(order, 1)
    return owner


class _Pairs(Dataset[RetrievalBatch]):
    """Whole batches by (epoch, number): the noise of a batch comes from one generator each row."""

    def __init__(self, source: Source, config: RetrievalDataConfig, mode: DenseText, seed: int) -> None:
        self.source = source
        self.config = config
        self.seed = seed
        self.owner = dense_owner(len(source.split.images), mode)
        self.uses_dense = mode != "none"
        self.order: tuple[int, np.ndarray] = (0, np.empty(0, np.int64))  # of the latest epoch
        self.steps = len(source.split.captions) // config.batch_size
        if self.steps == 0:
            raise DataError(too_few_captions(len(source.split.captions), config.batch_size))

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, place: tuple[int, int]) -> RetrievalBatch:
        epoch, number = place
        config, source = self.config, self.source
        if self.order[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch, 201])
            self.order = epoch, rng.permutation(len(source.split.captions))
        captions = self.order[1][number * config.batch_size : (number + 1) * config.batch_size]
        images = captions // source.split.per_image
        rng = np.random.default_rng([self.seed, epoch, number, 202])
        noise = (config.word_noise, rng)
        # Texts of the whole batch, so that every process pads and draws alike.
        sparse = source.texts(source.captions, captions.tolist(), config.max_words, noise)
        dense = None
        if self.uses_dense and source.dense is not None:
            whose = self.owner[images].tolist()
            limit = config.train_dense_words or config.max_dense_words
            dense = source.texts(source.dense, whose, limit, noise)
        own = own_rows(config.batch_size)
        rows = torch.arange(config.batch_size)[own]
        return RetrievalBatch(
            self._images(images[own], epoch, number, own.start),
            sparse.rows(rows),
            None if dense is None else dense.rows(rows),
            torch.from_numpy(images[own]),
        )

    def _images(self, images: np.ndarray, epoch: int, number: int, first: int) -> Tensor:
        if self.source.image_features is not None or not self.config.augment:
            return self.source.images(images.tolist())
        pixels = []
        for row, image in enumerate(images, start=first):
            rng = np.random.default_rng([self.seed, epoch, number, row, 203])
            pixels.append(self.source.photograph(int(image), rng))
        return torch.from_numpy(np.stack(pixels))


class TrainPairs:
    """Training batches in an order of (seed, epoch); the last, incomplete batch is left out."""

    def __init__(
        self,
        source: Source,
        config: RetrievalDataConfig,
        mode: DenseText,
        seed: int,
        device: torch.device,
    ) -> None:
        pairs = _Pairs(source, config, mode, seed)
        self.steps_per_epoch = pairs.steps
        self.places: list[tuple[int, int]] = []  # (epoch, number) of the batches that are asked for
        self.device = device
        # Cached features are only copied: worker processes would cost more than they bring.
        workers = 0 if source.image_features is not None else config.workers
        options: dict[str, Any] = {"persistent_workers": workers > 0}
        self.loader = DataLoader(
            pairs,
            batch_size=None,
            sampler=self.places,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # else each pass would draw from the run's
            **options,
        )

    def epoch(self, epoch: int, first: int) -> Iterator[RetrievalBatch]:
        """Batches `first`, `first` + 1, ... of `epoch` on the device."""
        self.places[:] = [(epoch, number) for number in range(first, self.steps_per_epoch)]
        for batch in self.loader:
            yield batch.to(self.device)
