"""Batches of pairs: one order an epoch, images decoded by workers, the same result either way."""

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
from sdtps.errors import DataError

RECIPE = GeneratedRetrievalConfig(train_images=6, dev_images=1, test_images=1)
CONFIG = RetrievalDataConfig(batch_size=7, workers=0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    root = generate_captions(RECIPE, tmp_path_factory.mktemp("captions") / "data")
    split = read_split("f30k", "train", root)
    vocabulary = OwnVocabulary([*split.captions, *(split.dense or ())])
    pixels = PixelFormat(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    captions, dense = tokenised(split.captions, vocabulary), tokenised(split.dense or (), vocabulary)
    return Source(split, pixels, None, captions, dense, vocabulary)


def test_the_order_of_the_captions_is_drawn_once_an_epoch(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[object] = []
    whole = np.random.default_rng

    def counted(seed: object = None) -> np.random.Generator:
        if isinstance(seed, list) and seed[-1] == 201:
            drawn.append(seed)
        return whole(seed)

    monkeypatch.setattr(np.random, "default_rng", counted)
    pairs = TrainPairs(source, CONFIG, "own", 0, torch.device("cpu"))
    seen = [batch.image_ids for epoch in (1, 2) for batch in pairs.epoch(epoch, 0)]
    assert pairs.steps_per_epoch == 4 and len(seen) == 8
    assert drawn == [[0, 1, 201], [0, 2, 201]]
    assert not torch.equal(torch.cat(seen[:4]), torch.cat(seen[4:]))


def test_an_epoch_resumes_in_its_own_order(source: Source) -> None:
    pairs = TrainPairs(source, CONFIG, "own", 0, torch.device("cpu"))
    whole = list(pairs.epoch(2, 0))
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
