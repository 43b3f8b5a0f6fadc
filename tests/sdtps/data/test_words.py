"""Vocabularies and word noise."""

from __future__ import annotations

import numpy as np

from sdtps.data.words import OwnVocabulary, token_ids, with_noise

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
    (words,) = vocabulary.words(["a dog and a cat ."])
    ids = token_ids(words, vocabulary, 5)
    assert len(ids) == 5 and ids[0] == vocabulary.start and ids[-1] == vocabulary.end
    assert token_ids([], vocabulary, 5) == [vocabulary.start, vocabulary.end]


def test_noise_hits_its_share_of_words_and_masks_half_of_them() -> None:
    vocabulary = OwnVocabulary(TEXTS)
    words = [[5, 6]] * 20_000
    noisy = with_noise(words, 0.2, vocabulary, np.random.default_rng(0))
    masked = sum(word == [vocabulary.mask] * 2 for word in noisy)
    kept = sum(word == [5, 6] for word in noisy)
    left_out = len(words) - len(noisy)
    assert abs(masked / len(words) - 0.10) < 0.01
    assert abs(left_out / len(words) - 0.08) < 0.01
    assert abs(kept / len(words) - 0.80) < 0.01
    assert with_noise(words, 0.0, vocabulary, np.random.default_rng(0)) == words
