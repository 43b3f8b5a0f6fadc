"""The three benchmarks are read by their published rules, and bad data is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sdtps.data.reid_folders import read_dataset
from sdtps.system.errors import DataError


def picture(path: Path, size: tuple[int, int] = (8, 16), level: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level, level, level)).save(path, "JPEG")


def rgbnt201(root: Path) -> Path:
    for split, pids in (("train_171", (7, 2)), ("test", (300, 258))):
        for pid in pids:
            for camera in (1, 3):
                for modality in ("RGB", "NI", "TI"):
                    picture(root / "RGBNT201" / split / modality / f"{pid:06d}_cam{camera}_0_00.jpg")
    return root


def rgbnt100(root: Path) -> Path:
    for split, pid in (("bounding_box_train", 11), ("query", 12), ("bounding_box_test", 12)):
        for camera in (1, 8):
            path = root / "RGBNT100" / "rgbir" / split / f"{pid:04d}_c{camera}_05.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            wide = np.zeros((128, 768, 3), np.uint8)
            wide[:, 256:512], wide[:, 512:] = 100, 200
            Image.fromarray(wide).save(path, "JPEG")
    return root


def msvr310(root: Path) -> Path:
    for split, pid in (("bounding_box_train", 2), ("query3", 3), ("bounding_box_test", 3)):
        for scene in (1, 24):
            for modality in ("vis", "ni", "th"):
                name = f"{pid:04d}_s{scene:03d}_v0_001.jpg"
                picture(root / "MSVR310" / split / f"{pid:04d}" / modality / name)
    return root


def test_rgbnt201_names_give_identity_and_camera_in_sorted_order(tmp_path: Path) -> None:
    dataset = read_dataset("rgbnt201", rgbnt201(tmp_path))
    assert [(s.pid, s.camid, s.label) for s in dataset.train] == [
        (2, 0, 0),
        (2, 2, 0),
        (7, 0, 1),
        (7, 2, 1),
    ]
    assert dataset.query == dataset.gallery
    assert [s.pid for s in dataset.query] == [258, 258, 300, 300]
    assert all(s.label == -1 for s in dataset.query)
    assert [p.parent.name for p in dataset.train[0].images] == ["RGB", "NI", "TI"]
    assert (dataset.cameras, dataset.train_pids, dataset.view_rule) == (3, 2, "camera")


def test_rgbnt100_leaves_junk_out_and_ignores_folder_names(tmp_path: Path) -> None:
    root = rgbnt100(tmp_path / "data_5_c3")
    (root / "RGBNT100/rgbir/query/-1_c2_00.jpg").write_bytes(b"\xff\xd8")
    dataset = read_dataset("rgbnt100", root)
    assert [(s.pid, s.camid) for s in dataset.query] == [(12, 0), (12, 7)]
    assert [(s.pid, s.camid) for s in dataset.train] == [(11, 0), (11, 7)]


def test_msvr310_reads_scene_and_camera(tmp_path: Path) -> None:
    dataset = read_dataset("msvr310", msvr310(tmp_path))
    assert [(s.pid, s.sceneid, s.camid) for s in dataset.query] == [(3, 1, 0), (3, 24, 0)]
    assert dataset.view_rule == "scene"


def test_all_mistakes_are_found_in_one_pass(tmp_path: Path) -> None:
    root = rgbnt201(tmp_path) / "RGBNT201"
    (root / "train_171/NI/000007_cam1_0_00.jpg").unlink()
    (root / "test/RGB/000258_cam1_0_00.jpg").unlink()
    (root / "train_171/TI/000002_cam1_0_00.jpg").write_bytes(b"GIF89a")
    (root / "test/TI/000300_cam3_0_00.jpg").write_bytes(b"")
    for modality in ("RGB", "NI", "TI"):
        picture(root / "train_171" / modality / "person_three.jpg")
    with pytest.raises(DataError) as caught:
        read_dataset("rgbnt201", tmp_path)
    text = str(caught.value)
    for missing in ("NI/000007_cam1_0_00.jpg", "RGB/000258_cam1_0_00.jpg"):
        assert f"{missing}: is missing" in text
    assert "TI/000002_cam1_0_00.jpg: is not an image of a format that is read" in text
    assert "TI/000300_cam3_0_00.jpg: is an empty file" in text
    assert "person_three.jpg: name is not" in text
    assert "5 mistake(s)" in text


def test_many_mistakes_are_cut(tmp_path: Path) -> None:
    root = rgbnt201(tmp_path) / "RGBNT201/train_171"
    for number in range(30):
        for modality in ("RGB", "NI", "TI"):
            picture(root / modality / f"x{number}.jpg")
    with pytest.raises(DataError, match=r"30 mistake\(s\)") as caught:
        read_dataset("rgbnt201", tmp_path)
    assert "... and 10 more" in str(caught.value)


def test_an_empty_split_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_dataset("msvr310", tmp_path)
    for split in ("bounding_box_train", "query3", "bounding_box_test"):
        assert f"{split}: folder is missing" in str(caught.value)
    assert "split train is empty" in str(caught.value)
