"""The LAPS/SEPS layout is read whole, and every way to break it is one clear error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sdtps.config.retrieval import GeneratedRetrievalConfig
from sdtps.data.captions import read_split
from sdtps.data.generated import generate_captions
from sdtps.system.errors import DataError

CONFIG = GeneratedRetrievalConfig(train_images=4, dev_images=3, test_images=2)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate_captions(CONFIG, tmp_path_factory.mktemp("captions"))


@pytest.fixture
def root(generated: Path, tmp_path: Path) -> Path:
    shutil.copytree(generated, tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize(("split", "images"), [("train", 4), ("dev", 3), ("test", 2)])
def test_reads_images_captions_and_dense_texts_in_the_order_of_the_ids(
    root: Path, split: str, images: int
) -> None:
    data = read_split("f30k", split, root)
    assert len(data.images) == images and data.per_image == 5
    assert len(data.captions) == 5 * images
    assert data.dense is not None and len(data.dense) == images
    # A caption names things that its own image's dense text names.
    for i, caption in enumerate(data.captions):
        colour = next(w for w in caption.split() if w in data.dense[i // 5].split() and len(w) > 2)
        assert colour in data.dense[i // 5]


def test_dense_texts_need_not_exist_where_they_are_not_wanted(root: Path) -> None:
    (root / "f30k_dev.jsonl").unlink()
    assert read_split("f30k", "dev", root, dense=False).dense is None
    with pytest.raises(DataError, match=r"f30k_dev\.jsonl: no such file.*eval_dense_text"):
        read_split("f30k", "dev", root)


def edit(path: Path, line: int, text: str | None) -> None:
    """Replace (or delete) a line, from 1."""
    lines = path.read_text().splitlines()
    lines[line - 1 : line] = [] if text is None else [text]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("file", "line", "text", "message"),
    [
        ("dev_caps.txt", 3, "  ", r"dev_caps\.txt:3: empty caption"),
        ("dev_caps.txt", 3, None, r"dev_caps\.txt: 14 captions, but dev_ids\.txt has 15 lines for 3"),
        ("dev_ids.txt", 15, None, r"15 captions, but dev_ids\.txt has 14 lines for 3"),
        ("dev_ids.txt", 15, "99", r"dev_ids\.txt:15: image '99' is not in id_mapping\.json"),
        ("dev_ids.txt", 15, "4", r"dev_ids\.txt:15: image 4 comes again"),
        ("f30k_dev.jsonl", 2, "{'text'", r"f30k_dev\.jsonl:2: not JSON"),
        ("f30k_dev.jsonl", 2, "[1]", r"f30k_dev\.jsonl:2: a JSON object is expected, found list"),
        ("f30k_dev.jsonl", 2, '{"caption": "x"}', r"f30k_dev\.jsonl:2: no string under the key 'text'"),
        ("f30k_dev.jsonl", 2, '{"text": ""}', r"f30k_dev\.jsonl:2: empty dense text"),
        ("f30k_dev.jsonl", 2, None, r"f30k_dev\.jsonl: 2 dense texts, but dev_ids\.txt names 3"),
    ],
)
def test_broken_data_is_named_with_file_and_line(
    root: Path, file: str, line: int, text: str | None, message: str
) -> None:
    edit(root / file, line, text)
    with pytest.raises(DataError, match=message):
        read_split("f30k", "dev", root)


def test_missing_images_are_all_named_with_the_line_that_wants_them(root: Path) -> None:
    mapping = json.loads((root / "id_mapping.json").read_text())
    (root / "images" / mapping["4"]).unlink()
    (root / "images" / mapping["6"]).unlink()
    with pytest.raises(DataError) as error:
        read_split("f30k", "dev", root)
    assert "dev_ids.txt:1: image 4: " in str(error.value)
    assert "dev_ids.txt:11: image 6: " in str(error.value)


def test_images_may_lie_elsewhere(root: Path, tmp_path: Path) -> None:
    (root / "images").rename(tmp_path / "photographs")
    data = read_split("f30k", "test", root, image_root=tmp_path / "photographs")
    assert data.images[0].parent == tmp_path / "photographs"


def test_the_digest_changes_with_a_text(root: Path) -> None:
    before = read_split("f30k", "dev", root).digest()
    assert read_split("f30k", "dev", root).digest() == before
    edit(root / "dev_caps.txt", 1, "another caption .")
    assert read_split("f30k", "dev", root).digest() != before
