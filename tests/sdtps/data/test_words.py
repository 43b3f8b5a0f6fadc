"""Vocabularies, compact texts and word noise."""

from __future__ import annotations

import numpy as np

from sdtps.data.caption_batches import OwnVocabulary, tokenised, with_noise

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
    assert len(ids) == 5 and ids[0] == vocabulary.start and ids[-1] == vocabulary.end
    assert texts.of(1, vocabulary, 5).tolist() == [vocabulary.start, vocabulary.end]
    assert texts.of(2, vocabulary, 5)[1] == vocabulary.ids["dog"]


class Pieces(OwnVocabulary):
    """Every word is two pieces, as WordPiece may cut it."""

    def words(self, texts: object) -> list[list[list[int]]]:
        return [[[word[0], word[0] + 100] for word in text] for text in super().words(texts)]


def test_texts_take_a_few_bytes_a_word() -> None:
    texts = tokenised(TEXTS * 5000, Pieces(TEXTS))
    assert texts.values.dtype == np.int32
    each = (texts.values.nbytes + texts.first.nbytes + texts.starts.nbytes) / len(texts)
    assert each < 70  # five words of two pieces; as nested lists of Python integers 1,000


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


def test_noise_hits_its_share_of_words_and_masks_half_of_them() -> None:
    vocabulary = OwnVocabulary(TEXTS)
    ids, first = np.array([5, 6] * 20_000, np.int32), np.array([True, False] * 20_000)
    noisy = with_noise(ids, first, 0.2, vocabulary, np.random.default_rng(0))
    masked = (noisy == vocabulary.mask).sum() / len(ids)
    assert abs(masked - 0.10) < 0.01
    assert abs(1 - len(noisy) / len(ids) - 0.08) < 0.01
    assert (with_noise(ids, first, 0.0, vocabulary, np.random.default_rng(0)) == ids).all()
