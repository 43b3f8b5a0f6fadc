"""sdtps embed RUN|FILE IMAGES: a trained model's features of any pictures, with an index.

IMAGES is a folder of pictures, a folder with a sub-folder for each modality (RGB, NI, TI; files of one
name are one sample), or a CSV file as for training (`sdtps.data.own`) of which only the column `path`
is needed; `camid` is then the number of a training camera, from 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdtps.system.errors import DataError, RunError

if TYPE_CHECKING:
    from torch import Tensor

    from sdtps.config.retrieval import DenseText
    from sdtps.data.own import Picture
    from sdtps.evaluation.retrieval import Scorer
    from sdtps.trained.model import Trained


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
    from sdtps.trained.model import load

    if arguments.out.suffix != ".safetensors":
        raise RunError(f"--out {arguments.out}: give a name that ends in .safetensors")
    trained = load(arguments.target, arguments.weights, arguments.config, arguments.device)
    pictures = read_pictures(arguments.images)
    features = Embedder(trained).images(pictures)
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
    from sdtps.data.images import FORMATS, check_images, picture_mistake, raise_mistakes
    from sdtps.data.own import Picture, read_table

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
    from sdtps.data.images import FORMATS, list_images, raise_mistakes
    from sdtps.data.own import LETTERS, Picture

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


class Embedder:
    """A trained model that turns pictures, and in retrieval texts, into features."""

    def __init__(self, trained: Trained) -> None:
        from sdtps.trained.model import reid_model, task_of
        from sdtps.training.device import for_machine, prepare_torch

        self.device = prepare_torch(trained.config)
        config, _ = for_machine(trained.config, self.device)
        self.config: Any = config
        if config.task == "reid":
            self.model: Any = reid_model(trained, config).to(self.device)
        else:
            self.task = task_of(trained, config, self.device)  # its data have the vocabulary
            self.model = self.task.model
        self.model.eval()

    def images(self, pictures: Sequence[Picture]) -> Tensor:
        """Re-identification: [N, D] L2-normalised features. Retrieval: visual tokens [N, V, C]."""
        import torch

        if self.config.task == "retrieval":
            return self._scorer(pictures).tokens.cpu()
        with torch.no_grad():
            return self._reid(pictures)

    def _reid(self, pictures: Sequence[Picture]) -> Tensor:
        import numpy as np
        import torch

        from sdtps.config.reid import MODALITY_LETTERS
        from sdtps.data.images import BILINEAR
        from sdtps.data.reid_batches import TestBatches, decode
        from sdtps.data.reid_folders import Sample
        from sdtps.training.reid import ranked_features

        backbone, data = self.model.backbone, self.config.data
        cameras = 0 if backbone.camera is None else len(backbone.camera)
        if cameras and not all(p.camid for p in pictures):
            print(
                "The model has an embedding for each training camera; pictures without a camid are "
                "embedded without it.",
                file=sys.stderr,
            )
        # Samples that lack the same modalities go through the model together.
        groups: dict[tuple[str, bool], list[int]] = {}
        camids = {"": 0, **{str(camera): camera - 1 for camera in range(1, cameras + 1)}}
        for number, picture in enumerate(pictures):
            if cameras and picture.camid not in camids:
                raise DataError(
                    f"{picture.name}: camid '{picture.camid}' is none of the model's cameras, 1 to "
                    f"{cameras}; leave it empty to embed without a camera"
                )
            absent = "".join(m for m in MODALITY_LETTERS if m not in picture.paths)
            groups.setdefault((absent, bool(cameras and picture.camid)), []).append(number)
        coefficient = backbone.coefficient
        rows: dict[int, Tensor] = {}
        for (absent, known), numbers in groups.items():
            backbone.coefficient = coefficient if known else 0.0
            for start in range(0, len(numbers), data.test_batch_size):
                samples = []
                block = numbers[start : start + data.test_batch_size]
                for picture in (pictures[number] for number in block):
                    rgb, nir, tir = (picture.paths.get(m, picture.shown) for m in MODALITY_LETTERS)
                    camid = camids[picture.camid] if known else 0
                    samples.append(Sample((rgb, nir, tir), False, -1, camid, -1))
                pixels = np.stack([decode(sample, data, BILINEAR) for sample in samples])
                (batch,) = TestBatches(samples, pixels, len(samples), self.device, absent)
                found = ranked_features(self.model, self.config, batch.images, batch.camids)
                rows.update(zip(block, found.cpu(), strict=True))
        backbone.coefficient = coefficient
        return torch.stack([rows[number] for number in range(len(pictures))])

    def similarities(
        self, pictures: Sequence[Picture], texts: Sequence[str], dense: Sequence[str] = ()
    ) -> Tensor:
        """Similarity [texts, images] in retrieval; `dense` descriptions guide the selection.

        Raises:
            RunError: dense texts for a model that takes none.
        """
        import numpy as np

        from sdtps.evaluation.retrieval import takes_dense

        if dense and not takes_dense(self.config):
            raise RunError("--dense: the model takes no dense text")
        scorer = self._scorer(pictures, texts, dense)
        which = np.arange(len(texts))
        mode: DenseText = "own" if dense else "none"
        return scorer.score(np.arange(len(pictures)), which, [mode], targets=which)[mode].T

    def _scorer(
        self, pictures: Sequence[Picture], texts: Sequence[str] = ("",), dense: Sequence[str] = ()
    ) -> Scorer:
        """The pictures encoded, to be scored with the texts."""
        from sdtps.data.captions import CaptionSplit, with_digests
        from sdtps.evaluation.retrieval import Scorer

        files = tuple(picture.shown for picture in pictures)
        folder = Path(os.path.commonpath([file.parent for file in files]))
        split = CaptionSplit("pictures", files, tuple(texts), 1, tuple(dense) or None)
        source = self.task.encoders.source(with_digests(split, folder))
        return Scorer(self.model, source, self.config, self.device)
