"""Each data layout with each way in which real files differ: right pixels, or refused by name."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from sdtps.config.reid import ReidDataConfig
from sdtps.data import images
from sdtps.data.captions import read_split
from sdtps.data.images import BICUBIC, check_images, open_image
from sdtps.data.reid_batches import decode
from sdtps.data.reid_folders import READERS, read_dataset
from sdtps.system.errors import DataError

SIZE = (24, 12)  # width, height of one image
# Where each layout keeps one chosen image, and what stands in its name before the suffix.
CHOSEN = {
    "rgbnt201": "RGBNT201/test/NI/000258_cam1_0_00",
    "rgbnt100": "RGBNT100/rgbir/query/0012_c1_05",
    "msvr310": "MSVR310/query3/0003/ni/0003_s001_v0_001",
    "laps": "f30k/images/b",
}
LAYOUTS = sorted(CHOSEN)


def test_every_data_set_of_the_configuration_has_a_reader_and_is_tried_here() -> None:
    named = set(get_args(ReidDataConfig.model_fields["dataset"].annotation))
    assert named == {*READERS, "own"}
    assert {*CHOSEN} == {*READERS, "laps"}


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


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a small whole data set in a layout; returns the chosen file without its suffix."""

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
        return tmp_path / CHOSEN[layout]

    return write


def sized(height: int, width: int) -> ReidDataConfig:
    return ReidDataConfig(height=height, width=width)


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
    images = decode(sample, sized(height, width), BICUBIC)
    return np.concatenate(images, axis=1) if layout == "rgbnt100" else images[1]


def check(layout: str, root: Path, file: Path) -> None:
    """Decode all images, as a run does before it trains."""
    chosen(layout, root, file)
    if layout == "laps":
        split = read_split("f30k", "test", root / "f30k", dense=False)
        digests = dict(zip(split.images, split.digests, strict=True))
    else:
        digests = read_dataset(layout, root).digests()
    check_images(digests, root / "cache")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "suffix",
    [".jpg", ".JPG", ".jpeg", ".JPEG", ".png", ".Png", ".bmp", ".BMP", ".webp", ".tif", ".TIFF"],
)
def test_every_format_in_any_case_is_read(
    tmp_path: Path, make: Callable[[str], Path], layout: str, suffix: str
) -> None:
    file = make(layout)
    file.with_suffix(".png").unlink()
    file = file.with_suffix(suffix)
    options = {
        ".jpg": {"quality": 98, "subsampling": 0},
        ".jpeg": {"quality": 98, "subsampling": 0},
        ".webp": {"lossless": True},
    }
    save(file, picture(layout), **options.get(suffix.lower(), {}))
    found = chosen(layout, tmp_path, file).astype(int)
    tolerance = 4 if "jp" in suffix.lower() else 0
    assert np.abs(found - picture(layout)).max() <= tolerance


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sixteen_bit_greyscale_keeps_its_levels(
    tmp_path: Path, make: Callable[[str], Path], layout: str
) -> None:
    file = make(layout).with_suffix(".png")
    grey = picture(layout)[..., 0]
    save(file, grey.astype(np.uint16) * 257)
    found = chosen(layout, tmp_path, file)
    assert (found == grey[..., None]).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK"])
def test_other_modes_become_rgb(
    tmp_path: Path, make: Callable[[str], Path], layout: str, mode: str
) -> None:
    file = make(layout).with_suffix(".png")
    image = Image.fromarray(picture(layout)).convert(mode)
    if mode == "CMYK":
        file.unlink()
        file = file.with_suffix(".jpg")
        image.save(file, quality=100, subsampling=0)
    else:
        image.save(file)
    expected = np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(chosen(layout, tmp_path, file) - expected).max() <= (6 if mode == "CMYK" else 0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("orientation", [2, 3, 6, 8])
def test_exif_rotation_is_applied(
    tmp_path: Path, make: Callable[[str], Path], layout: str, orientation: int
) -> None:
    file = make(layout)
    file.with_suffix(".png").unlink()
    file = file.with_suffix(".jpg")
    turned = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(picture(layout)).transpose(turned)
    stored.save(file, quality=100, subsampling=0, exif=exif)
    assert np.abs(chosen(layout, tmp_path, file).astype(int) - picture(layout)).max() <= 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hidden_companions_are_skipped(
    tmp_path: Path, make: Callable[[str], Path], layout: str
) -> None:
    file = make(layout).with_suffix(".png")
    for name in (f"._{file.name}", ".DS_Store", "Thumbs.db", "notes.txt"):
        (file.parent / name).write_bytes(b"\0\x05\x16\x07")
    check(layout, tmp_path, file)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_truncated_test_image_is_told_before_training(
    tmp_path: Path, make: Callable[[str], Path], layout: str
) -> None:
    file = make(layout)
    file.with_suffix(".png").unlink()
    file = file.with_suffix(".jpg")
    save(file, picture(layout), quality=95)
    file.write_bytes(file.read_bytes()[:-90])
    with pytest.raises(DataError, match=f"{file.name}: cannot be decoded"):
        check(layout, tmp_path, file)


def test_images_are_decoded_once_for_all_runs_even_where_the_cache_cannot_be_written(
    tmp_path: Path, make: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    make("rgbnt201")
    digests = read_dataset("rgbnt201", tmp_path).digests()
    decoded: list[int] = []
    monkeypatch.setattr(images, "undecodable", lambda paths, bits: decoded.append(len(paths)) or [])
    for _ in range(2):
        check_images(digests, tmp_path / "cache")
    assert decoded == [12]
    digests[next(iter(digests))] = "changed"
    check_images(digests, tmp_path / "cache")
    (tmp_path / "file").touch()
    check_images(digests, tmp_path / "file" / "cache")
    assert decoded == [12, 12, 12]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty file|cannot be decoded"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS|dec"),
    ],
)
def test_files_that_are_no_images_are_refused_by_name(
    tmp_path: Path, make: Callable[[str], Path], layout: str, content: bytes, told: str
) -> None:
    file = make(layout).with_suffix(".png")
    file.write_bytes(content)
    with pytest.raises(DataError, match=told) as error:
        check(layout, tmp_path, file)
    assert file.name in str(error.value)


@pytest.mark.parametrize("layout", ["rgbnt201", "rgbnt100", "msvr310"])
def test_formats_that_are_not_read_are_counted_and_named(
    tmp_path: Path, make: Callable[[str], Path], layout: str
) -> None:
    file = make(layout)
    for name in ("x.gif", "y.GIF"):
        (file.parent / name).write_bytes(b"GIF89a")
    with pytest.raises(DataError, match=r"2 \.gif file\(s\), a format that is not read"):
        read_dataset(layout, tmp_path)


@pytest.mark.parametrize("layout", ["rgbnt201", "rgbnt100", "msvr310"])
def test_two_files_of_one_name_are_not_chosen_between(
    tmp_path: Path, make: Callable[[str], Path], layout: str
) -> None:
    file = make(layout)
    save(file.with_suffix(".bmp"), picture(layout))
    with pytest.raises(DataError, match="has the same name; remove one"):
        read_dataset(layout, tmp_path)


def test_modalities_may_have_formats_of_their_own(tmp_path: Path, make: Callable[[str], Path]) -> None:
    file = make("rgbnt201")
    thermal = Path(str(file).replace("NI", "TI"))
    thermal.with_suffix(".png").unlink()
    save(thermal.with_suffix(".webp"), picture("rgbnt201"))
    sample = read_dataset("rgbnt201", tmp_path).query[0]
    assert [path.suffix for path in sample.images] == [".png", ".png", ".webp"]


@pytest.mark.parametrize(
    ("layout", "old", "new", "camera"),
    [
        ("rgbnt201", "cam1", "cam10", 9),
        ("rgbnt201", "cam2", "cam12", 11),
        ("msvr310", "_v0_", "_v7_", 7),
    ],
)
def test_camera_numbers_are_read_whole(
    tmp_path: Path, make: Callable[[str], Path], layout: str, old: str, new: str, camera: int
) -> None:
    make(layout)
    for path in list(tmp_path.rglob(f"*{old}*")):
        path.rename(path.with_name(path.name.replace(old, new)))
    assert camera in {s.camid for s in read_dataset(layout, tmp_path).query}


def test_identity_numbers_are_read_whole(tmp_path: Path, make: Callable[[str], Path]) -> None:
    make("rgbnt201")
    for path in list(tmp_path.rglob("000258*")):
        path.rename(path.with_name(path.name.replace("000258", "0002581")))
    assert {s.pid for s in read_dataset("rgbnt201", tmp_path).query} == {2581}


@pytest.mark.parametrize(
    ("layout", "old", "new"),
    [
        ("rgbnt201", "cam1", "camera1"),
        ("rgbnt201", "cam1", "cam0"),
        ("rgbnt100", "_c1_", "_c10_"),
        ("msvr310", "_v0_", "_v12_"),
        ("msvr310", "s001", "x001"),
    ],
)
def test_names_that_cannot_be_read_are_refused(
    tmp_path: Path, make: Callable[[str], Path], layout: str, old: str, new: str
) -> None:
    file = make(layout).with_suffix(".png")
    for path in list(tmp_path.rglob(f"*{old}*")):
        path.rename(path.with_name(path.name.replace(old, new)))
    with pytest.raises(DataError, match="name is not") as error:
        read_dataset(layout, tmp_path)
    assert file.name.replace(old, new) in str(error.value)


@pytest.mark.parametrize(("width", "height"), [(384, 64), (768, 128), (36, 4), (36, 12)])
def test_rgbnt100_is_cut_by_thirds_at_any_size(
    tmp_path: Path, make: Callable[[str], Path], width: int, height: int
) -> None:
    file = make("rgbnt100").with_suffix(".png")
    wide = np.zeros((height, width, 3), np.uint8)
    wide[:, width // 3 : 2 * width // 3], wide[:, 2 * width // 3 :] = 100, 200
    save(file, wide)
    images = decode(read_dataset("rgbnt100", tmp_path).query[0], sized(height, width // 3), BICUBIC)
    assert [int(image.min()) for image in images] == [int(i.max()) for i in images] == [0, 100, 200]


@pytest.mark.parametrize(("width", "height"), [(256, 128), (100, 30), (128, 256), (768, 512)])
def test_rgbnt100_of_another_shape_is_refused_with_the_size_found(
    tmp_path: Path, make: Callable[[str], Path], width: int, height: int
) -> None:
    file = make("rgbnt100").with_suffix(".png")
    save(file, smooth(width, height))
    with pytest.raises(DataError, match=f"{file.name}: is {width}x{height} pixels"):
        read_dataset("rgbnt100", tmp_path)


# -- identities and cameras across the splits --------------------------------------------------------


def test_an_identity_that_one_camera_sees_is_skipped_and_counted(
    tmp_path: Path, make: Callable[[str], Path]
) -> None:
    file = make("rgbnt201").with_suffix(".png")
    for modality in ("RGB", "NI", "TI"):
        save(file.parents[1] / modality / "000300_cam2_0_00.png", picture("rgbnt201"))
    dataset = read_dataset("rgbnt201", tmp_path)
    assert dataset.skipped_queries == 1 and dataset.counts()["skipped_queries"] == 1
    assert "1 of 3 queries are skipped" in dataset.warnings(camera_embedding=False)[0]
    for modality in ("RGB", "NI", "TI"):
        (file.parents[1] / modality / "000258_cam1_0_00.png").unlink()
    with pytest.raises(DataError, match="no query can be matched"):
        read_dataset("rgbnt201", tmp_path)


def test_an_identity_in_training_and_test_is_refused(
    tmp_path: Path, make: Callable[[str], Path]
) -> None:
    make("rgbnt201")
    for path in list(tmp_path.rglob("000007*")):
        path.rename(path.with_name(path.name.replace("000007", "000258")))
    with pytest.raises(DataError, match="identity 258 is in both training and test"):
        read_dataset("rgbnt201", tmp_path)


def test_a_vehicle_in_another_vehicles_folder_is_refused(
    tmp_path: Path, make: Callable[[str], Path]
) -> None:
    file = make("msvr310").with_suffix(".png")
    for modality in ("vis", "ni", "th"):
        path = file.parents[1] / modality / file.name
        path.rename(path.with_name("0004_s001_v0_001.png"))
    with pytest.raises(DataError, match="name says identity 4, its folder 3"):
        read_dataset("msvr310", tmp_path)


def test_test_cameras_that_training_never_saw_are_a_warning(
    tmp_path: Path, make: Callable[[str], Path]
) -> None:
    make("rgbnt201")
    for path in list(tmp_path.rglob("000258_cam2*")):
        path.rename(path.with_name(path.name.replace("cam2", "cam4")))
    dataset = read_dataset("rgbnt201", tmp_path)
    warning, *_ = dataset.warnings(camera_embedding=True)
    assert "never seen in training" in warning and ": 3;" in warning
    assert dataset.warnings(camera_embedding=False) == [
        "all queries are of one identity: their score says little of a model"
    ]


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sixteen_bit_colour_keeps_its_levels(
    tmp_path: Path, make: Callable[[str], Path], layout: str
) -> None:
    file = make(layout).with_suffix(".png")
    sixteen_bit_png(file, picture(layout).astype(np.uint16) * 257)
    assert (chosen(layout, tmp_path, file) == picture(layout)).all()


# -- captions ----------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_no_part_of_a_caption(tmp_path: Path, make: Callable[[str], Path]) -> None:
    make("laps")
    root = tmp_path / "f30k"
    before = read_split("f30k", "test", root, dense=False)
    for name in ("id_mapping.json", "test_ids.txt", "test_caps.txt"):
        (root / name).write_bytes(b"\xef\xbb\xbf" + (root / name).read_bytes())
    assert read_split("f30k", "test", root, dense=False) == before


@pytest.mark.parametrize(("dataset", "folder"), [("f30k", "flickr30k-images"), ("coco", "coco-images")])
def test_lapss_own_tree_is_found(
    tmp_path: Path, make: Callable[[str], Path], dataset: str, folder: str
) -> None:
    make("laps")
    (tmp_path / "f30k/images").rename(tmp_path / folder)
    (tmp_path / "f30k").rename(tmp_path / dataset) if dataset != "f30k" else None
    split = read_split(dataset, "test", tmp_path / dataset, dense=False)
    assert split.images[0].parent == tmp_path / folder
    (tmp_path / folder).rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=f"{folder} exists.*Set data.image_root"):
        read_split(dataset, "test", tmp_path / dataset, dense=False)
