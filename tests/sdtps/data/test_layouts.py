"""Each data layout with each way in which real files differ: right pixels, or refused by name."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdtps.config.reid import ReidDataConfig
from sdtps.data import images
from sdtps.data.captions import images_of, read_split
from sdtps.data.images import BICUBIC, check_images, open_image
from sdtps.data.reid_batches import decode
from sdtps.data.reid_folders import LAYOUTS, ReidDataset, read_dataset
from sdtps.system.errors import DataError

SIZE = (24, 12)  # width, height of one image
# Where each layout keeps one chosen image, and what stands in its name before the suffix.
CHOSEN = {
    "rgbnt201": "RGBNT201/test/NI/000258_cam1_0_00",
    "rgbnt100": "RGBNT100/rgbir/query/0012_c1_05",
    "msvr310": "MSVR310/query3/0003/ni/0003_s001_v0_001",
    "laps": "f30k/images/b",
}
REID, EVERY = sorted(LAYOUTS), sorted(CHOSEN)


def smooth(width: int, height: int) -> np.ndarray:
    """RGB pixels that differ in every place, along both axes and in every channel."""
    across, down = np.linspace(0, 200, width), np.linspace(0, 55, height)[:, None]
    pixels = np.stack([across + down, (200 - across) + down, across + 0 * down], axis=2)
    return pixels.astype(np.uint8)


def picture(layout: str) -> np.ndarray:
    width, height = SIZE
    return smooth(3 * width if layout == "rgbnt100" else width, height)


def save(path: Path, pixels: np.ndarray, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDTPS_CACHE", str(tmp_path / "cache"))


Make = Callable[[str], Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a small whole data set in a layout, among what is skipped; its file without a suffix."""

    def write(layout: str) -> Path:
        pixels = picture(layout)
        names: list[str] = []
        if layout == "rgbnt201":
            for split, pid in (("train_171", 7), ("test", 258)):
                for camera in (1, 2):
                    name = f"{pid:06d}_cam{camera}_0_00"
                    names += [f"RGBNT201/{split}/{m}/{name}" for m in ("RGB", "NI", "TI")]
        elif layout == "rgbnt100":
            for split, pid in (("bounding_box_train", 11), ("query", 12), ("bounding_box_test", 12)):
                names += [f"RGBNT100/rgbir/{split}/{pid:04d}_c{c}_05" for c in (1, 8)]
        elif layout == "msvr310":
            for split, pid in (("bounding_box_train", 2), ("query3", 3), ("bounding_box_test", 3)):
                for scene in (1, 2):
                    name = f"{pid:04d}/{{}}/{pid:04d}_s{scene:03d}_v0_001"
                    names += [f"MSVR310/{split}/{name.format(m)}" for m in ("vis", "ni", "th")]
        else:
            names = [f"f30k/images/{name}" for name in "abc"]
            root = tmp_path / "f30k"
            root.mkdir()
            (root / "id_mapping.json").write_text(json.dumps({n: f"{n}.png" for n in "abc"}))
            (root / "test_ids.txt").write_text("a\nb\nc\n")
            captions = [f"caption {i} of {name}" for name in "abc" for i in (1, 2)]
            (root / "test_caps.txt").write_text("\n".join(captions) + "\n")
        for number, name in enumerate(names):
            pixels[0, 0, 2] = number  # no two pictures are alike
            save(tmp_path / f"{name}.png", pixels)
        chosen = tmp_path / CHOSEN[layout]
        for name in (f"._{chosen.name}.png", ".DS_Store", "Thumbs.db", "notes.txt"):
            (chosen.parent / name).write_bytes(b"\0\x05\x16\x07")
        return chosen

    return write


def chosen(layout: str, root: Path, file: Path) -> np.ndarray:
    """The pixels of the chosen image as the readers give them, at its own size."""
    width, height = SIZE
    if layout == "laps":
        mapping = {name: f"{name}.png" for name in "ac"} | {"b": file.name}
        (root / "f30k/id_mapping.json").write_text(json.dumps(mapping))
        split = read_split("f30k", "test", root / "f30k", dense=False)
        return np.asarray(open_image(split.images[1]))
    dataset = read_dataset(layout, root)
    assert len(dataset.train) == 2 and len(dataset.query) == 2
    sample = next(s for s in dataset.query if file in s.images)
    images = decode(sample, ReidDataConfig(height=height, width=width), BICUBIC).transpose(0, 2, 3, 1)
    return np.concatenate(images, axis=1) if layout == "rgbnt100" else images[1]


def check(layout: str, root: Path, file: Path) -> None:
    """Decode all images, as a run does before it trains."""
    chosen(layout, root, file)
    if layout == "laps":
        check_images(images_of({"test": read_split("f30k", "test", root / "f30k", dense=False)}))
    else:
        check_images(read_dataset(layout, root).digests())


def sixteen_bit_png(path: Path, values: np.ndarray) -> None:
    """RGB uint16 [H, W, 3], which Pillow can read and not write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    height, width = values.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


LIKE = {"quality": 100, "subsampling": 0}
TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}


def stored(kind: str, file: Path, pixels: np.ndarray) -> tuple[Path, np.ndarray, int]:
    """Writes the chosen image in another way; its file, what must be read, and how nearly."""
    image = Image.fromarray(pixels)
    if kind.startswith("."):
        file = file.with_suffix(kind)
        options: dict[str, Any] = {".jpg": LIKE, ".jpeg": LIKE, ".webp": {"lossless": True}}
        save(file, pixels, **options.get(kind.lower(), {}))
        return file, pixels, 4 if "jp" in kind.lower() else 0
    if kind == "CMYK" or kind.isdigit():
        file = file.with_suffix(".jpg")
        if kind == "CMYK":
            image.convert("CMYK").save(file, **LIKE)
            return file, np.asarray(image.convert("CMYK").convert("RGB")), 6
        exif = Image.Exif()
        exif[0x0112] = int(kind)
        image.transpose(TURNED[int(kind)]).save(file, exif=exif, **LIKE)
        return file, pixels, 4
    file = file.with_suffix(".png")
    if kind == "16 bit colour":
        sixteen_bit_png(file, pixels.astype(np.uint16) * 257)
        return file, pixels, 0
    if kind == "16 bit grey":
        save(file, pixels[..., 0].astype(np.uint16) * 257)
        return file, pixels[..., :1].repeat(3, axis=2), 0
    image.convert(kind).save(file)
    return file, np.asarray(image.convert(kind).convert("RGB")), 0


@pytest.mark.parametrize("layout", EVERY)
@pytest.mark.parametrize(
    "kind",
    [
        *(".jpg", ".JPG", ".jpeg", ".JPEG", ".png", ".Png", ".bmp", ".BMP", ".webp", ".tif", ".TIFF"),
        *("16 bit grey", "16 bit colour", "L", "LA", "RGBA", "P", "CMYK"),
        *map(str, TURNED),  # by EXIF
    ],
)
def test_every_way_to_store_an_image_gives_its_pixels(
    tmp_path: Path, make: Make, layout: str, kind: str
) -> None:
    file = make(layout)
    file.with_suffix(".png").unlink()
    file, expected, tolerance = stored(kind, file, picture(layout))
    found = chosen(layout, tmp_path, file).astype(int)
    assert np.abs(found - expected).max() <= tolerance


def torn(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()[:-90]


@pytest.mark.parametrize("layout", EVERY)
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (torn(smooth(*SIZE)), "cannot be decoded"),
        (b"", "empty file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
    ],
    ids=["torn", "empty", "pointer"],
)
def test_files_that_are_no_images_are_refused_by_name(
    tmp_path: Path, make: Make, layout: str, content: bytes, told: str
) -> None:
    file = make(layout).with_suffix(".png")
    file.write_bytes(content)
    with pytest.raises(DataError, match=told) as error:
        check(layout, tmp_path, file)
    assert file.name in str(error.value)


def test_images_are_decoded_once_for_all_runs_even_where_the_cache_cannot_be_written(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("rgbnt201")
    digests = read_dataset("rgbnt201", tmp_path).digests()
    decoded: list[int] = []
    monkeypatch.setattr(images, "undecodable", lambda paths, bits: decoded.append(len(paths)) or [])
    for _ in range(2):
        check_images(digests)
    assert decoded == [12]
    digests[next(iter(digests))] = "changed"
    check_images(digests)
    (tmp_path / "file").touch()
    monkeypatch.setenv("SDTPS_CACHE", str(tmp_path / "file" / "cache"))
    check_images(digests)
    assert decoded == [12, 12, 12]


@pytest.mark.parametrize("layout", REID)
@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("x.gif", "y.GIF"), r"2 \.gif file\(s\), a format that is not read"),
        (("NAME.bmp",), "has the same name; remove one"),
        (("more/x.png",), r"more: 1 image\(s\) in a folder below"),
    ],
)
def test_files_that_would_be_left_out_are_named(
    tmp_path: Path, make: Make, layout: str, names: tuple[str, ...], told: str
) -> None:
    file = make(layout)
    for name in names:
        other = file.parent / name.replace("NAME", file.name)
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(file.with_suffix(".png").read_bytes())
    with pytest.raises(DataError, match=told):
        read_dataset(layout, tmp_path)


# -- names -------------------------------------------------------------------------------------------


def rename(root: Path, old: str, new: str) -> None:
    for path in list(root.rglob(f"*{old}*")):
        path.rename(path.with_name(path.name.replace(old, new)))


def known(dataset: ReidDataset, split: str) -> list[tuple[int, int, int, int]]:
    return [(s.pid, s.camid, s.sceneid, s.label) for s in getattr(dataset, split)]


def test_names_give_identity_camera_and_scene_in_sorted_order(tmp_path: Path, make: Make) -> None:
    """DeMo would take RGBNT100's from a folder `data_5_c3`; identity -1 is junk."""
    root = tmp_path / "data_5_c3"
    for layout in REID:
        make(layout)
    (tmp_path / "RGBNT100/rgbir/query/-1_c2_00.jpg").write_bytes(b"\xff\xd8")
    root.mkdir()
    (tmp_path / "RGBNT100").rename(root / "RGBNT100")
    rename(tmp_path / "RGBNT201/train_171", "000007_cam2", "000002_cam3")
    one = read_dataset("rgbnt201", tmp_path)
    assert known(one, "train") == [(2, 2, -1, 0), (7, 0, -1, 1)]
    assert known(one, "query") == [(258, 0, -1, -1), (258, 1, -1, -1)] and one.query == one.gallery
    assert [p.parent.name for p in one.train[0].images] == ["RGB", "NI", "TI"]
    assert (one.cameras, one.train_pids, one.view_rule) == (3, 2, "camera")
    assert known(read_dataset("rgbnt100", root), "query") == [(12, 0, -1, -1), (12, 7, -1, -1)]
    three = read_dataset("msvr310", tmp_path)
    assert known(three, "query") == [(3, 0, 1, -1), (3, 0, 2, -1)] and three.view_rule == "scene"


@pytest.mark.parametrize(
    ("layout", "old", "new", "found"),
    [
        ("rgbnt201", "cam1", "cam10", (258, 9)),
        ("rgbnt201", "cam2", "cam12", (258, 11)),
        ("rgbnt201", "000258", "0002581", (2581, 0)),
        ("msvr310", "_v0_", "_v7_", (3, 7)),
    ],
)
def test_numbers_are_read_whole(
    tmp_path: Path, make: Make, layout: str, old: str, new: str, found: tuple[int, int]
) -> None:
    make(layout)
    rename(tmp_path, old, new)
    assert found in {(s.pid, s.camid) for s in read_dataset(layout, tmp_path).query}


@pytest.mark.parametrize(
    ("layout", "old", "new"),
    [
        ("rgbnt201", "cam1", "camera1"),
        ("rgbnt201", "cam1", "cam0"),
        ("rgbnt100", "_c1_", "_c10_"),
        ("msvr310", "_v0_", "_v12_"),
        ("msvr310", "s001", "x001"),
        ("msvr310", "0003_s001", "0004_s001"),  # in the folder of another vehicle
    ],
)
def test_names_that_cannot_be_read_are_refused(
    tmp_path: Path, make: Make, layout: str, old: str, new: str
) -> None:
    file = make(layout).with_suffix(".png")
    rename(tmp_path, old, new)
    with pytest.raises(DataError, match="name is not") as error:
        read_dataset(layout, tmp_path)
    assert file.name.replace(old, new) in str(error.value)


def test_all_mistakes_are_found_in_one_pass(tmp_path: Path, make: Make) -> None:
    make("rgbnt201")
    root = tmp_path / "RGBNT201"
    (root / "train_171/NI/000007_cam1_0_00.png").unlink()
    (root / "test/RGB/000258_cam1_0_00.png").unlink()
    (root / "train_171/TI/000007_cam2_0_00.png").write_bytes(b"GIF89a")
    (root / "test/TI/000258_cam2_0_00.png").write_bytes(b"")
    for modality in ("RGB", "NI", "TI"):
        save(root / "train_171" / modality / "person_three.jpg", picture("rgbnt201"))
    with pytest.raises(DataError) as caught:
        read_dataset("rgbnt201", tmp_path)
    for told in (
        "NI/000007_cam1_0_00.png: is missing",
        "RGB/000258_cam1_0_00.png: is missing",
        "TI/000007_cam2_0_00.png: is not an image of a format that is read",
        "TI/000258_cam2_0_00.png: is an empty file",
        "person_three.jpg: name is not",
        "5 mistake(s)",
    ):
        assert told in str(caught.value)
    for number in range(30):
        save(root / f"train_171/RGB/x{number}.jpg", picture("rgbnt201"))
    with pytest.raises(DataError, match=r"\.\.\. and \d+ more"):
        read_dataset("rgbnt201", tmp_path)


@pytest.mark.parametrize(
    ("width", "height", "fits"),
    [
        *((384, 64, True), (768, 128, True), (36, 4, True), (36, 12, True)),
        *((256, 128, False), (100, 30, False), (128, 256, False), (768, 512, False)),
    ],
)
def test_rgbnt100_is_cut_by_thirds_at_any_size_or_refused_with_the_size_found(
    tmp_path: Path, make: Make, width: int, height: int, fits: bool
) -> None:
    file = make("rgbnt100").with_suffix(".png")
    wide = np.zeros((height, width, 3), np.uint8)
    wide[:, width // 3 : 2 * width // 3], wide[:, 2 * width // 3 :] = 100, 200
    save(file, wide)
    sample = read_dataset("rgbnt100", tmp_path).query[0]
    if fits:
        found = decode(sample, ReidDataConfig(height=height, width=width // 3), BICUBIC)
        assert [int(image.min()) for image in found] == [int(i.max()) for i in found] == [0, 100, 200]
    else:
        with pytest.raises(DataError, match=f"{file.name}: is {width}x{height} pixels"):
            decode(sample, ReidDataConfig(), BICUBIC)


# -- identities and cameras across the splits --------------------------------------------------------


def test_an_identity_that_one_camera_sees_is_skipped_and_counted(tmp_path: Path, make: Make) -> None:
    file = make("rgbnt201").with_suffix(".png")
    for modality in ("RGB", "NI", "TI"):
        save(file.parents[1] / modality / "000300_cam2_0_00.png", picture("rgbnt201"))
    record = read_dataset("rgbnt201", tmp_path).record(camera_embedding=False)
    assert record["counts"]["skipped_queries"] == 1
    assert "1 of 3 queries are skipped" in record["warnings"][0]
    for modality in ("RGB", "NI", "TI"):
        (file.parents[1] / modality / "000258_cam1_0_00.png").unlink()
    with pytest.raises(DataError, match="no query can be matched"):
        read_dataset("rgbnt201", tmp_path)


def test_an_identity_in_training_and_test_is_refused(tmp_path: Path, make: Make) -> None:
    make("rgbnt201")
    rename(tmp_path, "000007", "000258")
    with pytest.raises(DataError, match="identity 258 is in both training and test"):
        read_dataset("rgbnt201", tmp_path)


def test_test_cameras_that_training_never_saw_are_a_warning(tmp_path: Path, make: Make) -> None:
    make("rgbnt201")
    rename(tmp_path, "000258_cam2", "000258_cam4")
    dataset = read_dataset("rgbnt201", tmp_path)
    warning, *others = dataset.warnings(camera_embedding=True)
    assert "never seen in training" in warning and ": 3;" in warning
    assert dataset.warnings(camera_embedding=False) == others
    assert others == ["all queries are of one identity: their score says little of a model"]


# -- captions ----------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_no_part_of_a_caption(tmp_path: Path, make: Make) -> None:
    make("laps")
    root = tmp_path / "f30k"
    before = read_split("f30k", "test", root, dense=False)
    for name in ("id_mapping.json", "test_ids.txt", "test_caps.txt"):
        (root / name).write_bytes(b"\xef\xbb\xbf" + (root / name).read_bytes())
    assert read_split("f30k", "test", root, dense=False) == before


@pytest.mark.parametrize(("dataset", "folder"), [("f30k", "flickr30k-images"), ("coco", "coco-images")])
def test_lapss_own_tree_is_found(tmp_path: Path, make: Make, dataset: str, folder: str) -> None:
    make("laps")
    (tmp_path / "f30k/images").rename(tmp_path / folder)
    (tmp_path / "f30k").rename(tmp_path / dataset) if dataset != "f30k" else None
    split = read_split(dataset, "test", tmp_path / dataset, dense=False)
    assert split.images[0].parent == tmp_path / folder
    (tmp_path / folder).rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=f"{folder} exists.*Set data.image_root"):
        read_split(dataset, "test", tmp_path / dataset, dense=False)
