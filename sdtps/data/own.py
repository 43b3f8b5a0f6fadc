"""One's own data as one file: a CSV for either task, or Karpathy's JSON for retrieval.

Re-identification (`data.dataset: own`, `data.file: people.csv`), one image a row:

    path,pid,camid,modality,split
    a/0001_c1_rgb.png,1,1,rgb,train

`modality` is rgb, nir or tir; a data set of one or two modalities leaves the others out. `split` is
train, query, gallery, or test (query and gallery at once). Images of one sample are those with the same
split, pid, camid and `sample` (a column of one's own; without it, the file's name without suffix).

Retrieval, one caption a row; `dense` is optional and is given once or alike for an image:

    image,caption,split[,dense]

Image paths are relative to the file's folder (retrieval: to `data.image_root`, if that is set).
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdtps.data.captions import LAPS_IMAGES, CaptionSplit
from sdtps.data.images import raise_mistakes, signature_mistake
from sdtps.data.reid_folders import ReidDataset, Sample, checked
from sdtps.system.errors import DataError, did_you_mean

MODALITIES = {"rgb": 0, "vis": 0, "nir": 1, "ni": 1, "tir": 2, "ti": 2, "th": 2}
NAMES = ("rgb", "nir", "tir")
REID_SPLITS = {
    "train": ("train",),
    "query": ("query",),
    "gallery": ("gallery",),
    "test": ("query", "gallery"),
}
CAPTION_SPLITS = ("train", "dev", "test")
OTHER_NAMES = {"val": "dev", "valid": "dev", "validation": "dev", "restval": "train", "testall": "test"}
KARPATHY_CAPTIONS = 5  # of an image, as published; some images of MS-COCO have more


@dataclass(frozen=True)
class _Row:
    line: int
    values: dict[str, str]

    def __getitem__(self, column: str) -> str:
        return self.values.get(column, "")


def _table(path: Path, required: tuple[str, ...], optional: tuple[str, ...]) -> list[_Row]:
    """The rows of a CSV file with a header, separated by commas, semicolons or tabs.

    Raises:
        DataError: no such file, not UTF-8, a column missing, an unknown column near a known one, a row
            with more values than columns or an empty one.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; data.file names it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    header = text.partition("\n")[0]
    reader = csv.reader(text.splitlines(), delimiter=max(",;\t", key=header.count))
    columns = [name.strip().lower() for name in next(reader, [])]
    mistakes = [
        f"{path}:1: no column '{name}'. {did_you_mean(name, columns)}"
        for name in required
        if name not in columns
    ]
    mistakes += [f"{path}:1: two columns '{n}'" for n, count in Counter(columns).items() if count > 1]
    rows: list[_Row] = []
    for values in reader:
        if not any(value.strip() for value in values) or mistakes:
            continue
        row = _Row(reader.line_num, dict(zip(columns, (v.strip() for v in values), strict=False)))
        if len(values) != len(columns):
            mistakes.append(f"{path}:{row.line}: {len(values)} values for {len(columns)} columns")
            continue
        empty = [name for name in required if not row[name]]
        if empty:
            mistakes.append(f"{path}:{row.line}: empty {', '.join(empty)}")
        rows.append(row)
    raise_mistakes(path, mistakes)
    if not rows:
        raise DataError(f"{path}: holds no rows below its header")
    return rows


# -- re-identification ------------------------------------------------------------------------------


def read_own_reid(path: Path, *, trains: bool = True) -> ReidDataset:
    """The data set of a CSV file; its view rule is the camera.

    Identities and cameras may be any words; cameras are numbered from 0 in sorted order, identities
    keep their numbers where all are numbers.

    Args:
        trains: whether a training split is needed.

    Raises:
        DataError: a broken table, an image that is missing or none, a sample without one of the data
            set's modalities or with two of one, and what every data set is refused for.
    """
    mistakes: list[str] = []
    groups: dict[tuple[str, str, str, str], dict[int, Path]] = {}
    for row in _table(path, ("path", "pid", "camid", "split"), ("modality", "sample")):
        where = f"{path}:{row.line}"
        split, modality = row["split"].lower(), (row["modality"] or "rgb").lower()
        if split not in REID_SPLITS:
            mistakes.append(f"{where}: split '{row['split']}'. {did_you_mean(split, REID_SPLITS)}")
            continue
        if modality not in MODALITIES:
            mistakes.append(f"{where}: modality '{row['modality']}'. {did_you_mean(modality, NAMES)}")
            continue
        file = Path(os.path.normpath((path.parent / row["path"]).absolute()))
        wrong = signature_mistake(file)
        if wrong is not None:
            mistakes.append(f"{where}: {file}: {wrong}")
        key = (split, row["pid"], row["camid"], row["sample"] or file.stem)
        images = groups.setdefault(key, {})
        if MODALITIES[modality] in images:
            mistakes.append(
                f"{where}: {file.name} and {images[MODALITIES[modality]].name} are both the {modality} "
                f"image of sample '{key[3]}'; a column `sample` tells samples apart"
            )
        images[MODALITIES[modality]] = file
    present = sorted({modality for images in groups.values() for modality in images})
    for (split, pid, camid, which), images in groups.items():
        if missing := [NAMES[m] for m in present if m not in images]:
            mistakes.append(
                f"{path}: sample '{which}' ({split}, pid {pid}, camid {camid}) has no "
                f"{' and no '.join(missing)} image; a column `sample` says which images belong together"
            )
    raise_mistakes(path, mistakes)
    pids, camids = _numbers(key[1] for key in groups), _numbers(key[2] for key in groups)
    cameras = {number: index for index, number in enumerate(sorted(camids.values()))}
    splits: dict[str, list[Sample]] = {"train": [], "query": [], "gallery": []}
    for (split, pid, camid, _), images in sorted(groups.items()):
        # Absent modalities stand in the sample as another image and are zeroed in every batch.
        rgb, nir, tir = (images.get(m, images[present[0]]) for m in range(3))
        sample = Sample((rgb, nir, tir), False, pids[pid], cameras[camids[camid]], sceneid=-1)
        for name in REID_SPLITS[split]:
            splits[name].append(sample)
    absent = "".join(name[0] for m, name in enumerate(NAMES) if m not in present)
    train, query, gallery = (tuple(splits[name]) for name in ("train", "query", "gallery"))
    files = [image for images in groups.values() for image in images.values()]
    root = Path(os.path.commonpath([path.parent.absolute(), *files]))
    dataset = ReidDataset("own", root, train, query, gallery, "camera", absent)
    return checked(dataset, trains=trains)


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
    splits: dict[str, CaptionSplit] = {}
    mistakes: list[str] = []
    for name in names:
        wanted = OTHER_NAMES.get(name, name)
        texts: dict[str, list[str]] = {}
        described: dict[str, str] = {}
        for where, image, split, caption, description in rows:
            if split != wanted:
                continue
            texts.setdefault(image, []).append(caption)
            if description and described.setdefault(image, description) != description:
                mistakes.append(f"{where}: another dense text for {image} than before")
        splits[name] = _split(path, name, texts, described, folder, dense[name], mistakes)
    raise_mistakes(path, mistakes)
    return splits


def _split(
    path: Path,
    name: str,
    texts: dict[str, list[str]],
    described: dict[str, str],
    folder: Path,
    dense: bool,
    mistakes: list[str],
) -> CaptionSplit:
    counts = Counter(map(len, texts.values()))
    each = min(counts, default=1)
    if path.suffix.lower() == ".json":
        each = min(each, KARPATHY_CAPTIONS)
    elif len(counts) > 1:
        found = ", ".join(f"{number} images with {n}" for n, number in sorted(counts.items()))
        mistakes.append(
            f"{path}: split {name}: every image must have the same number of captions; {found}"
        )
    if not texts:
        mistakes.append(f"{path}: no image of the split {name}")
    for image in texts:
        wrong = signature_mistake(folder / image)
        if wrong is not None:
            mistakes.append(f"{path}: {folder / image}: {wrong}")
    undescribed = [image for image in texts if image not in described]
    if dense and undescribed:
        mistakes.append(
            f"{path}: split {name}: {len(undescribed)} image(s) without a dense text, {undescribed[0]} "
            "for one. Give a column `dense`, or set matching.dense_text and eval_dense_text to none"
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
    for row in _table(path, ("image", "caption", "split"), ("dense",)):
        where, split = f"{path}:{row.line}", row["split"].lower()
        split = OTHER_NAMES.get(split, split)
        if split not in CAPTION_SPLITS:
            mistakes.append(f"{where}: split '{row['split']}'. {did_you_mean(split, CAPTION_SPLITS)}")
        rows.append((where, row["image"], split, row["caption"], row["dense"]))
    raise_mistakes(path, mistakes)
    return rows, [path.parent, path.parent / "images"]


def _karpathy_rows(path: Path, dataset: str) -> tuple[list[_Caption], list[Path]]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; data.file names it") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from None
    images = tree.get("images") if isinstance(tree, dict) else None
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
