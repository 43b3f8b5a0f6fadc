"""One's own data in one file is a data set of either task; what cannot be told is refused by line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sdtps.config import ReidConfig, identity, parse_config
from sdtps.data.inputs import look
from sdtps.data.load import load_reid_data, load_splits
from sdtps.data.reid_folders import ReidDataset
from sdtps.system.errors import ConfigError, DataError
from sdtps.training.attempt import execute
from sdtps.training.reid import ReidTask
from tests.sdtps import small


def picture(path: Path, level: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    ramp = np.add.outer(np.arange(32), np.arange(16)) + level
    Image.fromarray(ramp.astype(np.uint8)).save(path)


def table(
    root: Path, modalities: str = "rgb nir tir", cameras: tuple[object, ...] = (1, 2)
) -> list[str]:
    """Rows of a CSV of two training and two test identities; writes their images."""
    rows = ["path,pid,camid,modality,split"]
    for split, pids in (("train", (1, 2)), ("test", (3, 4))):
        for pid in pids:
            for camera in cameras:
                for number, modality in enumerate(modalities.split()):
                    name = f"{modality}/{pid}_{camera}.png"
                    picture(root / name, 20 * pid + 5 * cameras.index(camera) + number)
                    rows.append(f"{name},{pid},{camera},{modality},{split}")
    return rows


def config(folder: Path, **data: Any) -> ReidConfig:
    own = {"generate": None, "dataset": "own", "file": "data.csv", "root": str(folder)}
    return small.reid(data={**own, "batch_size": 4, **data}, train={"device": "cpu"})


@pytest.fixture
def read(tmp_path: Path) -> Callable[[list[str]], ReidDataset]:
    def write_and_read(rows: list[str]) -> ReidDataset:
        (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
        return load_reid_data(config(tmp_path))

    return write_and_read


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDTPS_CACHE", str(tmp_path / "cache"))


# -- re-identification -------------------------------------------------------------------------------


def test_a_table_is_a_data_set(tmp_path: Path, read: Callable[[list[str]], ReidDataset]) -> None:
    dataset = read(table(tmp_path))
    assert [(s.pid, s.camid, s.label) for s in dataset.train] == [
        (1, 0, 0),
        (1, 1, 0),
        (2, 0, 1),
        (2, 1, 1),
    ]
    assert dataset.query == dataset.gallery and len(dataset.query) == 4
    assert [path.parent.name for path in dataset.query[0].images] == ["rgb", "nir", "tir"]
    assert dataset.absent == "" and dataset.warnings(camera_embedding=True) == []
    before = dataset.digest()
    rows = [
        row.replace(",1,", ",7,", 1) if row.startswith("rgb/1_1") else row for row in table(tmp_path)
    ]
    with pytest.raises(DataError, match="has no nir and no tir image"):
        read(rows)
    assert read([row.replace(",4,", ",5,", 1) for row in table(tmp_path)]).digest() != before


def test_words_serve_as_identities_and_cameras(
    tmp_path: Path, read: Callable[[list[str]], ReidDataset]
) -> None:
    rows = table(tmp_path, cameras=("gate", "hall"))
    for pid, name in enumerate(("ann", "bob", "cyd", "dan"), 1):
        rows = [row.replace(f",{pid},", f",{name},", 1) for row in rows]
    dataset = read([row.replace(",", ";") for row in rows])
    assert {s.camid for s in dataset.train} == {0, 1} and dataset.train_pids == 2


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    ("modalities", "absent"), [("rgb", "nt"), ("nir tir", "r"), ("rgb nir tir", "")]
)
def test_one_to_three_modalities_train_and_evaluate(
    tmp_path: Path, frozen: bool, modalities: str, absent: str
) -> None:
    (tmp_path / "data.csv").write_text("\n".join(table(tmp_path, modalities)))
    still = {"flip": 0.0, "pad": 0, "erase": 0.0} if frozen else {}
    chosen = config(tmp_path, **still)
    if frozen:
        backbone = chosen.backbone.model_copy(update={"frozen": True})
        chosen = chosen.model_copy(update={"backbone": backbone})
    task = ReidTask(chosen, 0, torch.device("cpu"))
    assert task.dataset.absent == absent
    warnings = task.record["data"]["warnings"]
    assert any("zero in training and test" in text for text in warnings) == bool(absent)
    if not frozen:
        for batch in (next(task.train_batches(1, 0)), next(iter(task.test_batches))):
            zero = [
                letter for letter, images in zip("rnt", batch.images, strict=True) if not images.any()
            ]
            assert "".join(zero) == absent
    else:
        next(task.train_batches(1, 0))
    counts = task.record["data"]["counts"]["train"]
    assert (counts["samples"], counts["images"]) == (4, 4 * len(modalities.split()))
    assert task.evaluate()["mAP"] > 0


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("rgb/9.png,9,1,rgb,train", r"data\.csv:26: .*rgb/9\.png: is missing"),
        ("rgb/1_1.png,1,1,rgb,train", r"data\.csv:26: 1_1\.png and 1_1\.png are both the rgb image"),
        ("rgb/1_1.png,1,9,rgv,train", r"data\.csv:26: modality 'rgv'\. Did you mean 'rgb'"),
        ("rgb/1_1.png,1,9,rgb,trian", r"data\.csv:26: split 'trian'\. Did you mean 'train'"),
        ("rgb/1_1.png,1,9,rgb,train", r"sample '1_1' \(train, pid 1, camid 9\) has no nir and no tir"),
        ("rgb/1_1.png,1,,rgb,train", r"data\.csv:26: empty camid"),
        ("rgb/1_1.png,1,1,rgb", r"data\.csv:26: 4 values for 5 columns"),
    ],
)
def test_rows_that_cannot_be_right_are_named(
    tmp_path: Path, read: Callable[[list[str]], ReidDataset], row: str, told: str
) -> None:
    with pytest.raises(DataError, match=told):
        read([*table(tmp_path), row])


def test_images_may_lie_anywhere(tmp_path: Path, read: Callable[[list[str]], ReidDataset]) -> None:
    rows = table(tmp_path / "images")
    (tmp_path / "tables").mkdir()
    absolute = [rows[0], *(f"{tmp_path}/images/{row}" for row in rows[1:])]
    assert len(read(absolute).train) == 4
    relative = [rows[0], *(f"../images/{row}" for row in rows[1:])]
    (tmp_path / "tables/data.csv").write_text("\n".join(relative))
    dataset = load_reid_data(config(tmp_path, file="tables/data.csv"))
    assert dataset.root == tmp_path
    assert all(path.is_relative_to(dataset.root) for path in dataset.digests())
    assert dataset.digest() == read(absolute).digest()


def test_a_table_of_test_images_alone_serves_an_evaluation(tmp_path: Path) -> None:
    rows = [row for row in table(tmp_path) if not row.endswith("train")]
    (tmp_path / "data.csv").write_text("\n".join(rows))
    dataset = load_reid_data(config(tmp_path), trains=False)
    assert len(dataset.query) == 4 and dataset.warnings(camera_embedding=True) == []
    with pytest.raises(DataError, match="split train is empty"):
        load_reid_data(config(tmp_path))


def test_rows_of_val_select_the_epoch(tmp_path: Path) -> None:
    rows = table(tmp_path)
    more = [row for row in table(tmp_path / "val") if row.endswith("test")]
    for row in more:
        path, pid, *rest = row.split(",")
        picture(tmp_path / "val" / path, 100 + 9 * len(rows) % 100)
        rows.append(",".join([f"val/{path}", f"{int(pid) + 90}", *rest]).replace(",test", ",val"))
    (tmp_path / "data.csv").write_text("\n".join(rows))
    task = ReidTask(config(tmp_path), 0, torch.device("cpu"))
    assert (task.selected_on, task.select_metric) == ("dev", "dev_mAP")
    assert {s.pid for s in task.dataset.dev} == {93, 94}
    metrics = task.evaluate(("", "any_camera"))
    assert {"mAP", "dev_mAP", "dev_rank1", "mAP@any_camera"} <= metrics.keys()
    assert "dev_mAP@any_camera" not in metrics
    assert task.record["data"]["counts"]["dev"]["identities"] == 2
    (tmp_path / "data.csv").write_text("\n".join(rows).replace(",93,", ",3,"))
    with pytest.raises(DataError, match="identity 3 is in both validation and test"):
        load_reid_data(config(tmp_path))


def test_a_missing_column_is_asked_for(
    tmp_path: Path, read: Callable[[list[str]], ReidDataset]
) -> None:
    rows = table(tmp_path)
    with pytest.raises(DataError, match=r"no column 'camid'.*Did you mean 'cam'"):
        read([rows[0].replace("camid", "cam"), *rows[1:]])


def test_a_sample_column_tells_samples_of_one_name_apart(
    tmp_path: Path, read: Callable[[list[str]], ReidDataset]
) -> None:
    rows = table(tmp_path)
    named = [f"{row},{'sample' if not i else (i - 1) // 3}" for i, row in enumerate(rows)]
    again = [f"{row.rpartition(',')[0]},more{row.rpartition(',')[2]}" for row in named[1:4]]
    assert len(read([*named, *again]).train) == 5


def test_the_file_is_part_of_the_identity_and_where_it_lies_is_not(tmp_path: Path) -> None:
    one, two = config(tmp_path), config(tmp_path, file="other.csv")
    moved = config(tmp_path, root="/elsewhere", file="/elsewhere/data.csv")
    assert identity(one, 0) != identity(two, 0) and identity(one, 0) == identity(moved, 0)
    for wrong in ({"file": None}, {"dataset": "rgbnt201"}):
        with pytest.raises(ConfigError, match=r"dataset own and data\.file go together"):
            config(tmp_path, **wrong)


# -- retrieval ---------------------------------------------------------------------------------------


def captions(root: Path, **data: Any) -> Any:
    tree = {
        "task": "retrieval",
        "data": {"dataset": "own", "root": str(root), "batch_size": 4, "workers": 0, **data},
        "image_encoder": small.RETRIEVAL["image_encoder"],
        "text_encoder": small.RETRIEVAL["text_encoder"],
        "matching": {"embed": 16, "dense_text": "none", "eval_dense_text": "none"},
        "train": {"epochs": 1},
    }
    return parse_config(tree)


def rows_of_captions(root: Path) -> list[str]:
    rows = ["image,caption,split"]
    for number, split in enumerate(("train",) * 4 + ("val",) * 2 + ("test",) * 2):
        picture(root / f"{number}.png", number)
        rows += [f'{number}.png,"a ramp, number {number} said {i} times",{split}' for i in (1, 2)]
    return rows


def test_a_table_of_captions_is_a_data_set(tmp_path: Path) -> None:
    rows = rows_of_captions(tmp_path)
    (tmp_path / "c.csv").write_text("\ufeff" + "\n".join(rows), encoding="utf-8")
    chosen = captions(tmp_path, file="c.csv")
    splits, root = load_splits(chosen, ["train", "dev", "test"])
    assert root == tmp_path and [len(splits[n].images) for n in splits] == [4, 2, 2]
    assert splits["dev"].captions[0] == "a ramp, number 4 said 1 times" and splits["dev"].per_image == 2
    folder = small.planted(tmp_path / "run", chosen)
    assert execute(folder.path) == "completed"
    assert folder.run()["data"]["counts"]["train"] == {"images": 4, "captions": 8, "dense_texts": 0}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("0.png,a third,train", "same number of captions; 3 images with 2, 1 images with 3"),
        ("9.png,one,test\n9.png,two,test", r"9\.png: is missing"),
        ("0.png,one,tset", r"c\.csv:18: split 'tset'\. Did you mean 'test'"),
        ("0.png,,test", r"c\.csv:18: empty caption"),
        ("0.png,one,test\n0.png,two,test", r"0\.png is in both train and test"),
    ],
)
def test_captions_that_cannot_be_right_are_named(tmp_path: Path, row: str, told: str) -> None:
    (tmp_path / "c.csv").write_text("\n".join([*rows_of_captions(tmp_path), row]))
    with pytest.raises(DataError, match=told):
        load_splits(captions(tmp_path, file="c.csv"), ["train", "dev", "test"])


def test_dense_texts_come_from_a_column_or_are_asked_for(tmp_path: Path) -> None:
    rows = rows_of_captions(tmp_path)
    (tmp_path / "c.csv").write_text("\n".join(rows))
    chosen = captions(tmp_path, file="c.csv")
    wants = chosen.matching.model_copy(update={"dense_text": "own"})
    chosen = chosen.model_copy(update={"matching": wants})
    with pytest.raises(
        DataError, match=r"split train: 4 image\(s\) without a dense text.*column `dense`"
    ):
        load_splits(chosen, ["train"])
    described = [f"{row},{'dense' if not i else f'text {(i - 1) // 2}'}" for i, row in enumerate(rows)]
    (tmp_path / "c.csv").write_text("\n".join(described))
    assert load_splits(chosen, ["train"])[0]["train"].dense == ("text 0", "text 1", "text 2", "text 3")


def karpathy(root: Path, folder: str, filepath: str | None = None) -> Path:
    images = []
    for number, split in enumerate(("train", "restval", "val", "test")):
        picture(root / folder / (filepath or "") / f"{number}.png", number)
        said = [{"raw": f" A  ramp {i}. ", "tokens": ["a", "ramp"]} for i in range(5 + number)]
        entry = {"filename": f"{number}.png", "split": split, "sentences": said}
        images.append({**entry, "filepath": filepath} if filepath else entry)
    file = root / "karpathy" / "dataset.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"images": images, "dataset": "coco"}))
    return file


@pytest.mark.parametrize(
    ("dataset", "folder", "filepath"),
    [("f30k", "flickr30k-images", None), ("coco", "coco-images", "val2014"), ("own", "karpathy", None)],
)
def test_karpathys_json_is_read_with_its_first_five_captions(
    tmp_path: Path, dataset: str, folder: str, filepath: str | None
) -> None:
    karpathy(tmp_path, folder, filepath)
    chosen = captions(tmp_path, dataset=dataset, file="karpathy/dataset.json")
    splits, _ = load_splits(chosen, ["train", "dev", "testall"])
    assert [len(splits[name].images) for name in splits] == [2, 1, 1]
    assert splits["train"].per_image == 5 and splits["train"].captions[0] == "A ramp 0."
    assert splits["dev"].left_out == 2
    assert "split train: 1 captions are left out" in look(chosen).warnings[0]


def test_karpathys_json_without_its_images_names_the_places(tmp_path: Path) -> None:
    karpathy(tmp_path, "somewhere")
    chosen = captions(tmp_path, dataset="f30k", file="karpathy/dataset.json")
    with pytest.raises(DataError, match=r"flickr30k-images/0\.png.*Set data\.image_root"):
        load_splits(chosen, ["train"])
    found = captions(
        tmp_path, dataset="f30k", file="karpathy/dataset.json", image_root=str(tmp_path / "somewhere")
    )
    assert len(load_splits(found, ["train"])[0]["train"].images) == 2
