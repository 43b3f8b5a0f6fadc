"""RGBNT201, RGBNT100 and MSVR310 as their authors lay them on disk, parsed by DeMo's rules.

One deliberate difference: listings and labels are sorted. DeMo takes both in the file system's and the
hash table's order, so its identity sampling depends on the machine.

Every mistake found in one pass over the names is reported at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sdtps.errors import DataError, did_you_mean

MISTAKES_SHOWN = 20
JPEG_START = b"\xff\xd8"
Box = tuple[int, int, int, int]  # left, upper, right, lower

# RGBNT201 calls near and thermal infrared NI and TI, MSVR310 ni and th.
RGBNT201_FOLDERS = ("RGB", "NI", "TI")
MSVR310_FOLDERS = ("vis", "ni", "th")
# RGBNT100 keeps the three side by side in one 768x128 image.
RGBNT100_CROPS: tuple[Box, Box, Box] = ((0, 0, 256, 128), (256, 0, 512, 128), (512, 0, 768, 128))
RGBNT100_NAME = re.compile(r"([-\d]+)_c([-\d]+)")


@dataclass(frozen=True)
class Sample:
    """One triple of images of one identity."""

    images: tuple[Path, Path, Path]  # rgb, nir, tir
    crops: tuple[Box, Box, Box] | None  # where all three lie in one file
    pid: int  # as on disk
    camid: int  # from 0
    sceneid: int  # MSVR310; -1 elsewhere
    label: int = -1  # index of the identity in training, -1 outside


@dataclass(frozen=True)
class ReidDataset:
    """A parsed data set. `view_rule`: what a query must not share with its match, camera or scene."""

    name: str
    root: Path
    train: tuple[Sample, ...]
    query: tuple[Sample, ...]
    gallery: tuple[Sample, ...]
    view_rule: str

    @property
    def train_pids(self) -> int:
        return len({s.pid for s in self.train})

    @property
    def cameras(self) -> int:
        """Size of the camera table: DeMo counts the training cameras; unseen test cameras fit too."""
        return 1 + max(s.camid for s in (*self.train, *self.query, *self.gallery))

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of the names and sizes of all files, in order of split."""
        digest = hashlib.sha256()
        for split in (self.train, self.query, self.gallery):
            for sample in split:
                for path in dict.fromkeys(sample.images):
                    name = path.relative_to(self.root).as_posix()
                    digest.update(f"{name}:{path.stat().st_size}\n".encode())
            digest.update(b"\n")
        return digest.hexdigest()[:16]


def read_dataset(name: str, root: Path) -> ReidDataset:
    """The data set `name` below `root` (the folder that contains RGBNT201/, RGBNT100/ or MSVR310/).

    Raises:
        DataError: a missing folder or modality file, a file that is no JPEG, a name that cannot be
            parsed, an empty split, a query identity that can never be matched. All of them.
    """
    readers = {"rgbnt201": _rgbnt201, "rgbnt100": _rgbnt100, "msvr310": _msvr310}
    if name not in readers:
        raise DataError(f"unknown data set '{name}'. {did_you_mean(name, readers)}")
    mistakes = _Mistakes()
    dataset = readers[name](Path(root), mistakes)
    _check_splits(dataset, mistakes)
    mistakes.raise_if_any(dataset)
    labels = {pid: i for i, pid in enumerate(sorted({s.pid for s in dataset.train}))}
    return replace(dataset, train=tuple(replace(s, label=labels[s.pid]) for s in dataset.train))


class _Mistakes:
    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, path: Path, text: str) -> None:
        self.found.append(f"{path}: {text}")

    def raise_if_any(self, dataset: ReidDataset) -> None:
        if not self.found:
            return
        shown = self.found[:MISTAKES_SHOWN]
        if len(self.found) > len(shown):
            shown.append(f"... and {len(self.found) - len(shown)} more")
        head = f"{dataset.name} at {dataset.root}: {len(self.found)} mistake(s)"
        raise DataError("\n  ".join([head, *shown]))


# -- RGBNT201: train_171 and test, with RGB, NI and TI folders of the same names -------------------


def _rgbnt201(root: Path, mistakes: _Mistakes) -> ReidDataset:
    base = root / "RGBNT201"
    train = _rgbnt201_split(base / "train_171", mistakes)
    test = _rgbnt201_split(base / "test", mistakes)  # query and gallery are the same folder
    return ReidDataset("rgbnt201", base, train, test, test, view_rule="camera")


def _rgbnt201_split(folder: Path, mistakes: _Mistakes) -> tuple[Sample, ...]:
    """`000258_cam1_0_00.jpg`: identity 258 (six digits), camera 1."""
    listings = {name: _listing(folder / name, mistakes) for name in RGBNT201_FOLDERS}
    names = sorted(set().union(*(set(found) for found in listings.values())))
    samples = []
    for name in names:
        paths = [folder / modality / name for modality in RGBNT201_FOLDERS]
        if not _complete(paths, mistakes):
            continue
        parts = name.split("_")
        pid = parts[0][0:6]
        camera = parts[1][3:4] if len(parts) > 1 else ""
        if not (pid.isdigit() and camera.isdigit()):
            mistakes.add(paths[0], "name is not PID_camC_..., such as 000258_cam1_0_00.jpg")
            continue
        samples.append(_sample(paths, int(pid), int(camera) - 1))
    return tuple(samples)


# -- RGBNT100: one wide file for three modalities --------------------------------------------------


def _rgbnt100(root: Path, mistakes: _Mistakes) -> ReidDataset:
    base = root / "RGBNT100" / "rgbir"
    train, query, gallery = (
        _rgbnt100_split(base / name, mistakes)
        for name in ("bounding_box_train", "query", "bounding_box_test")
    )
    return ReidDataset("rgbnt100", base, train, query, gallery, view_rule="camera")


def _rgbnt100_split(folder: Path, mistakes: _Mistakes) -> tuple[Sample, ...]:
    """`0001_c1_...jpg`: identity 1 to 600, camera 1 to 8; identity -1 is junk and left out.

    DeMo searches the pattern in the whole path, so a folder such as `data_1_c2` would win; we search
    the file name.
    """
    samples = []
    for name in _listing(folder, mistakes):
        path = folder / name
        match = RGBNT100_NAME.search(name)
        try:
            pid, camera = (int(part) for part in match.groups()) if match else (0, 0)
        except ValueError:  # a lone or doubled minus sign
            pid, camera = 0, 0
        if pid == -1:
            continue
        if not (1 <= pid <= 600 and 1 <= camera <= 8):
            mistakes.add(path, "name is not PID_cC_... with PID 1 to 600 and C 1 to 8")
            continue
        if _complete([path], mistakes):
            samples.append(replace(_sample([path] * 3, pid, camera - 1), crops=RGBNT100_CROPS))
    return tuple(samples)


# -- MSVR310: a folder for each identity, vis, ni and th inside ------------------------------------


def _msvr310(root: Path, mistakes: _Mistakes) -> ReidDataset:
    base = root / "MSVR310"
    train, query, gallery = (
        _msvr310_split(base / name, mistakes)
        for name in ("bounding_box_train", "query3", "bounding_box_test")
    )
    return ReidDataset("msvr310", base, train, query, gallery, view_rule="scene")


def _msvr310_split(folder: Path, mistakes: _Mistakes) -> tuple[Sample, ...]:
    """`<vid>/vis/0001_s001_v1_...jpg`: identity 1, scene 1, camera 1 (0 to 7, not shifted)."""
    samples = []
    for vehicle in _subfolders(folder, mistakes):
        if not vehicle.name.isdigit():
            mistakes.add(vehicle, "folder name is not a number, such as 0001")
            continue
        listings = {name: _listing(vehicle / name, mistakes) for name in MSVR310_FOLDERS}
        for name in sorted(set().union(*(set(found) for found in listings.values()))):
            paths = [vehicle / modality / name for modality in MSVR310_FOLDERS]
            if not _complete(paths, mistakes):
                continue
            pid, scene, camera = name[0:4], name[6:9], name[11:12]
            if not (pid.isdigit() and scene.isdigit() and camera.isdigit() and int(camera) <= 7):
                mistakes.add(paths[0], "name is not PID_sSSS_vC_..., such as 0001_s001_v1_001.jpg")
                continue
            sample = _sample(paths, int(pid), int(camera))
            samples.append(replace(sample, sceneid=int(scene)))
    return tuple(samples)


# -- shared ----------------------------------------------------------------------------------------


def _sample(paths: Sequence[Path], pid: int, camid: int) -> Sample:
    return Sample((paths[0], paths[1], paths[2]), None, pid, camid, sceneid=-1)


def _listing(folder: Path, mistakes: _Mistakes) -> list[str]:
    """Names of the .jpg files in `folder`, sorted."""
    if not folder.is_dir():
        mistakes.add(folder, "folder is missing")
        return []
    return sorted(p.name for p in folder.iterdir() if p.suffix.lower() == ".jpg")


def _subfolders(folder: Path, mistakes: _Mistakes) -> list[Path]:
    if not folder.is_dir():
        mistakes.add(folder, "folder is missing")
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir())


def _complete(paths: Iterable[Path], mistakes: _Mistakes) -> bool:
    """Whether all files exist and begin as a JPEG does. A torn end shows when it is decoded."""
    good = True
    for path in paths:
        try:
            with path.open("rb") as stream:
                start = stream.read(2)
        except FileNotFoundError:
            mistakes.add(path, "is missing: each image must exist in all three modalities")
            good = False
            continue
        except OSError as error:
            mistakes.add(path, f"cannot be read: {error.strerror}")
            good = False
            continue
        if start != JPEG_START:
            mistakes.add(path, "is not a JPEG file" if start else "is an empty file")
            good = False
    return good


def _check_splits(dataset: ReidDataset, mistakes: _Mistakes) -> None:
    for name in ("train", "query", "gallery"):
        if not getattr(dataset, name):
            mistakes.add(dataset.root, f"split {name} is empty: no usable image")
    views: dict[int, set[int]] = {}
    for sample in (*dataset.query, *dataset.gallery):
        views.setdefault(sample.pid, set()).add(_view(dataset, sample))
    for pid in sorted({s.pid for s in dataset.query}):
        if len(views[pid]) == 1:
            mistakes.add(
                dataset.root,
                f"test identity {pid} is seen by one {dataset.view_rule} only, so none of its "
                "queries can be matched",
            )


def _view(dataset: ReidDataset, sample: Sample) -> int:
    return sample.sceneid if dataset.view_rule == "scene" else sample.camid
