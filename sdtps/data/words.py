"""From texts to token ids: vocabularies, and the word noise of training.

Words are kept apart as groups of sub-word ids, because the noise acts on whole words. [CLS] and [SEP]
count as words of a caption (LAPS, SEPS).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np

from sdtps.errors import WeightsError

# Of the words that the noise hits (released SEPS): masked, replaced by a random one, left out.
MASKED = 0.5
REPLACED = 0.1

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


def token_ids(words: Words, vocabulary: Vocabulary, limit: int) -> list[int]:
    """[CLS], the sub-words, [SEP]: `limit` ids at most, the text's end is cut off."""
    inside = [token for word in words for token in word]
    return [vocabulary.start, *inside[: limit - 2], vocabulary.end]


def with_noise(words: Words, share: float, vocabulary: Vocabulary, rng: np.random.Generator) -> Words:
    """A share of the words masked (half), replaced (a tenth) or left out (the rest), as released."""
    if share == 0:
        return words
    noisy: Words = []
    for word, draw, kind in zip(words, rng.random(len(words)), rng.random(len(words)), strict=True):
        if draw >= share:
            noisy.append(word)
        elif kind < MASKED:
            noisy.append([vocabulary.mask] * len(word))
        elif kind < MASKED + REPLACED:
            noisy.append([int(i) for i in rng.integers(vocabulary.size, size=len(word))])
    return noisy
