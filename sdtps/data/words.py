"""From texts to token ids: vocabularies, and the word noise of training.

Words are kept apart as groups of sub-word ids, because the noise acts on whole words. [CLS] and [SEP]
count as words of a caption (LAPS, SEPS).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from sdtps.data.cache import Ragged
from sdtps.errors import WeightsError

# Of the words that the noise hits (released SEPS): masked, replaced by a random one, left out.
MASKED = 0.5
REPLACED = 0.1
TEXTS_AT_ONCE = 4096  # through a tokenizer

Words = list[list[int]]  # sub-word ids of each word of a text


class Vocabulary(Protocol):
    """What turns texts into ids."""

    size: int
    padding: int
    start: int  # [CLS]
    end: int  # [SEP]
    mask: int

    def words(self, texts: Iterable[str]) -> list[Words]:
        """The sub-word ids of every word of every text, without [CLS] and [SEP]."""


class OwnVocabulary:
    """Whole words of the training texts, most frequent first; for encoders without pretrained weights.

    Args:
        texts: sparse and dense training texts.
        size: words kept at most, special ones included; the others become [UNK].
    """

    padding, unknown, start, end, mask = range(5)

    def __init__(self, texts: Iterable[str], size: int = 30_522) -> None:
        counts = Counter(word for text in texts for word in _split(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        self.ids = {word: i for i, word in enumerate(ranked[: size - 5], start=5)}
        self.size = len(self.ids) + 5

    def words(self, texts: Iterable[str]) -> list[Words]:
        return [[[self.ids.get(word, self.unknown)] for word in _split(text)] for text in texts]


def _split(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


class BertVocabulary:
    """WordPiece from a local folder with tokenizer.json or vocab.txt. Nothing is downloaded.

    Raises:
        WeightsError: the folder holds no tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
            raise WeightsError(f"{folder}: no tokenizer.json or vocab.txt beside the weights")
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, use_fast=True)
        self.tokenizer = tokenizer
        self.size = len(tokenizer)
        self.padding = int(tokenizer.pad_token_id)
        self.start = int(tokenizer.cls_token_id)
        self.end = int(tokenizer.sep_token_id)
        self.mask = int(tokenizer.mask_token_id)

    def words(self, texts: Iterable[str]) -> list[Words]:
        encoded = self.tokenizer(list(texts), add_special_tokens=False, truncation=False)
        result = []
        for i, ids in enumerate(encoded["input_ids"]):
            words: dict[int, list[int]] = {}
            for word, token in zip(encoded.word_ids(i), ids, strict=True):
                words.setdefault(word, []).append(token)
            result.append(list(words.values()))
        return result


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
        """[CLS], the sub-words of a text, [SEP]: int64, `limit` ids at most, the text's end is cut off.

        Args:
            noise: share of the words that `with_noise` hits, and its generator.
        """
        ids = self.row(index)
        if noise is not None:
            first = self.first[self.starts[index] : self.starts[index + 1]]
            ids = with_noise(ids, first, noise[0], vocabulary, noise[1])
        ids = ids[: limit - 2]
        return np.concatenate([[vocabulary.start], ids, [vocabulary.end]]).astype(np.int64)


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
    noisy = np.where(masked[word], vocabulary.mask, ids)
    drawn = replaced[word]
    noisy[drawn] = rng.integers(vocabulary.size, size=drawn.sum())
    kept: np.ndarray = noisy[~hit[word] | masked[word] | drawn]
    return kept
