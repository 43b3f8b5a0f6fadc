"""RGBNT201, RGBNT100 and MSVR310 as their authors lay them on disk; the checks of every data set.

Names are parsed by DeMo's rules, with two deliberate differences: listings and labels are sorted (DeMo
takes both in the file system's and the hash table's order, so its identity sampling depends on the
machine), and numbers are read whole (DeMo reads camera 10 as camera 1). DeMo searches RGBNT100's
pattern in the whole path, so a folder such as `data_1_c2` would win; here the file's name is read.

Every mistake found in one pass over the names is reported at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from PIL import Image

from sdtps.config.reid import Condition
from sdtps.data import contents
from sdtps.data.images import list_images, picture_mistake, raise_mistakes
from sdtps.system.errors import DataError, did_you_mean

MODALITIES = ("rgb", "nir", "tir")


@dataclass(frozen=True)
class Layout:
    """How a benchmark lies on disk.

    Attributes:
        folder: in the data root. splits: its folders of training, query and gallery.
        modalities: folders of rgb, nir and tir; none where one file shows the three side by side.
        name: of a file without suffix, with the groups pid, camera and where the view is the scene,
            scene; with `by_identity` behind the identity's folder and a slash.
        named: the same for readers.
        first_camera: the smallest number of a camera.
        view_rule: what a query must not share with its match, camera or scene.
        by_identity: each split has a folder for each identity.
    """

    folder: str
    splits: tuple[str, str, str]
    modalities: tuple[str, ...]
    name: str
    named: str
    first_camera: int = 1
    view_rule: str = "camera"
    by_identity: bool = False


# A data set of another layout: an entry here, and its name in `ReidDataConfig.dataset`.
LAYOUTS = {
    "rgbnt201": Layout(
        "RGBNT201",
        ("train_171", "test", "test"),
        ("RGB", "NI", "TI"),
        r"(?P<pid>\d+)_cam(?P<camera>0*[1-9]\d*)(?:_.*)?",
        "PID_camC_..., such as 000258_cam1_0_00.jpg",
    ),
    "rgbnt100": Layout(
        "RGBNT100/rgbir",
        ("bounding_box_train", "query", "bounding_box_test"),
        (),
        r"(?P<pid>-1|\d+)_c(?P<camera>0*[1-8])(?:_.*)?",
        "PID_cC_... with C 1 to 8, such as 0012_c1_05.jpg",
    ),
    "msvr310": Layout(
        "MSVR310",
        ("bounding_box_train", "query3", "bounding_box_test"),
        ("vis", "ni", "th"),
        r"0*(?P<pid>\d+)/0*(?P=pid)_s(?P<scene>\d+)_v(?P<camera>0*[0-7])(?:_.*)?",
        "PID_sSSS_vC_... with C 0 to 7 in the folder PID, such as 0001/vis/0001_s001_v1_001.jpg",
        first_camera=0,
        view_rule="scene",
        by_identity=True,
    ),
}


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
    dev: tuple[Sample, ...] = ()  # validation, each a query and gallery; of one's own data

    @property
    def splits(self) -> dict[str, tuple[Sample, ...]]:
        """The splits by name; dev where there is one."""
        dev = {"dev": self.dev} if self.dev else {}
        return {"train": self.train, "query": self.query, "gallery": self.gallery, **dev}

    @property
    def train_pids(self) -> int:
        return len({s.pid for s in self.train})

    @property
    def cameras(self) -> int:
        """Size of the camera table: DeMo counts the training cameras; unseen test cameras fit too."""
        return 1 + max(s.camid for split in self.splits.values() for s in split)

    @property
    def skipped_queries(self) -> int:
        """Test queries without a match, see `unmatched`."""
        return self.unmatched(self.query, self.gallery)

    def unmatched(self, query: Sequence[Sample], gallery: Sequence[Sample]) -> int:
        """Queries whose identity no other view in the gallery shows; ranking leaves them out."""
        views: dict[int, set[int]] = {}
        for sample in gallery:
            views.setdefault(sample.pid, set()).add(self.view(sample))
        return sum(not views.get(s.pid, set()) - {self.view(s)} for s in query)

    def view(self, sample: Sample) -> int:
        return sample.sceneid if self.view_rule == "scene" else sample.camid

    def digests(self) -> dict[Path, str]:
        """The digest of every image file; empty before they are looked at."""
        samples = [s for split in self.splits.values() for s in split]
        return {p: d for s in samples for p, d in zip(s.images, s.digests or ("",) * 3, strict=True)}

    def record(self, *, camera_embedding: bool) -> dict[str, Any]:
        """Name, root, digest, counts and warnings, as run.json has them."""
        counts: dict[str, Any] = {
            name: {
                "samples": len(split),
                "images": len({path for sample in split for path in sample.images}),
                "identities": len({s.pid for s in split}),
                "cameras": len({s.camid for s in split}),
            }
            for name, split in self.splits.items()
        }
        return {
            "name": self.name,
            "root": str(self.root),
            "digest": self.digest(),
            "counts": {**counts, "skipped_queries": self.skipped_queries},
            "warnings": self.warnings(camera_embedding=camera_embedding),
        }

    def warnings(self, *, camera_embedding: bool) -> list[str]:
        """What a reader of the results should know."""
        found = []
        tested = {s.camid for s in (*self.query, *self.gallery)}
        if camera_embedding and self.train and (unseen := tested - {s.camid for s in self.train}):
            numbers = ", ".join(map(str, sorted(unseen)))
            found.append(
                f"test cameras never seen in training (numbered from 0): {numbers}; their rows of the "
                "camera embedding stay as they were initialised (backbone.camera_embedding)"
            )
        if self.absent:
            names = " and no ".join(name for name in MODALITIES if name[0] in self.absent)
            found.append(
                f"the data hold no {names} images; these modalities are zero in "
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
        for part, samples in self._parts().items():
            for sample in dict.fromkeys(samples):
                for path, here in dict(zip(sample.images, sample.digests, strict=True)).items():
                    first, where, other = seen.setdefault(here, (path, part, sample))
                    if where != part:
                        kind = f"the same picture is in {where} and {part}"
                    elif other.pid != sample.pid:
                        kind = f"the same picture has two identities in {part}"
                    elif part != "training" and self.view(other) != self.view(sample):
                        kind = f"the same picture has two {self.view_rule}s, so a query finds itself"
                    else:
                        continue
                    names = (Path(os.path.relpath(p, self.root)).as_posix() for p in (path, first))
                    pair = f"{next(names)} (identity {sample.pid}) and {next(names)} ({other.pid})"
                    found.setdefault(kind, []).append(pair)
        return found

    def _parts(self) -> dict[str, tuple[Sample, ...]]:
        """What must share no identity and no picture."""
        return {"training": self.train, "validation": self.dev, "test": (*self.query, *self.gallery)}

    def mistakes(self, *, trains: bool) -> list[str]:
        """What makes it no data set to train on and test with."""
        found = [
            f"split {name} is empty: no usable image"
            for name, split in self.splits.items()
            if not split and (trains or name != "train")
        ]
        for (one, first), (two, second) in combinations(self._parts().items(), 2):
            shared = {s.pid for s in first} & {s.pid for s in second}
            found += [f"identity {pid} is in both {one} and {two}" for pid in sorted(shared)]
        for query, gallery in ((self.query, self.gallery), (self.dev, self.dev)):
            if query and gallery and self.unmatched(query, gallery) == len(query):
                found.append(
                    f"no query can be matched: each identity is seen by one {self.view_rule} only"
                )
        return [f"{self.root}: {text}" for text in found]

    def digest(self) -> str:
        """Of what all images hold, in order of split, with what is known of each; no names."""
        rows: list[object] = [self.view_rule, self.absent]
        for name, split in self.splits.items():
            rows += [name, *((*s.digests, s.pid, s.camid, s.sceneid) for s in split)]
        return contents.values_digest(*rows)


def read_dataset(name: str, root: Path) -> ReidDataset:
    """The data set `name` at `root`: the folder that holds RGBNT201/, RGBNT100/ or MSVR310/, or itself.

    Raises:
        DataError: a missing folder or modality file, a file that is no image, a name that cannot be
            parsed, an empty split, an identity in both training and test, or no query that can be
            matched. All of them.
    """
    if name not in LAYOUTS:
        raise DataError(f"unknown data set '{name}'. {did_you_mean(name, LAYOUTS)}")
    layout, root = LAYOUTS[name], Path(root)
    mistakes: list[str] = []
    base = root / layout.folder
    if not base.is_dir() and (root / layout.splits[0]).is_dir():
        base = root
    read = {split: _split(base / split, layout, mistakes) for split in dict.fromkeys(layout.splits)}
    train, query, gallery = (read[split] for split in layout.splits)
    return checked(ReidDataset(name, base, train, query, gallery, layout.view_rule), mistakes)


def checked(
    dataset: ReidDataset,
    mistakes: list[str],
    *,
    lines: Mapping[Path, str] | None = None,
    trains: bool = True,
) -> ReidDataset:
    """The data set with the digests of its images and its training labels.

    In data of one's own, a picture that stands where it must not is a mistake; of published data, whose
    users cannot change it, it is told (`ReidDataset.warnings`).

    Args:
        mistakes: found so far. lines: which line of a table names a file.

    Raises:
        DataError: `mistakes`, files that are no images, and `ReidDataset.mistakes`. All of them.
    """
    digests, wrong = contents.look(dataset.root, dataset.digests(), picture_mistake)
    for path, text in wrong.items():
        line = f"{lines[path]}: " if lines else ""
        more = ": each image must exist in all three modalities" * (text == "is missing")
        mistakes.append(f"{line}{path}: {text}{more}")
    labels = {pid: i for i, pid in enumerate(sorted({s.pid for s in dataset.train}))}
    known = {
        name: tuple(
            replace(
                s,
                label=labels[s.pid] if name == "train" else -1,
                digests=tuple(digests.get(p, "") for p in s.images),
            )
            for s in split
        )
        for name, split in dataset.splits.items()
    }
    train, query, gallery, dev = (known.get(n, ()) for n in ("train", "query", "gallery", "dev"))
    dataset = replace(dataset, train=train, query=query, gallery=gallery, dev=dev)
    mistakes += dataset.mistakes(trains=trains)
    if dataset.name == "own" and not wrong:
        mistakes += [f"{kind}: {pair}" for kind, pairs in dataset.repeated().items() for pair in pairs]
    raise_mistakes(f"{dataset.name} at {dataset.root}", mistakes)
    return dataset


def too_few(identities: int, wanted: int) -> str:
    """The sentence for a training split that cannot fill a batch."""
    return (
        f"a batch takes data.batch_size / data.instances = {wanted} identities, the training split has "
        f"{identities}; lower data.batch_size or raise data.instances"
    )


def impossible(conditions: Iterable[str], absent: str) -> list[str]:
    """A sentence for each condition that is none, or would show only modalities the data lack."""
    names = " and no ".join(name for name in MODALITIES if name[0] in absent)
    found = []
    for name in filter(None, conditions):
        try:
            condition = Condition.parse(name)
        except ValueError as error:
            found.append(str(error))
            continue
        if any(set(side) <= set(absent) for side in (condition.query, condition.gallery)):
            found.append(f"{name}: the data hold no {names} images, so its features would all be equal")
    return found


# -- folders ----------------------------------------------------------------------------------------


def _split(folder: Path, layout: Layout, mistakes: list[str]) -> tuple[Sample, ...]:
    if not folder.is_dir():
        mistakes.append(f"{folder}: folder is missing")
        return ()
    parts = [folder]
    if layout.by_identity:
        parts = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    samples = []
    for part in parts:
        for name, paths in _triples(part, layout.modalities, mistakes):
            match = re.fullmatch(layout.name, f"{part.name}/{name}" if layout.by_identity else name)
            if match is None:
                mistakes.append(f"{paths[0]}: name is not {layout.named}")
            elif match["pid"] != "-1":  # RGBNT100's junk
                camera = int(match["camera"]) - layout.first_camera
                scene = int(match["scene"]) if layout.view_rule == "scene" else -1
                samples.append(Sample(paths, not layout.modalities, int(match["pid"]), camera, scene))
    return tuple(samples)


def _triples(
    folder: Path, modalities: Sequence[str], mistakes: list[str]
) -> list[tuple[str, tuple[Path, Path, Path]]]:
    """(name without suffix, its files of rgb, nir and tir) for the names in the folders, sorted."""
    places = [folder / modality for modality in modalities] or [folder] * 3
    listings: dict[Path, dict[str, Path]] = {}
    for place in dict.fromkeys(places):
        if place.is_dir():
            listings[place], found = list_images(place)
            mistakes += found
        else:
            listings[place] = {}
            mistakes.append(f"{place}: folder is missing")
    triples = []
    for name in sorted(set().union(*listings.values())):
        suffix = next(listing[name].suffix for listing in listings.values() if name in listing)
        rgb, nir, tir = (listings[place].get(name, place / f"{name}{suffix}") for place in places)
        triples.append((name, (rgb, nir, tir)))
    return triples


def third(image: Image.Image, path: Path, number: int) -> Image.Image:
    """The `number`th (from 0) of three images side by side: rgb, nir, tir.

    Raises:
        DataError: a width that is no multiple of three, or less than three times the height.
    """
    width, height = image.size
    if width % 3 or width < 3 * height:
        raise DataError(
            f"{path}: is {width}x{height} pixels; RGBNT100 keeps three images of one size side by side "
            "in a file (published: 768x128), so its width must be a multiple of 3 and at least three "
            "times its height"
        )
    width //= 3
    return image.crop((number * width, 0, (number + 1) * width, height))
