"""Vocabularies, compact texts, word noise; batches of pairs, the same with and without workers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from sdtps.config.retrieval import GeneratedRetrievalConfig, RetrievalDataConfig
from sdtps.data.caption_batches import OwnVocabulary, Source, TrainPairs, tokenised
from sdtps.data.captions import read_split
from sdtps.data.generated import generate_captions
from sdtps.data.images import PixelFormat
from sdtps.system.errors import DataError

RECIPE = GeneratedRetrievalConfig(train_images=6, dev_images=1, test_images=1)
CONFIG = RetrievalDataConfig(batch_size=7, workers=0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    root = generate_captions(RECIPE, tmp_path_factory.mktemp("captions"))
    split = read_split("f30k", "train", root)
    vocabulary = OwnVocabulary([*split.captions, *(split.dense or ())])
    pixels = PixelFormat(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    captions, dense = tokenised(split.captions, vocabulary), tokenised(split.dense or (), vocabulary)
    return Source(split, pixels, None, captions, dense, vocabulary)


def test_an_epoch_has_an_order_of_its_own_and_resumes_in_it(source: Source) -> None:
    pairs = TrainPairs(source, CONFIG, "own", 0, torch.device("cpu"))
    first, whole = (list(pairs.epoch(epoch, 0)) for epoch in (1, 2))
    assert pairs.steps_per_epoch == len(first) == 4
    assert not torch.equal(*(torch.cat([b.image_ids for b in epoch]) for epoch in (first, whole)))
    rest = list(TrainPairs(source, CONFIG, "own", 0, torch.device("cpu")).epoch(2, 2))
    for one, two in zip(whole[2:], rest, strict=True):
        assert torch.equal(one.images, two.images) and torch.equal(one.sparse.values, two.sparse.values)


def test_evaluated_images_are_the_same_with_and_without_workers(source: Source) -> None:
    alone, together = (torch.cat(list(source.image_blocks(4, workers))) for workers in (0, 2))
    assert alone.shape == (6, 3, 16, 16) and torch.equal(alone, together)
    assert torch.equal(alone[4:5], source.images([4]))


def test_a_broken_image_is_named_by_a_worker_too(source: Source, tmp_path: Path) -> None:
    torn = tmp_path / "torn.jpg"
    torn.write_bytes(source.split.images[0].read_bytes()[:300])
    images = (torn, *source.split.images[1:])
    broken = dataclasses.replace(source, split=dataclasses.replace(source.split, images=images))
    with pytest.raises(DataError, match=r"torn\.jpg: cannot be decoded"):
        list(broken.image_blocks(4, 2))


TEXTS = ["A dog runs .", "a dog and a cat ."]


def test_own_vocabulary_keeps_words_by_frequency_and_knows_no_others() -> None:
    vocabulary = OwnVocabulary(TEXTS)
    assert list(vocabulary.ids)[:3] == ["a", ".", "dog"]
    assert vocabulary.size == len(vocabulary.ids) + 5
    (words,) = vocabulary.words(["a zebra"])
    assert words == [[vocabulary.ids["a"]], [vocabulary.unknown]]
    assert OwnVocabulary(TEXTS, size=6).size == 6


def test_token_ids_are_cut_to_the_limit_with_both_ends_kept() -> None:
    vocabulary = OwnVocabulary(TEXTS)
    texts = tokenised(["a dog and a cat .", "", "dog"], vocabulary)
    ids = texts.of(0, vocabulary, 5)
    assert len(ids) == 5 and ids[0] == vocabulary.start[0] and ids[-1] == vocabulary.end[0]
    assert texts.of(1, vocabulary, 5).tolist() == [*vocabulary.start, *vocabulary.end]
    assert texts.of(2, vocabulary, 5)[1] == vocabulary.ids["dog"]


class Pieces(OwnVocabulary):
    """Every word is two pieces, as WordPiece may cut it."""

    def words(self, texts: object) -> list[list[list[int]]]:
        return [[[word[0], word[0] + 100] for word in text] for text in super().words(texts)]


def noisy_by_words(
    words: list[list[int]], share: float, mask: int, size: int, rng: np.random.Generator
) -> list[int]:
    """The released rule word by word."""
    result: list[int] = []
    for word, draw, kind in zip(words, rng.random(len(words)), rng.random(len(words)), strict=True):
        if draw >= share:
            result += word
        elif kind < 0.5:
            result += [mask] * len(word)
        elif kind < 0.6:
            result += [int(i) for i in rng.integers(size, size=len(word))]
    return result


def test_noise_equals_the_rule_word_by_word() -> None:
    vocabulary = Pieces(TEXTS)
    texts = tokenised(["a dog and a cat . " * 30] * 20, vocabulary)
    for number in range(20):
        words = [[i, i + 100] for i in texts.row(number)[::2].tolist()]
        one, two = (np.random.default_rng(number) for _ in range(2))
        expected = noisy_by_words(words, 0.2, vocabulary.mask, vocabulary.size, two)
        ids = texts.of(number, vocabulary, 10_000, (0.2, one))
        assert ids[1:-1].tolist() == expected
