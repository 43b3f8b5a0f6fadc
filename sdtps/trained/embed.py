"""sdtps embed RUN|FILE IMAGES: a trained model's features of any pictures, with an index.

IMAGES is a folder of pictures, a folder with a sub-folder for each modality (RGB, NI, TI; files of one
name are one sample), or a CSV file as for training (`sdtps.data.own`) of which only the column `path`
is needed; `camid` is then the number of a training camera, from 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sdtps.data.images import FORMATS, check_images, list_images, picture_mistake, raise_mistakes
from sdtps.data.own import LETTERS, Picture, read_table
from sdtps.system.errors import DataError, RunError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "images", type=Path, metavar="IMAGES", help="a folder of pictures, or a CSV file"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help=".safetensors; the index goes beside it"
    )


def add_target(parser: argparse.ArgumentParser) -> None:
    """The trained model, and where it computes."""
    parser.add_argument(
        "target",
        type=Path,
        metavar="RUN|FILE",
        help="a run (its folder, or STUDY/VARIANT/seedK), or a weights file (.safetensors)",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="config.yaml, for a weights file without one"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="where to compute [as in training]")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "-w",
        "--weights",
        choices=("best", "last"),
        default="best",
        help="weights of the selected (best) or the last epoch [best]",
    )


def command(arguments: argparse.Namespace) -> int:
    """The verb `embed`."""
    import safetensors.torch

    from sdtps.system.files import replacing, write_json
    from sdtps.trained.features import features_of
    from sdtps.trained.model import load

    if arguments.out.suffix != ".safetensors":
        raise RunError(f"--out {arguments.out}: give a name that ends in .safetensors")
    trained = load(arguments.target, arguments.weights, arguments.config, arguments.device)
    pictures = read_pictures(arguments.images)
    features = features_of(trained, pictures)
    index = arguments.out.with_suffix(".json")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(arguments.out) as stream:
        stream.write(safetensors.torch.save({"features": features.contiguous()}))
    about = {"weights": str(trained.file), "epoch": trained.epoch, "shape": list(features.shape)}
    paths = [{m: str(path) for m, path in picture.paths.items()} for picture in pictures]
    rows = [{**asdict(picture), "paths": p} for picture, p in zip(pictures, paths, strict=True)]
    write_json(index, {**about, "rows": rows})
    shape = " x ".join(map(str, features.shape))
    print(f"{arguments.out}: features {shape} of {len(pictures)} samples; row by row in {index.name}")
    return 0


def read_pictures(place: Path, splits: Sequence[str] = ()) -> list[Picture]:
    """The samples of a folder or of a CSV file, in order of name or of line.

    Args:
        splits: of a table with splits, those that are wanted; empty: all.

    Raises:
        DataError: nothing there, no pictures, a broken table, a file that is no image.
    """
    from sdtps.data.contents import look

    lines: dict[Path, str] = {}
    if place.is_dir():
        pictures = _of_folder(place)
    elif place.suffix.lower() in FORMATS and place.is_file():
        pictures = [Picture(place.name, {"r": place})]
    elif place.is_file():
        pictures, lines, mistakes = read_table(place)
        raise_mistakes(place, mistakes)
        found = sorted({picture.split for picture in pictures})
        pictures = [p for p in pictures if not (splits and p.split) or p.split in splits]
        if not pictures:
            raise DataError(f"{place}: no rows of the split {splits[0]}; it has {', '.join(found)}")
    else:
        raise DataError(f"{place}: there is no folder and no file of that name")
    files = [path for picture in pictures for path in picture.paths.values()]
    digests, wrong = look(place if place.is_dir() else place.parent, files, picture_mistake)
    raise_mistakes(place, [f"{lines.get(f, place)}: {f}: {text}" for f, text in wrong.items()])
    check_images(digests)
    return pictures


def _of_folder(place: Path) -> list[Picture]:
    parts = {p: LETTERS.get(p.name.lower(), "") for p in sorted(place.iterdir()) if p.is_dir()}
    folders = {p: letter for p, letter in parts.items() if letter} or {place: "r"}
    grouped: dict[str, dict[str, Path]] = {}
    mistakes = []
    for folder, letter in folders.items():
        images, wrong = list_images(folder)
        mistakes += wrong
        for name, file in images.items():
            if grouped.setdefault(name, {}).setdefault(letter, file) != file:
                mistakes.append(f"{file}: another folder of this modality has a picture of that name")
    raise_mistakes(place, mistakes)
    if not grouped:
        raise DataError(f"{place}: holds no pictures ({', '.join(FORMATS)})")
    return [Picture(name, paths) for name, paths in sorted(grouped.items())]
