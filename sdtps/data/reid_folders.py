"""RGBNT201, RGBNT100 and MSVR310 as their authors lay them on disk, and one's own data as a CSV file.

Names are parsed by DeMo's rules, with two deliberate differences: listings and labels are sorted (DeMo
takes both in the file system's and the hash table's order, so its identity sampling depends on the
machine), and numbers are read whole (DeMo reads camera 10 as camera 1).

Every mistake found in one pass over the names is reported at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from sdtps.config.reid import Condition
from sdtps.data import contents
from sdtps.data.images import list_images, picture_mistake, raise_mistakes
from sdtps.system.errors import DataError, did_you_mean

# RGBNT201 calls near and thermal infrared NI and TI, MSVR310 ni and th.
RGBNT201_FOLDERS = ("RGB", "NI", "TI")
MSVR310_FOLDERS = ("vis", "ni", "th")
ORIENTATION = 0x0112  # EXIF tag
RGBNT201_NAME = re.compile(r"(\d+)_cam(\d+)(?:_.*)?")
RGBNT100_NAME = re.compile(r"(-?\d+)_c(\d+)(?:_.*)?")
MSVR310_NAME = re.compile(r"(\d+)_s(\d+)_v(\d+)(?:_.*)?")


@dataclass(frozen=True)
class Sample:
    """One triple of images of one identity."""

    images: tuple[Path, Path, Path]  # rgb, nir, tir
    side_by_side: bool  # all three lie in one file (RGBNT100)
    pid: int  # as on disk
    camid: int  # from 0
    sceneid: int  # MSVR310; -1 elsewhere
    label: int = -1  # index of the identity in training, -1 outside
    digests: tuple[str, ...] = ()  # of the images' bytes


@dataclass(frozen=True)
class ReidDataset:
    """A parsed data set. `view_rule`: what a query must not share with its match, camera or scene."""

    name: str
    root: Path
    train: tuple[Sample, ...]
    query: tuple[Sample, ...]
    gallery: tuple[Sample, ...]
    view_rule: str
    absent: str = ""  # modalities that the data set lacks, of r, n, t; zeroed in every batch

    @property
    def train_pids(self) -> int:
        return len({s.pid for s in self.train})

    @property
    def cameras(self) -> int:
        """Size of the camera table: DeMo counts the training cameras; unseen test cameras fit too."""
        return 1 + max(s.camid for s in (*self.train, *self.query, *self.gallery))

    @property
    def unseen_cameras(self) -> list[int]:
        """Test cameras, from 0, that no training image was taken by."""
        tested = {s.camid for s in (*self.query, *self.gallery)}
        return sorted(tested - {s.camid for s in self.train})

    @property
    def skipped_queries(self) -> int:
        """Queries whose identity no other view in the gallery shows; ranking leaves them out."""
        views: dict[int, set[int]] = {}
        for sample in self.gallery:
            views.setdefault(sample.pid, set()).add(self.view(sample))
        return sum(not views.get(s.pid, set()) - {self.view(s)} for s in self.query)

    def view(self, sample: Sample) -> int:
        return sample.sceneid if self.view_rule == "scene" else sample.camid

    def files(self) -> list[Path]:
        """Every image file once."""
        splits = (*self.train, *self.query, *self.gallery)
        return list(dict.fromkeys(path for sample in splits for path in sample.images))

    def digests(self) -> dict[Path, str]:
        """The digest of every image file."""
        splits = (*self.train, *self.query, *self.gallery)
        return {p: d for s in splits for p, d in zip(s.images, s.digests, strict=True)}

    def counts(self) -> dict[str, Any]:
        """How many samples, image files, identities and cameras each split holds; skipped queries."""
        counts: dict[str, Any] = {}
        for name in ("train", "query", "gallery"):
            split: tuple[Sample, ...] = getattr(self, name)
            counts[name] = {
                "samples": len(split),
                "images": len({path for sample in split for path in sample.images}),
                "identities": len({s.pid for s in split}),
                "cameras": len({s.camid for s in split}),
            }
        return {**counts, "skipped_queries": self.skipped_queries}

    def warnings(self, *, camera_embedding: bool) -> list[str]:
        """What a reader of the results should know."""
        found = []
        if camera_embedding and self.train and self.unseen_cameras:
            numbers = ", ".join(map(str, self.unseen_cameras))
            found.append(
                f"test cameras never seen in training (numbered from 0): {numbers}; their rows of the "
                "camera embedding stay as they were initialised (backbone.camera_embedding)"
            )
        if self.absent:
            names = [name for name in ("rgb", "nir", "tir") if name[0] in self.absent]
            found.append(
                f"the data hold no {' and no '.join(names)} images; these modalities are zero in "
                "training and test, as DeMo's missing ones are"
            )
        if self.skipped_queries:
            found.append(
                f"{self.skipped_queries} of {len(self.query)} queries are skipped: no other "
                f"{self.view_rule} in the gallery shows their identity"
            )
        if len({s.pid for s in self.query}) == 1:
            found.append("all queries are of one identity: their score says little of a model")
        for kind, pairs in self.repeated().items():
            found.append(f"{kind}, {len(pairs)} times: {pairs[0]} for one")
        return found

    def repeated(self) -> dict[str, list[str]]:
        """Pictures that stand twice where they must not, by what is wrong with that."""
        seen: dict[str, tuple[Path, str, Sample]] = {}
        found: dict[str, list[str]] = {}
        tested = dict.fromkeys((*self.query, *self.gallery))
        for part, samples in (("training", self.train), ("test", tested)):
            for sample in samples:
                for path, here in dict(zip(sample.images, sample.digests, strict=True)).items():
                    first, where, other = seen.setdefault(here, (path, part, sample))
                    if where != part:
                        kind = "the same picture is in training and test"
                    elif other.pid != sample.pid:
                        kind = f"the same picture has two identities in {part}"
                    elif part == "test" and self.view(other) != self.view(sample):
                        kind = f"the same picture has two {self.view_rule}s, so a query finds itself"
                    else:
                        continue
                    names = (Path(os.path.relpath(p, self.root)).as_posix() for p in (path, first))
                    pair = f"{next(names)} (identity {sample.pid}) and {next(names)} ({other.pid})"
                    found.setdefault(kind, []).append(pair)
        return found

    def digest(self) -> str:
        """Of what all images hold, in order of split, with what is known of each; no names."""
        rows: list[object] = [self.view_rule, self.absent]
        for name in ("train", "query", "gallery"):
            rows.append(name)
            rows += [(*s.digests, s.pid, s.camid, s.sceneid) for s in getattr(self, name)]
        return contents.digest(*rows)


def read_dataset(name: str, root: Path) -> ReidDataset:
    """The data set `name` at `root`: the folder that holds RGBNT201/, RGBNT100/ or MSVR310/, or itself.

    Raises:
        DataError: a missing folder or modality file, a file that is no image, a name that cannot be
            parsed, an empty split, an identity in both training and test, or no query that can be
            matched. All of them.
    """
    if name not in READERS:
        raise DataError(f"unknown data set '{name}'. {did_you_mean(name, READERS)}")
    mistakes = Mistakes()
    check = _wide_mistake if name == "rgbnt100" else picture_mistake
    return checked(READERS[name](Path(root), mistakes), mistakes, check=check)


def checked(
    dataset: ReidDataset,
    mistakes: Mistakes | None = None,
    *,
    check: contents.Check = picture_mistake,
    trains: bool = True,
) -> ReidDataset:
    """The data set with the digests of its images and its training labels.

    In data of one's own, a picture that stands where it must not is a mistake; of published data, whose
    users cannot change it, it is told (`ReidDataset.warnings`).

    Args:
        check: what is wrong with an image file, asked once of each.

    Raises:
        DataError: `mistakes` so far, files that are no images, an empty split, an identity in both
            training and test, or no query that can be matched. All of them.
    """
    mistakes = mistakes or Mistakes()
    digests, wrong = contents.look(dataset.root, dataset.files(), check)
    for path, text in wrong.items():
        more = ": each image must exist in all three modalities" * (text == "is missing")
        mistakes.add(path, text + more)
    labels = {pid: i for i, pid in enumerate(sorted({s.pid for s in dataset.train}))}

    def known(split: tuple[Sample, ...], labels: Mapping[int, int]) -> tuple[Sample, ...]:
        return tuple(
            replace(s, label=labels.get(s.pid, -1), digests=tuple(digests.get(p, "") for p in s.images))
            for s in split
        )

    dataset = replace(
        dataset,
        train=known(dataset.train, labels),
        query=known(dataset.query, {}),
        gallery=known(dataset.gallery, {}),
    )
    _check_splits(dataset, mistakes, trains)
    if dataset.name == "own" and not wrong:
        for kind, pairs in dataset.repeated().items():
            mistakes.found += [f"{kind}: {pair}" for pair in pairs]
    raise_mistakes(f"{dataset.name} at {dataset.root}", mistakes.found)
    return dataset


def too_few(identities: int, wanted: int) -> str:
    """The sentence for a training split that cannot fill a batch."""
    return (
        f"a batch takes data.batch_size / data.instances = {wanted} identities, the training split has "
        f"{identities}; lower data.batch_size or raise data.instances"
    )


def impossible(conditions: Iterable[str], absent: str) -> list[str]:
    """A sentence for each condition (`eval.also`) that would show only modalities the data lack."""
    known = [Condition.parse(name) for name in conditions if name]
    names = {name[0]: name for name in ("rgb", "nir", "tir")}
    return [
        f"{c.name}: the data hold no {' and no '.join(names[m] for m in side)} images, so its features "
        "would all be equal"
        for c in known
        for side in dict.fromkeys((c.query, c.gallery))
        if set(side) <= set(absent)
    ]


class Mistakes:
    """What is wrong, each with its file, and with the line that names the file where one does."""

    def __init__(self, found: Sequence[str] = (), lines: Mapping[Path, str] | None = None) -> None:
        self.found = list(found)
        self.lines = lines or {}

    def add(self, path: Path, text: str) -> None:
        named = f"{self.lines[path]}: " if path in self.lines else ""
        self.found.append(f"{named}{path}: {text}")


# -- RGBNT201: train_171 and test, with RGB, NI and TI folders of the same names -------------------


def _rgbnt201(root: Path, mistakes: Mistakes) -> ReidDataset:
    base = _base(root, "RGBNT201", "train_171")
    train = _rgbnt201_split(base / "train_171", mistakes)
    test = _rgbnt201_split(base / "test", mistakes)  # query and gallery are the same folder
    return ReidDataset("rgbnt201", base, train, test, test, view_rule="camera")


def _rgbnt201_split(folder: Path, mistakes: Mistakes) -> tuple[Sample, ...]:
    """`000258_cam1_0_00.jpg`: identity 258, camera 1."""
    samples = []
    for name, paths in _triples(folder, RGBNT201_FOLDERS, mistakes):
        match = RGBNT201_NAME.fullmatch(name)
        if match is None or int(match[2]) == 0:
            mistakes.add(paths[0], "name is not PID_camC_..., such as 000258_cam1_0_00.jpg")
        else:
            samples.append(Sample(paths, False, int(match[1]), int(match[2]) - 1, sceneid=-1))
    return tuple(samples)


# -- RGBNT100: one wide file for three modalities --------------------------------------------------


def _rgbnt100(root: Path, mistakes: Mistakes) -> ReidDataset:
    base = _base(root, "RGBNT100/rgbir", "bounding_box_train")
    train, query, gallery = (
        _rgbnt100_split(base / name, mistakes)
        for name in ("bounding_box_train", "query", "bounding_box_test")
    )
    return ReidDataset("rgbnt100", base, train, query, gallery, view_rule="camera")


def _rgbnt100_split(folder: Path, mistakes: Mistakes) -> tuple[Sample, ...]:
    """`0001_c1_...jpg`: identity 1 to 600, camera 1 to 8; identity -1 is junk and left out.

    DeMo searches the pattern in the whole path, so a folder such as `data_1_c2` would win; we read
    the file name.
    """
    samples = []
    for name, path in _listing(folder, mistakes).items():
        match = RGBNT100_NAME.fullmatch(name)
        pid, camera = (int(match[1]), int(match[2])) if match else (0, 0)
        if pid == -1:
            continue
        if not (1 <= pid <= 600 and 1 <= camera <= 8):
            mistakes.add(path, "name is not PID_cC_... with PID 1 to 600 and C 1 to 8")
        else:
            samples.append(Sample((path, path, path), True, pid, camera - 1, sceneid=-1))
    return tuple(samples)


def _wide_mistake(path: Path, start: bytes) -> str | None:
    """What is wrong with a file that holds three images side by side, by its header."""
    wrong = picture_mistake(path, start)
    if wrong is not None:
        return wrong
    try:
        with Image.open(path) as image:
            turned = image.getexif().get(ORIENTATION, 1) >= 5  # by a quarter
            _third_of(image.size[::-1] if turned else image.size, path)
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    except (OSError, SyntaxError) as error:
        return f"cannot be decoded: {error}"
    return None


def third(image: Image.Image, path: Path, number: int) -> Image.Image:
    """The `number`th (from 0) of three images side by side: rgb, nir, tir.

    Raises:
        DataError: a width that is no multiple of three, or less than three times the height.
    """
    width = _third_of(image.size, path)
    return image.crop((number * width, 0, (number + 1) * width, image.height))


def _third_of(size: tuple[int, int], path: Path) -> int:
    width, height = size
    if width % 3 or width < 3 * height:
        raise DataError(
            f"{path}: is {width}x{height} pixels; RGBNT100 keeps three images of one size side by side "
            "in a file (published: 768x128), so its width must be a multiple of 3 and at least three "
            "times its height"
        )
    return width // 3


# -- MSVR310: a folder for each identity, vis, ni and th inside ------------------------------------


def _msvr310(root: Path, mistakes: Mistakes) -> ReidDataset:
    base = _base(root, "MSVR310", "bounding_box_train")
    train, query, gallery = (
        _msvr310_split(base / name, mistakes)
        for name in ("bounding_box_train", "query3", "bounding_box_test")
    )
    return ReidDataset("msvr310", base, train, query, gallery, view_rule="scene")


def _msvr310_split(folder: Path, mistakes: Mistakes) -> tuple[Sample, ...]:
    """`<vid>/vis/0001_s001_v1_...jpg`: identity 1, scene 1, camera 1 (0 to 7, not shifted)."""
    samples = []
    for vehicle in _subfolders(folder, mistakes):
        if not vehicle.name.isdigit():
            mistakes.add(vehicle, "folder name is not a number, such as 0001")
            continue
        for name, paths in _triples(vehicle, MSVR310_FOLDERS, mistakes):
            match = MSVR310_NAME.fullmatch(name)
            if match is None or int(match[3]) > 7:
                mistakes.add(
                    paths[0], "name is not PID_sSSS_vC_... with C 0 to 7, such as 0001_s001_v1_001.jpg"
                )
            elif int(match[1]) != int(vehicle.name):
                mistakes.add(
                    paths[0], f"name says identity {int(match[1])}, its folder {int(vehicle.name)}"
                )
            else:
                pid, scene, camera = map(int, match.groups())
                samples.append(Sample(paths, False, pid, camera, sceneid=scene))
    return tuple(samples)


# To add a data set: a reader above, its name here and in `ReidDataConfig.dataset`.
READERS = {"rgbnt201": _rgbnt201, "rgbnt100": _rgbnt100, "msvr310": _msvr310}


# -- shared ----------------------------------------------------------------------------------------


def _base(root: Path, name: str, split: str) -> Path:
    """The folder of a data set's splits: `name` below `root`, or `root` itself under any name."""
    itself = not (root / name).is_dir() and (root / split).is_dir()
    return root if itself else root / name


def _triples(
    folder: Path, modalities: Sequence[str], mistakes: Mistakes
) -> list[tuple[str, tuple[Path, Path, Path]]]:
    """(name without suffix, its three files) for the names in the modalities' folders, sorted."""
    listings = [_listing(folder / modality, mistakes) for modality in modalities]
    triples = []
    for name in sorted(set().union(*listings)):
        suffix = next(listing[name].suffix for listing in listings if name in listing)
        rgb, nir, tir = (
            listing.get(name, folder / modality / f"{name}{suffix}")
            for modality, listing in zip(modalities, listings, strict=True)
        )
        triples.append((name, (rgb, nir, tir)))
    return triples


def _listing(folder: Path, mistakes: Mistakes) -> dict[str, Path]:
    """The images in `folder` by name without suffix, sorted."""
    if not folder.is_dir():
        mistakes.add(folder, "folder is missing")
        return {}
    images, found = list_images(folder)
    mistakes.found += found
    return images


def _subfolders(folder: Path, mistakes: Mistakes) -> list[Path]:
    if not folder.is_dir():
        mistakes.add(folder, "folder is missing")
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _check_splits(dataset: ReidDataset, mistakes: Mistakes, trains: bool) -> None:
    for name in ("train", "query", "gallery") if trains else ("query", "gallery"):
        if not getattr(dataset, name):
            mistakes.add(dataset.root, f"split {name} is empty: no usable image")
    trained = {s.pid for s in dataset.train}
    for pid in sorted(trained & {s.pid for s in (*dataset.query, *dataset.gallery)}):
        mistakes.add(dataset.root, f"identity {pid} is in both training and test; its test is no test")
    if dataset.query and dataset.gallery and dataset.skipped_queries == len(dataset.query):
        mistakes.add(
            dataset.root,
            f"no query can be matched: each identity is seen by one {dataset.view_rule} only",
        )
