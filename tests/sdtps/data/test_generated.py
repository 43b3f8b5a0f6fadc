"""Generated data are deterministic, real, safe to make twice, and need all their modalities."""

from __future__ import annotations

import hashlib
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from sdtps.config.reid import GeneratedReidConfig
from sdtps.config.retrieval import GeneratedRetrievalConfig
from sdtps.data.generated import generate_captions, generate_rgbnt201, identity_symbols
from sdtps.data.reid_folders import read_dataset
from sdtps.system.errors import DataError

SMALL = GeneratedReidConfig(train_pids=6, test_pids=4, cameras=2, images_per_camera=2)


def digest(root: Path) -> str:
    files = sorted(p for p in root.rglob("*") if p.is_file())
    content = b"".join(str(p.relative_to(root)).encode() + p.read_bytes() for p in files)
    return hashlib.sha256(content).hexdigest()[:16]


def test_the_same_configuration_gives_the_same_bytes(tmp_path: Path) -> None:
    captions = GeneratedRetrievalConfig(train_images=4, dev_images=3, test_images=2)
    one, two = (generate_rgbnt201(SMALL, 64, 32, tmp_path / name) for name in "ab")
    three, four = (generate_captions(captions, tmp_path / name) for name in "ab")
    assert digest(one) == digest(two) and digest(three) == digest(four)
    others = [generate_rgbnt201(SMALL, 128, 32, tmp_path / "a")]
    others.append(generate_rgbnt201(SMALL.model_copy(update={"seed": 1}), 64, 32, tmp_path / "a"))
    assert len({one, *others}) == 3 and digest(others[1]) != digest(one)


def test_no_single_modality_tells_identities_apart_but_three_do() -> None:
    """Test identities are new combinations of known symbols."""
    symbols = identity_symbols(GeneratedReidConfig())
    assert len(np.unique(symbols, axis=0)) == len(symbols)
    train, test = np.split(symbols, [GeneratedReidConfig().train_pids])
    for modality in range(3):
        _, counts = np.unique(test[:, modality], return_counts=True)
        assert (counts >= 2).all(), "each symbol is shared within the test identities"
        assert set(test[:, modality]) <= set(train[:, modality])


def _generate(root: str) -> str:
    return str(generate_rgbnt201(SMALL, 64, 32, Path(root)))


def test_several_jobs_may_start_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        (root,) = set(pool.map(_generate, [str(tmp_path)] * 3))
    assert [str(p) for p in tmp_path.iterdir() if p.suffix != ".lock"] == [root]
    assert len(read_dataset("rgbnt201", Path(root)).train) == 24


def test_sizes_must_fit_the_grid(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="multiple of"):
        generate_rgbnt201(SMALL, 60, 32, tmp_path)
