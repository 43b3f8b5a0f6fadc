"""Flickr30K and MS-COCO in the file layout of LAPS and SEPS, read whole and checked.

    id_mapping.json         {"ID": "file name", ...}
    SPLIT_ids.txt           one line an image, or each image once for every caption of it
    SPLIT_caps.txt          the captions, those of an image together, images in the order of the ids
    DATASET_SPLIT.jsonl     one object an image in the same order; `text` is its dense description

Published counts: Flickr30K 29,000 / 1,014 / 1,000 images (train, dev, test), MS-COCO 113,287 / 1,000 /
5,000 (train, dev, testall), five captions each. The paper swaps Flickr30K's dev and test counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sdtps.data import contents
from sdtps.data.images import picture_mistake, raise_mistakes
from sdtps.system.errors import DataError

LINES_SHOWN = 8
# A line of Flickr30K's own file: `1000092795.jpg#0<TAB>Two young guys ...`.
FLICKR_LINE = re.compile(r"(.+)#\d+\t(.*)")
# Where LAPS keeps the images: beside the folder of the captions.
LAPS_IMAGES = {"f30k": "flickr30k-images", "coco": "coco-images"}


@dataclass(frozen=True)
class CaptionSplit:
    """One split. Caption i belongs to image i // per_image."""

    name: str
    images: tuple[Path, ...]
    captions: tuple[str, ...]
    per_image: int
    dense: tuple[str, ...] | None  # one for each image; None = not asked for
    left_out: int = 0  # captions of images that have more than the others
    digests: tuple[str, ...] = ()  # of the images' bytes

    def counts(self) -> dict[str, int]:
        """How many images, captions and dense texts the split holds."""
        dense = len(self.dense or ())
        counts = {"images": len(self.images), "captions": len(self.captions), "dense_texts": dense}
        return {**counts, "captions_left_out": self.left_out} if self.left_out else counts

    def digest(self) -> str:
        """Of what the images hold and of every text; no names."""
        dense = self.dense or ()
        return contents.values_digest(*self.digests, self.per_image, *self.captions, len(dense), *dense)


def read_split(
    dataset: str, split: str, root: Path, *, image_root: Path | None = None, dense: bool = True
) -> CaptionSplit:
    """Read one split of `dataset` (f30k or coco).

    Args:
        image_root: folder of the images; default `root`/images, or beside `root` as LAPS has them
            (flickr30k-images, coco-images).
        dense: whether the dense texts are needed; without them the file need not exist.

    Raises:
        DataError: missing or broken files, counts that do not fit, empty texts; with file and line.
    """
    root = Path(root)
    images, id_lines, lines = _images(dataset, split, root, image_root)
    captions = _captions(root / f"{split}_caps.txt", images)
    if len(captions) % len(images) or id_lines not in (len(images), len(captions)):
        raise DataError(
            f"{root / f'{split}_caps.txt'}: {len(captions)} captions, but {split}_ids.txt has "
            f"{id_lines} lines for {len(images)} images. Every image must have the same number of "
            "captions (published: 5), and one line of ids, or one for each caption"
        )
    texts = None
    if dense:
        texts = _dense(root / f"{dataset}_{split}.jsonl")
        if len(texts) != len(images):
            raise DataError(
                f"{root / f'{dataset}_{split}.jsonl'}: {len(texts)} dense texts, but {split}_ids.txt "
                f"names {len(images)} images; there must be one a line, in the order of the ids"
            )
    read = CaptionSplit(split, images, captions, len(captions) // len(images), texts)
    return with_digests(read, root, lines)


def with_digests(
    split: CaptionSplit, folder: Path, lines: Mapping[Path, str] | None = None
) -> CaptionSplit:
    """The split with the digests of its images.

    Args:
        lines: which line names a file.

    Raises:
        DataError: files that are missing or no images, all of them.
    """
    digests, wrong = contents.look(folder, split.images, picture_mistake)
    mistakes = [f"{(lines or {}).get(file, '')}{file}: {text}" for file, text in wrong.items()]
    raise_mistakes(f"split {split.name}", mistakes)
    return replace(split, digests=tuple(digests[image] for image in split.images))


def _image_root(dataset: str, root: Path) -> Path:
    """The folder of the images, where `data.image_root` does not say.

    Raises:
        DataError: neither of the two places exists.
    """
    places = [root / "images", root.parent / LAPS_IMAGES.get(dataset, "images")]
    for place in places:
        if place.is_dir():
            return place
    raise DataError(
        f"{root}: no folder of images: neither {places[0]} nor {places[1]} exists. Set data.image_root "
        "to the folder that id_mapping.json's names are relative to"
    )


def read_text(path: Path, why: str) -> str:
    """The text of a file, with or without a byte-order mark.

    Args:
        why: what the file is for.

    Raises:
        DataError: no such file, or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {why}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _lines(path: Path, why: str) -> list[str]:
    lines = read_text(path, why).split("\n")
    if lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f"{path}: is empty; {why}")
    return lines


def _images(
    dataset: str, split: str, root: Path, image_root: Path | None
) -> tuple[tuple[Path, ...], int, dict[Path, str]]:
    """The images of a split, the number of lines that name them, and which line names each first."""
    mapping_file = root / "id_mapping.json"
    mapping = parsed_json(
        "\n".join(_lines(mapping_file, "it maps image ids to file names")), mapping_file
    )
    ids_file = root / f"{split}_ids.txt"
    lines = _lines(ids_file, f"it lists the images of the split '{split}'")
    image_root = image_root or _image_root(dataset, root)
    mistakes: list[str] = []
    named: dict[Path, str] = {}
    found: dict[str, Path] = {}
    previous = None
    for number, line in enumerate(lines, start=1):
        key = line.strip()
        if key == previous:
            continue
        previous = key
        if key in found:
            mistakes.append(f"{ids_file}:{number}: image {key} comes again, apart from its other lines")
        elif key not in mapping:
            mistakes.append(f"{ids_file}:{number}: image '{key}' is not in {mapping_file.name}")
        else:
            found[key] = image_root / str(mapping[key])
            named[found[key]] = f"{ids_file}:{number}: image {key}: "
    raise_mistakes(f"{root}: split {split}", mistakes)
    return tuple(found.values()), len(lines), named


def _captions(path: Path, images: Sequence[Path]) -> tuple[str, ...]:
    """The captions; in Flickr's form, where every line must name the image that it belongs to."""
    lines = _lines(path, "it holds the captions, one a line")
    empty = [str(n) for n, line in enumerate(lines, start=1) if not line.strip()]
    if empty:
        raise DataError(f"{path}:{empty[0]}: empty caption (lines {', '.join(empty[:LINES_SHOWN])})")
    matches = [FLICKR_LINE.fullmatch(line.strip()) for line in lines]
    if not all(matches):
        return tuple(line.strip() for line in lines)
    each = max(1, len(lines) // len(images))
    texts = []
    for number, match in enumerate(filter(None, matches)):
        image = images[min(number // each, len(images) - 1)].name
        if match[1] != image:
            raise DataError(
                f"{path}:{number + 1}: a caption of {match[1]}, where the ids have {image}: captions "
                "must stand in the order of the ids"
            )
        texts.append(match[2].strip())
    return tuple(texts)


def _dense(path: Path) -> tuple[str, ...]:
    lines = _lines(
        path,
        "it holds the dense texts. Without it set matching.dense_text and matching.eval_dense_text "
        "to none (released SEPS has none for dev: eval.select_on test is its habit)",
    )
    texts = []
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        entry = parsed_json(line, where)
        text = entry.get("text")
        if not isinstance(text, str):
            raise DataError(f"{where}: no string under the key 'text'; found keys {sorted(entry)}")
        if not text.strip():
            raise DataError(f"{where}: empty dense text")
        texts.append(text.strip())
    return tuple(texts)


def parsed_json(text: str, where: Path | str) -> dict[str, Any]:
    """A JSON object without a key twice. Raises DataError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        tree = dict(pairs)
        if len(tree) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in tree if keys.count(key) > 1)
            raise DataError(f"{where}: the key '{twice}' stands there twice, for two values")
        return tree

    try:
        value = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(value, dict):
        raise DataError(f"{where}: a JSON object is expected, found {type(value).__name__}")
    return value


# -- the splits of a run ----------------------------------------------------------------------------


def too_few_captions(captions: int, batch_size: int) -> str:
    """The sentence for a training split that cannot fill a batch."""
    return f"data.batch_size {batch_size} is more than the training split's {captions} captions"


def images_of(splits: Mapping[str, CaptionSplit]) -> dict[Path, str]:
    """The digest of every image."""
    return {p: d for s in splits.values() for p, d in zip(s.images, s.digests, strict=True)}


def record_of(splits: Mapping[str, CaptionSplit], name: str, folder: Path) -> dict[str, Any]:
    """Name, root, digest, counts and warnings, as run.json has them."""
    contained = (f"{split} {read.digest()}" for split, read in sorted(splits.items()))
    return {
        "name": name,
        "root": str(folder),
        "digest": contents.values_digest(*contained),
        "counts": {split: read.counts() for split, read in splits.items()},
        "warnings": warnings_of(splits),
    }


def repeated(splits: Mapping[str, CaptionSplit]) -> list[tuple[Path, Path, str]]:
    """Images of two splits that hold the same bytes, with a sentence: their test would be no test."""
    seen: dict[str, tuple[Path, str]] = {}
    found = []
    for name, split in splits.items():
        for image, here in zip(split.images, split.digests, strict=True):
            first, other = seen.setdefault(here, (image, name))
            if other != name:
                same = "" if first == image else f", as {first.name}"
                found.append((first, image, f"{image} is in both {other} and {name}{same}"))
    return found


def warnings_of(splits: Mapping[str, CaptionSplit]) -> list[str]:
    """What a reader of the results should know."""
    twice = [text for _, _, text in repeated(splits)]
    found = [f"{len(twice)} image(s) of two splits: {twice[0]}"] if twice else []
    return found + [
        f"split {name}: {split.left_out} captions are left out: only the first {split.per_image} of an "
        "image are used"
        for name, split in splits.items()
        if split.left_out
    ]
