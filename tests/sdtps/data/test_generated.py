"""The generated data set is deterministic, real, safe to make twice, and needs all its modalities."""

from __future__ import annotations

import hashlib
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from sdtps.config.reid import GeneratedReidConfig, ReidDataConfig
from sdtps.data.generated import generate_rgbnt201, identity_symbols, rgbnt201_name
from sdtps.data.images import BILINEAR
from sdtps.data.reid_batches import decode
from sdtps.data.reid_folders import read_dataset
from sdtps.system.errors import DataError

SMALL = GeneratedReidConfig(train_pids=6, test_pids=4, cameras=2, images_per_camera=2)


def digest(root: Path) -> str:
    files = sorted(p for p in root.rglob("*") if p.is_file())
    content = b"".join(str(p.relative_to(root)).encode() + p.read_bytes() for p in files)
    return hashlib.sha256(content).hexdigest()


def test_the_same_configuration_gives_the_same_bytes(tmp_path: Path) -> None:
    one = generate_rgbnt201(SMALL, 64, 32, tmp_path / "a")
    two = generate_rgbnt201(SMALL, 64, 32, tmp_path / "b")
    three = generate_rgbnt201(SMALL, 64, 32, tmp_path / "d", processes=2)
    assert digest(three) == digest(one)
    other = generate_rgbnt201(SMALL.model_copy(update={"seed": 1}), 64, 32, tmp_path / "c")
    assert digest(one) == digest(two) != digest(other)


def test_it_is_read_as_rgbnt201(tmp_path: Path) -> None:
    dataset = read_dataset("rgbnt201", generate_rgbnt201(SMALL, 64, 32, tmp_path))
    assert (len(dataset.train), len(dataset.query), dataset.train_pids) == (24, 16, 6)
    assert dataset.cameras == 2
    pixels = decode(dataset.train[0], ReidDataConfig(height=64, width=32), BILINEAR)
    assert all(p.shape == (64, 32, 3) for p in pixels)


def test_no_single_modality_tells_identities_apart_but_three_do() -> None:
    symbols = identity_symbols(GeneratedReidConfig())
    assert len(np.unique(symbols, axis=0)) == len(symbols)
    test = symbols[GeneratedReidConfig().train_pids :]
    for modality in range(3):
        _, counts = np.unique(test[:, modality], return_counts=True)
        assert (counts >= 2).all(), "each symbol is shared within the test identities"


def test_test_identities_are_new_combinations_of_known_symbols() -> None:
    config = GeneratedReidConfig()
    symbols = identity_symbols(config)
    train, test = symbols[: config.train_pids], symbols[config.train_pids :]
    for modality in range(3):
        assert set(test[:, modality]) <= set(train[:, modality])


def _generate(root: str) -> None:
    generate_rgbnt201(SMALL, 64, 32, Path(root))


def test_several_jobs_may_start_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        pool.map(_generate, [str(tmp_path)] * 3)
    assert [p.name for p in tmp_path.iterdir()] == ["RGBNT201"]
    assert len(read_dataset("rgbnt201", tmp_path).train) == 24


def test_another_data_set_in_the_way_is_an_error(tmp_path: Path) -> None:
    generate_rgbnt201(SMALL, 64, 32, tmp_path)
    with pytest.raises(DataError, match="was not generated with"):
        generate_rgbnt201(SMALL, 128, 32, tmp_path)
    assert rgbnt201_name(SMALL, 64, 32) != rgbnt201_name(SMALL, 128, 32)


def test_sizes_must_fit_the_grid(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="multiple of"):
        generate_rgbnt201(SMALL, 60, 32, tmp_path)
