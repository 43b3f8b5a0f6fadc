"""Data are known by their bytes, cheaply; what cannot be right is named before anything is trained."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from sdtps.config import parse_config
from sdtps.config.retrieval import GeneratedRetrievalConfig
from sdtps.data import contents
from sdtps.data.captions import read_split
from sdtps.data.generated import generate_captions
from sdtps.data.images import open_image
from sdtps.data.inputs import look
from sdtps.data.load import load_reid_data
from sdtps.data.reid_folders import read_dataset
from sdtps.system.errors import DataError
from tests.sdtps.data.test_layouts import make  # noqa: F401
from tests.sdtps.data.test_own import config, table


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SDTPS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "files"
    folder.mkdir()
    made = [folder / f"{number}.bin" for number in range(100)]
    for number, file in enumerate(made):
        file.write_bytes(bytes([number]) * 50)
        os.utime(file, ns=(1, 1))
    return made


def test_the_second_look_reads_nothing(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "TICK_NS", -(10**12))  # made long ago
    monkeypatch.setattr(contents, "COARSE_TICK_NS", -(10**12))
    found, wrong = contents.look(files[0].parent, files)
    assert len(set(found.values())) == 100 and wrong == {}
    monkeypatch.setattr(contents, "_read", None)
    assert contents.look(files[0].parent, files) == (found, {})


def test_a_byte_is_seen_though_names_sizes_and_times_stay(files: list[Path]) -> None:
    before, _ = contents.look(files[0].parent, files)
    state = files[3].stat()
    files[3].write_bytes(b"\xff" + files[3].read_bytes()[1:])
    os.utime(files[3], ns=(state.st_atime_ns, state.st_mtime_ns))
    after, _ = contents.look(files[0].parent, files)
    assert [f for f in files if before[f] != after[f]] == [files[3]]


def test_what_was_written_just_now_is_not_remembered(
    files: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file written twice within a tick of the clock keeps its times."""
    monkeypatch.setattr(contents, "TICK_NS", 10**12)
    contents.look(files[0].parent, files)
    assert not list(cache.glob("contents-*.json"))


@pytest.mark.parametrize("damage", ["{", "[]", '{"x": 3}'])
def test_a_cache_that_cannot_be_read_or_written_is_done_without(
    files: list[Path], cache: Path, damage: str
) -> None:
    found, _ = contents.look(files[0].parent, files)
    for file in cache.glob("contents-*.json"):
        file.write_text(damage)
    assert contents.look(files[0].parent, files)[0] == found
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    assert contents.look(files[0].parent, files)[0] == found
    files[0].unlink()
    assert contents.look(files[0].parent, files)[1] == {files[0]: "is missing"}


def test_a_data_set_is_its_pictures_wherever_and_however_they_are_called(
    tmp_path: Path,
    make: Callable[[str], Path],  # noqa: F811
) -> None:
    """D2: inverted pictures of the same names and sizes are other data."""
    make("rgbnt201")
    before = read_dataset("rgbnt201", tmp_path).digest()
    shutil.copytree(tmp_path / "RGBNT201", tmp_path / "any name")
    assert read_dataset("rgbnt201", tmp_path / "any name").digest() == before
    for file in (tmp_path / "any name").rglob("[0-9]*.png"):
        bitmap = file.with_suffix(".bmp")
        Image.open(file).save(bitmap)
        file.unlink()
    plain = read_dataset("rgbnt201", tmp_path / "any name").digest()
    for file in (tmp_path / "any name").rglob("*.bmp"):
        state, size = file.stat(), file.stat().st_size
        Image.fromarray(255 - np.asarray(Image.open(file))).save(file)
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
        assert file.stat().st_size == size
    assert len({before, plain, read_dataset("rgbnt201", tmp_path / "any name").digest()}) == 3


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("rgb/1_1.png,777,1,rgb,test", "training and test: rgb/1_1.png"),
        ("rgb/1_1.png,2,7,rgb,train", "two identities in training: rgb/1_1.png"),
        ("rgb/3_1.png,3,7,rgb,gallery", "two cameras, so a query finds itself: rgb/3_1.png"),
        ("copy.png,9,1,rgb,test", "training and test: copy.png"),
    ],
)
def test_a_picture_that_stands_where_it_must_not_is_named(tmp_path: Path, row: str, told: str) -> None:
    """D3."""
    rows = table(tmp_path, "rgb")
    shutil.copy(tmp_path / "rgb/1_1.png", tmp_path / "copy.png")
    (tmp_path / "data.csv").write_text("\n".join([*rows, row]))
    with pytest.raises(DataError, match=told):
        load_reid_data(config(tmp_path))


def test_published_data_with_a_picture_twice_are_warned_of(
    tmp_path: Path,
    make: Callable[[str], Path],  # noqa: F811
) -> None:
    file = make("rgbnt201").with_suffix(".png")
    shutil.copy(file, tmp_path / "RGBNT201/train_171/NI/000007_cam1_0_00.png")
    warnings = read_dataset("rgbnt201", tmp_path).warnings(camera_embedding=False)
    assert any("training and test, 1 times" in text for text in warnings)


def sixteen_bits(path: Path, largest: int, bits: int | None = None) -> np.ndarray:
    values = np.linspace(0, largest, 32 * 16).reshape(32, 16).astype(np.uint16)
    information = PngImagePlugin.PngInfo()
    if bits is not None:
        information.add(b"sBIT", bytes([bits]))
    Image.fromarray(values).save(path, pnginfo=information)
    return values


@pytest.mark.parametrize("largest", [255, 4095, 16383])
def test_sixteen_bits_with_upper_bits_empty_want_to_be_explained(tmp_path: Path, largest: int) -> None:
    """D4: a sensor of 12 or 14 bits."""
    file = tmp_path / "thermal.png"
    values = sixteen_bits(file, largest)
    with pytest.raises(DataError, match=f"no value above {largest}.*data.bits"):
        open_image(file)
    bits = max(9, largest.bit_length())
    assert (np.asarray(open_image(file, bits))[..., 0] == values >> (bits - 8)).all()
    assert (np.asarray(open_image(file, 16))[..., 0] == values >> 8).all()
    if largest > 511:
        with pytest.raises(DataError, match=f"value of {largest}, which 9 bits"):
            open_image(file, 9)


@pytest.mark.parametrize(("largest", "shift"), [(4095, 4), (65520, 8)])
def test_png_says_its_bits_itself(tmp_path: Path, largest: int, shift: int) -> None:
    """As many write them (values as they are), and as PNG wants them (scaled to 16 bits)."""
    values = sixteen_bits(tmp_path / "thermal.png", largest, bits=12)
    assert (np.asarray(open_image(tmp_path / "thermal.png"))[..., 0] == values >> shift).all()


@pytest.fixture
def flickr(tmp_path: Path) -> Path:
    size = GeneratedRetrievalConfig(train_images=3, dev_images=1, test_images=2)
    return generate_captions(size, tmp_path)


def test_a_key_twice_is_named_and_not_chosen_between(flickr: Path) -> None:
    """D5."""
    file = flickr / "id_mapping.json"
    key = next(iter(json.loads(file.read_text())))
    file.write_text(file.read_text().replace("{", f'{{"{key}": "other.jpg", ', 1))
    with pytest.raises(DataError, match=f"key '{key}' stands there twice"):
        read_split("f30k", "train", flickr)


def test_captions_in_flickrs_own_form_are_read_and_must_fit(flickr: Path) -> None:
    """D5."""
    before = read_split("f30k", "train", flickr)
    lines = [
        f"{before.images[i // 5].name}#{i % 5}\t{caption}" for i, caption in enumerate(before.captions)
    ]
    (flickr / "train_caps.txt").write_text("\n".join(lines))
    assert read_split("f30k", "train", flickr) == before
    (flickr / "train_caps.txt").write_text("\n".join(reversed(lines)))
    with pytest.raises(DataError, match=r"train_caps\.txt:1: a caption of"):
        read_split("f30k", "train", flickr)


def test_a_condition_that_the_data_cannot_have_is_refused(tmp_path: Path) -> None:
    """D6."""
    (tmp_path / "data.csv").write_text("\n".join(table(tmp_path, "rgb")))
    tree = config(tmp_path).model_dump(mode="json")
    for name, possible in (("r_to_n", False), ("missing_r", False), ("missing_n", True)):
        tree["eval"]["also"] = [name]
        mistakes = look(parse_config(tree)).mistakes
        assert possible is not any(name in text for text in mistakes)
