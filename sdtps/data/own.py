"""One's own data as one file: a CSV for either task, or Karpathy's JSON for retrieval.

Re-identification (`data.dataset: own`, `data.file: people.csv`), one image a row:

    path,pid,camid,modality,split
    a/0001_c1_rgb.png,1,1,rgb,train

`modality` is rgb, nir or tir; a data set of one or two modalities leaves the others out. `split` is
train, query, gallery, or test (query and gallery at once); with rows of val, other identities, a run's
best epoch is selected on them instead of the test. Images of one sample are those with the same split,
pid, camid and `sample` (a column of one's own; without it, the file's name without suffix).

Retrieval, one caption a row; `dense` is optional and is given once or alike for an image:

    image,caption,split[,dense]

Image paths are relative to the file's folder (retrieval: to `data.image_root`, if that is set).
"""

from __future__ import annotations

import csv
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdtps.data.captions import LAPS_IMAGES, CaptionSplit, parsed_json, read_text, with_digests
from sdtps.data.images import raise_mistakes
from sdtps.data.reid_folders import MODALITIES, ReidDataset, Sample, checked
from sdtps.system.errors import DataError, did_you_mean

LETTERS = {"rgb": "r", "vis": "r", "nir": "n", "ni": "n", "tir": "t", "ti": "t", "th": "t"}
REID_SPLITS = {
    **{name: (name,) for name in ("train", "dev", "query", "gallery")},
    "test": ("query", "gallery"),
}
CAPTION_SPLITS = ("train", "dev", "test")
OTHER_NAMES = {"val": "dev", "valid": "dev", "validation": "dev", "restval": "train", "testall": "test"}
KARPATHY_CAPTIONS = 5  # of an image, as published; some images of MS-COCO have more


NAMED = "data.file names it"


def _table(path: Path, required: tuple[str, ...]) -> list[tuple[str, dict[str, str]]]:
    """The rows of a CSV file with a header, separated by commas, semicolons or tabs, with their lines.

    Columns that the file lacks are empty.

    Raises:
        DataError: no such file, not UTF-8, a column missing or twice, a row with more or fewer values
            than columns, or one without a value that is required.
    """
    text = read_text(path, NAMED)
    header = text.partition("\n")[0]
    reader = csv.reader(text.splitlines(), delimiter=max(",;\t", key=header.count))
    columns = [name.strip().lower() for name in next(reader, [])]
    mistakes = [
        f"{path}:1: no column '{name}'. {did_you_mean(name, columns)}"
        for name in required
        if name not in columns
    ]
    mistakes += [f"{path}:1: two columns '{n}'" for n, count in Counter(columns).items() if count > 1]
    raise_mistakes(path, mistakes)
    rows: list[tuple[str, dict[str, str]]] = []
    for values in reader:
        where = f"{path}:{reader.line_num}"
        row = defaultdict(str, zip(columns, map(str.strip, values), strict=False))
        if not any(row.values()):
            continue
        if len(values) != len(columns):
            mistakes.append(f"{where}: {len(values)} values for {len(columns)} columns")
        elif empty := [name for name in required if not row[name]]:
            mistakes.append(f"{where}: empty {', '.join(empty)}")
        rows.append((where, row))
    raise_mistakes(path, mistakes)
    if not rows:
        raise DataError(f"{path}: holds no rows below its header")
    return rows


# -- re-identification ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """One sample of a table or folder.

    Attributes:
        paths: a file for each modality that it has, by r, n, t; retrieval has r alone.
        pid, camid, split: as given; empty where unknown.
    """

    name: str
    paths: dict[str, Path]
    pid: str = ""
    camid: str = ""
    split: str = ""

    @property
    def shown(self) -> Path:
        return next(iter(self.paths.values()))


def read_table(
    path: Path, required: tuple[str, ...] = ("path",)
) -> tuple[list[Picture], dict[Path, str], list[str]]:
    """The samples of a CSV file in its order, the line that names each file, and mistakes.

    Raises:
        DataError: a broken table.
    """
    mistakes: list[str] = []
    lines: dict[Path, str] = {}
    groups: dict[tuple[str, str, str, str], Picture] = {}
    for where, row in _table(path, required):
        split = OTHER_NAMES.get(row["split"].lower(), row["split"].lower())
        modality = (row["modality"] or "rgb").lower()
        if split and split not in REID_SPLITS:
            mistakes.append(f"{where}: split '{row['split']}'. {did_you_mean(split, REID_SPLITS)}")
            continue
        if modality not in LETTERS:
            mistakes.append(
                f"{where}: modality '{row['modality']}'. {did_you_mean(modality, MODALITIES)}"
            )
            continue
        file = Path(os.path.normpath((path.parent / row["path"]).absolute()))
        key = (split, row["pid"], row["camid"], row["sample"] or file.stem)
        picture = groups.setdefault(key, Picture(key[3], {}, row["pid"], row["camid"], split))
        before = picture.paths.setdefault(LETTERS[modality], file)
        if before is not file:
            mistakes.append(
                f"{where}: {file.name} and {before.name} are both the {modality} "
                f"image of sample '{key[3]}'; a column `sample` tells samples apart"
            )
        lines.setdefault(file, where)
    return list(groups.values()), lines, mistakes


def read_own_reid(path: Path, *, trains: bool = True) -> ReidDataset:
    """The data set of a CSV file; its view rule is the camera.

    Identities and cameras may be any words; cameras are numbered from 0 in sorted order, identities
    keep their numbers where all are numbers.

    Args:
        trains: whether a training split is needed.

    Raises:
        DataError: a broken table, an image that is missing or none, a sample without one of the data
            set's modalities or with two of one, a picture that stands where it must not, and what every
            data set is refused for.
    """
    pictures, lines, mistakes = read_table(path, ("path", "pid", "camid", "split"))
    present = [m for m in "rnt" if any(m in picture.paths for picture in pictures)]
    for one in pictures:
        if missing := [n for n in MODALITIES if n[0] in present and n[0] not in one.paths]:
            mistakes.append(
                f"{path}: sample '{one.name}' ({one.split}, pid {one.pid}, camid {one.camid}) has no "
                f"{' and no '.join(missing)} image; a column `sample` says which images belong together"
            )
    pids, camids = _numbers(p.pid for p in pictures), _numbers(p.camid for p in pictures)
    cameras = {number: index for index, number in enumerate(sorted(camids.values()))}
    splits: dict[str, list[Sample]] = {"train": [], "query": [], "gallery": [], "dev": []}
    for one in sorted(pictures, key=lambda one: (one.split, one.pid, one.camid, one.name)):
        # Absent modalities stand in the sample as another image and are zeroed in every batch.
        rgb, nir, tir = (one.paths.get(m, one.shown) for m in "rnt")
        sample = Sample((rgb, nir, tir), False, pids[one.pid], cameras[camids[one.camid]], sceneid=-1)
        for name in REID_SPLITS[one.split]:
            splits[name].append(sample)
    absent = "".join(m for m in "rnt" if m not in present)
    root = Path(os.path.commonpath([path.parent.absolute(), *lines]))
    read = {name: tuple(samples) for name, samples in splits.items()}
    dataset = ReidDataset("own", root, **read, view_rule="camera", absent=absent)
    return checked(dataset, mistakes, lines=lines, trains=trains)


def _numbers(words: Iterable[str]) -> dict[str, int]:
    """Each word's number: its own where all are whole numbers, else its place in sorted order."""
    distinct = sorted(set(words))
    if all(word.isdecimal() for word in distinct):
        return {word: int(word) for word in distinct}
    return {word: place for place, word in enumerate(distinct)}


# -- retrieval --------------------------------------------------------------------------------------


def read_own_captions(
    path: Path, names: list[str], *, dataset: str, image_root: Path | None, dense: dict[str, bool]
) -> dict[str, CaptionSplit]:
    """The splits `names` of a CSV file, or of Karpathy's JSON.

    Args:
        dense: by split, whether dense texts are needed (column `dense`; Karpathy's JSON has none).

    Raises:
        DataError: a broken file, an image that is missing or none, images with different numbers of
            captions (CSV), a split without images.
    """
    reader = _karpathy_rows if path.suffix.lower() == ".json" else _caption_rows
    rows, folders = reader(path, dataset)
    folders = [image_root] if image_root is not None else folders
    first = rows[0][1]
    folder = next((f for f in folders if (f / first).is_file()), None)
    if folder is None:
        places = " nor ".join(str(f / first) for f in folders)
        raise DataError(f"{path}: its first image is not {places}. Set data.image_root")
    mistakes: list[str] = []
    splits = {}
    for name in names:
        chosen = [row for row in rows if row[2] == OTHER_NAMES.get(name, name)]
        splits[name] = _split(path, name, chosen, folder, dense[name], mistakes)
    raise_mistakes(path, mistakes)
    return {name: with_digests(split, folder) for name, split in splits.items()}


def _split(
    path: Path, name: str, rows: list[_Caption], folder: Path, dense: bool, mistakes: list[str]
) -> CaptionSplit:
    texts: dict[str, list[str]] = {}
    described: dict[str, str] = {}
    for where, image, _, caption, description in rows:
        texts.setdefault(image, []).append(caption)
        if description and described.setdefault(image, description) != description:
            mistakes.append(f"{where}: another dense text for {image} than before")
    where = f"{path}: split {name}"
    counts = Counter(map(len, texts.values()))
    each = min(counts, default=1)
    if path.suffix.lower() == ".json":
        each = min(each, KARPATHY_CAPTIONS)
    elif len(counts) > 1:
        found = ", ".join(f"{number} images with {n}" for n, number in sorted(counts.items()))
        mistakes.append(f"{where}: every image must have the same number of captions; {found}")
    if not texts:
        mistakes.append(f"{where}: has no image")
    undescribed = [image for image in texts if image not in described]
    if dense and undescribed:
        mistakes.append(
            f"{where}: {len(undescribed)} image(s) without a dense text, {undescribed[0]} for one. "
            "Give a column `dense`, or set matching.dense_text and eval_dense_text to none"
        )
    return CaptionSplit(
        name,
        tuple(folder / image for image in texts),
        tuple(caption for captions in texts.values() for caption in captions[:each]),
        each,
        tuple(described.get(image, "") for image in texts) if dense else None,
        left_out=sum(max(0, len(captions) - each) for captions in texts.values()),
    )


_Caption = tuple[str, str, str, str, str]  # where, image, split, caption, dense text


def _caption_rows(path: Path, dataset: str) -> tuple[list[_Caption], list[Path]]:
    rows, mistakes = [], []
    for where, row in _table(path, ("image", "caption", "split")):
        split = OTHER_NAMES.get(row["split"].lower(), row["split"].lower())
        if split not in CAPTION_SPLITS:
            mistakes.append(f"{where}: split '{row['split']}'. {did_you_mean(split, CAPTION_SPLITS)}")
        rows.append((where, row["image"], split, row["caption"], row["dense"]))
    raise_mistakes(path, mistakes)
    return rows, [path.parent, path.parent / "images"]


def _karpathy_rows(path: Path, dataset: str) -> tuple[list[_Caption], list[Path]]:
    images = parsed_json(read_text(path, NAMED), path).get("images")
    if not isinstance(images, list):
        raise DataError(f"{path}: no list `images`, as Karpathy's dataset_flickr30k.json has it")
    rows: list[_Caption] = []
    mistakes = []
    for number, image in enumerate(images):
        where = f"{path}: images[{number}]"
        try:
            name = "/".join(filter(None, (image.get("filepath", ""), image["filename"])))
            split = OTHER_NAMES.get(image["split"], image["split"])
            captions: list[Any] = [" ".join(s["raw"].split()) for s in image["sentences"]]
        except (KeyError, TypeError, AttributeError) as error:
            mistakes.append(f"{where}: no {error}; filename, split and sentences (raw) are needed")
            continue
        if split not in CAPTION_SPLITS:
            mistakes.append(f"{where}: split '{split}'. {did_you_mean(str(split), CAPTION_SPLITS)}")
        rows += [(where, name, split, caption, "") for caption in captions if caption]
    raise_mistakes(path, mistakes)
    if not rows:
        raise DataError(f"{path}: holds no captions")
    beside = LAPS_IMAGES.get(dataset, "images")
    folder = path.parent
    return rows, [folder / "images", folder / beside, folder.parent / beside, folder]
