"""What a trained model makes of any pictures: the verbs `embed` and `rank`.

    sdtps embed RUN|FILE IMAGES     features, as safetensors with an index
    sdtps rank RUN|FILE GALLERY     a page of pictures, each query with what the model finds for it

IMAGES or GALLERY is a folder of pictures, a folder with a sub-folder for each modality (RGB, NI, TI;
files of one name are one sample), or a CSV file as for training (`sdtps.data.own`) of which only the
column `path` is needed; `camid` is then the number of a training camera, from 1.

For `rank`: in re-identification, `--query` names a picture, a folder or a CSV file; in retrieval,
`--text` gives captions, to each of which a `--dense` description may belong. Of a table with splits,
queries and gallery are those of its test (`--split`). As in the evaluation, a query does not find its
own file, nor pictures of its identity by its own camera. The page is one self-contained HTML file.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdtps.system.commandline import at_least
from sdtps.system.errors import DataError, RunError

if TYPE_CHECKING:
    from torch import Tensor

    from sdtps.data.own import Picture
    from sdtps.trained.model import Trained

THUMBNAIL = 160  # pixels of the longer side
STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #ddd; }
:root { --right: #16803c; --wrong: #c0392b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --paper: #14171b; --line: #313840; }
  :root { --right: #5fc48d; --wrong: #ff8a80; }
}
body { font: 14px/1.4 system-ui, sans-serif; margin: 24px; }
body { color: var(--ink); background: var(--paper); }
section { display: flex; flex-wrap: wrap; gap: 10px; padding: 14px 0; }
section { border-top: 1px solid var(--line); }
figure { margin: 0; max-width: 100%; } figure.query { margin-right: 22px; }
figure div { display: flex; gap: 2px; border: 3px solid transparent; }
img { display: block; max-width: 100%; min-width: 0; }
.right div { border-color: var(--right); } .wrong div { border-color: var(--wrong); }
.right b { color: var(--right); } .wrong b { color: var(--wrong); }
figcaption { font-size: 12px; overflow-wrap: anywhere; width: min-content; min-width: 100%; }
blockquote { margin: 0 22px 0 0; width: 160px; }
"""


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
    trained = load(arguments.target, arguments.weights, arguments.config)
    pictures = read_pictures(arguments.images)
    features = Embedder(trained, arguments.device).images(pictures)
    index = arguments.out.with_suffix(".json")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(arguments.out) as stream:
        stream.write(safetensors.torch.save({"features": features.contiguous()}))
    about = {"weights": str(trained.file), "epoch": trained.epoch, "shape": list(features.shape)}
    write_json(index, {**about, "rows": [_row(picture) for picture in pictures]})
    shape = " x ".join(map(str, features.shape))
    print(f"{arguments.out}: features {shape} of {len(pictures)} samples; row by row in {index.name}")
    return 0


def _row(picture: Picture) -> dict[str, Any]:
    return {**asdict(picture), "paths": {m: str(path) for m, path in picture.paths.items()}}


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
    from sdtps.run.locations import cache_root

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
    check_images(digests, cache_root())
    return pictures


def _of_folder(place: Path) -> list[Picture]:
    from sdtps.data.images import FORMATS, NOT_READ, list_images, raise_mistakes
    from sdtps.data.own import LETTERS, Picture

    parts = [p for p in sorted(place.iterdir()) if p.is_dir() and p.name.lower() in LETTERS]
    if not parts:
        found = [p for p in sorted(place.rglob("*")) if p.is_file() and not p.name.startswith(".")]
        files = [p for p in found if p.suffix.lower() in FORMATS]
        raise_mistakes(
            f"{place}: formats that are not read; convert to one of {' '.join(FORMATS)}, or move away",
            [str(p) for p in found if p.suffix.lower() in NOT_READ],
        )
        if not files:
            raise DataError(f"{place}: holds no pictures ({', '.join(FORMATS)})")
        return [Picture(p.relative_to(place).as_posix(), {"r": p}) for p in files]
    grouped: dict[str, dict[str, Path]] = {}
    mistakes = []
    for part in parts:
        images, wrong = list_images(part)
        mistakes += wrong
        for stem, file in images.items():
            if grouped.setdefault(stem, {}).setdefault(LETTERS[part.name.lower()], file) != file:
                mistakes.append(f"{file}: another folder of this modality has a picture of that name")
    raise_mistakes(str(place), mistakes)
    if not grouped:
        raise DataError(f"{place}: {', '.join(p.name for p in parts)} hold no pictures")
    return [Picture(name, paths) for name, paths in sorted(grouped.items())]


class Embedder:
    """A trained model that turns pictures, and in retrieval texts, into features."""

    def __init__(self, trained: Trained, device: str | None = None) -> None:
        from sdtps.training.device import for_machine, prepare_torch

        config = trained.config
        if device is not None:
            train = config.train.model_copy(update={"device": device})
            config = config.model_copy(update={"train": train})
        self.trained = trained
        self.device = prepare_torch(config)
        config, _ = for_machine(config, self.device)
        self.config: Any = config
        if config.task == "reid":
            self.model = self._reid_model()
        else:
            from sdtps.trained.model import task_of

            self.task = task_of(trained, config, self.device)  # its data have the vocabulary
            self.model = self.task.model
        self.model.eval()

    def _reid_model(self) -> Any:
        """The whole model, a frozen backbone among it."""
        from sdtps.models.reid import ReidModel
        from sdtps.models.weights import load_exactly
        from sdtps.system.errors import WeightsError
        from sdtps.training.device import seed_everything
        from sdtps.training.reid import trained_sizes

        pids, cameras = trained_sizes(self.trained.weights)
        seed_everything(self.trained.seed)
        config = self.config
        try:
            model = ReidModel(config, pids, cameras)
        except WeightsError:  # the pretrained file is not here, and every tensor is in ours
            if config.backbone.frozen:
                raise
            backbone = config.backbone.model_copy(update={"weights": "random"})
            model = ReidModel(config.model_copy(update={"backbone": backbone}), pids, cameras)
        backbone = model.take_backbone() if config.backbone.frozen else None
        load_exactly(model, self.trained.weights, str(self.trained.file))
        if backbone is not None:
            model.backbone = backbone
        return model.to(self.device)

    def images(self, pictures: Sequence[Picture]) -> Tensor:
        """Re-identification: [N, D] L2-normalised features. Retrieval: visual tokens [N, V, C]."""
        import torch

        with torch.no_grad():
            return self._reid(pictures) if self.config.task == "reid" else self._tokens(pictures)

    def _reid(self, pictures: Sequence[Picture]) -> Tensor:
        import torch

        from sdtps.config.reid import MODALITY_LETTERS
        from sdtps.data.reid_batches import TestBatches
        from sdtps.data.reid_folders import Sample
        from sdtps.training.reid import ranked_features

        table = self.model.backbone.camera
        if table is not None and not all(p.camid for p in pictures):
            print(
                "The model has an embedding for each training camera; pictures without a camid are "
                "embedded without it.",
                file=sys.stderr,
            )
        cameras = 0 if table is None else len(table)
        for picture in pictures if cameras else ():
            if picture.camid and not (picture.camid.isdigit() and 1 <= int(picture.camid) <= cameras):
                raise DataError(
                    f"{picture.name}: camid '{picture.camid}' is none of the model's cameras, 1 to "
                    f"{cameras}; leave it empty to embed without a camera"
                )
        coefficient = self.model.backbone.coefficient
        rows: dict[int, Tensor] = {}
        # Samples that lack the same modalities go through the model together.
        groups: dict[tuple[str, bool], list[int]] = {}
        for number, picture in enumerate(pictures):
            absent = "".join(m for m in MODALITY_LETTERS if m not in picture.paths)
            groups.setdefault((absent, bool(cameras and picture.camid)), []).append(number)
        for (absent, known), numbers in groups.items():
            samples = []
            for number in numbers:
                picture = pictures[number]
                first, second, third = (picture.paths.get(m, picture.shown) for m in MODALITY_LETTERS)
                camid = int(picture.camid) - 1 if known else 0
                samples.append(Sample((first, second, third), False, -1, camid, -1))
            self.model.backbone.coefficient = coefficient if known else 0.0
            found = [
                ranked_features(self.model, self.config, batch.images, batch.camids).cpu()
                for batch in TestBatches(samples, None, self.config.data, self.device, absent)
            ]
            rows.update(zip(numbers, torch.cat(found), strict=True))
        self.model.backbone.coefficient = coefficient
        return torch.stack([rows[number] for number in range(len(pictures))])

    def _tokens(self, pictures: Sequence[Picture]) -> Tensor:
        import torch

        from sdtps.data.augment import whole_photograph
        from sdtps.data.images import open_image

        size = self.config.data.test_batch_size
        found = []
        frozen = None if self.model.encoder is not None else self._frozen("image_encoder")
        for start in range(0, len(pictures), size):
            pixels = [
                torch.from_numpy(whole_photograph(open_image(p.shown), self.task.test.pixels))
                for p in pictures[start : start + size]
            ]
            images = torch.stack(pixels).to(self.device)
            if frozen is not None:
                images = frozen(images).half().float()  # as its features are cached
            found.append(self.model.tokens(images).cpu())
        return torch.cat(found)

    def similarities(self, tokens: Tensor, texts: Sequence[str], dense: Sequence[str] = ()) -> Tensor:
        """Similarity [texts, images] in retrieval; `dense` descriptions guide the selection."""
        import torch

        words, lengths = self._words(texts, self.config.data.max_words)
        guide = self._words(dense, self.config.data.max_dense_words) if dense else ()
        size = self.config.data.test_batch_size
        with torch.no_grad():
            parts = [
                self.model.crossnet(
                    tokens[start : start + size].to(self.device), words, lengths, *guide
                ).similarity
                for start in range(0, len(tokens), size)
            ]
        return torch.cat(parts).T.cpu()

    def _words(self, texts: Sequence[str], limit: int) -> tuple[Tensor, Tensor]:
        import torch

        from sdtps.data.caption_batches import TextBatch, tokenised

        source = self.task.test
        batch = source.texts(tokenised(list(texts), source.vocabulary), range(len(texts)), limit)
        batch = batch.to(self.device)
        with torch.no_grad():
            if self.model.text_encoder is None:
                hidden = self._frozen("text_encoder")(batch.values, batch.lengths).half().float()
                batch = TextBatch(hidden, batch.lengths)
            return self.model.words(batch), batch.lengths

    def _frozen(self, part: str) -> Any:
        """A frozen encoder, which is not among the run's weights.

        Raises:
            RunError: its weight file is not the one that the run was trained with.
        """
        folder = self.trained.folder
        trained = ((folder.run().get("weights") or {}).get(part) or {}) if folder is not None else {}
        here = self.task.record["weights"][part] or {}
        if trained.get("digest") != here.get("digest") and trained:
            raise RunError(
                f"{self.trained.name}: its frozen {part} came from {trained.get('file')}, and "
                f"{here.get('file')} holds other weights"
            )
        return getattr(self.task.encoders, part).eval().to(self.device)


def rank_add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "gallery", type=Path, metavar="GALLERY", help="a folder of pictures, or a CSV file"
    )
    parser.add_argument(
        "--query", type=Path, help="re-identification: a picture, a folder or a CSV file"
    )
    parser.add_argument(
        "--text", action="append", default=[], help="retrieval: a caption; may be repeated"
    )
    parser.add_argument(
        "--dense", action="append", default=[], help="retrieval: a dense text for each --text"
    )
    parser.add_argument(
        "--split",
        choices=("test", "train", "all"),
        default="test",
        help="of a table with splits, which rows are queries and gallery [test]",
    )
    parser.add_argument(
        "--top", type=at_least(1), default=10, metavar="N", help="results per query [10]"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("ranking.html"), help="HTML page to write [ranking.html]"
    )


def rank_command(arguments: argparse.Namespace) -> int:
    """The verb `rank`."""
    import torch

    from sdtps.system.files import write_text
    from sdtps.trained.model import load

    trained = load(arguments.target, arguments.weights, arguments.config)
    reid = trained.config.task == "reid"
    if reid != (arguments.query is not None) or reid == bool(arguments.text):
        wanted = "--query IMAGES" if reid else "--text CAPTION"
        raise RunError(f"{trained.name}: is a model of {trained.config.task}; give {wanted}")
    if arguments.dense and len(arguments.dense) != len(arguments.text):
        raise RunError(
            f"{len(arguments.dense)} --dense for {len(arguments.text)} --text: give one for each"
        )
    splits = {"train": ("train",), "test": ("test", "gallery"), "all": ()}[arguments.split]
    gallery = read_pictures(arguments.gallery, splits)
    embedder = Embedder(trained, arguments.device)
    features = embedder.images(gallery)
    queries: list[Picture | str]
    left_out = 0
    if reid:
        splits = ("test", "query") if arguments.split == "test" else splits
        found = read_pictures(arguments.query, splits)
        scores = embedder.images(found) @ features.T
        own = torch.tensor([[_is_own(q, picture) for picture in gallery] for q in found])
        scores[own] = -torch.inf
        left_out = int(own.sum())
        queries = list(found)
    else:
        scores = embedder.similarities(features, arguments.text, arguments.dense)
        queries = list(arguments.text)
    write_text(arguments.out, page(trained.name, queries, gallery, scores, arguments.top))
    top = min(arguments.top, len(gallery))
    print(f"{arguments.out}: {len(queries)} queries, the first {top} of {len(gallery)} for each")
    if any(picture.split for picture in gallery):
        print(f"Queries and gallery are those of the split {arguments.split} (--split).")
    if left_out:
        print(
            f"Left out as in the evaluation: {left_out} times a query's own file, or a picture of its "
            "identity by its own camera."
        )
    return 0


def _is_own(query: Picture, picture: Picture) -> bool:
    """Whether a query must not find this picture: the evaluation would not count it."""
    if set(query.paths.values()) & set(picture.paths.values()):
        return True
    known = query.pid and query.camid
    return bool(known) and (query.pid, query.camid) == (picture.pid, picture.camid)


def ranked(scores: Tensor, top: int) -> list[list[tuple[int, float]]]:
    """Per query [Q, G] its `top` gallery rows with scores, best first; ties keep the order.

    Rows of -inf are left out.
    """
    import torch

    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :top]
    return [
        [(i, row[i].item()) for i in places.tolist() if row[i] > -torch.inf]
        for row, places in zip(scores, order, strict=True)
    ]


def page(
    title: str, queries: list[Picture | str], gallery: list[Picture], scores: Tensor, top: int
) -> str:
    """The page: every modality of a query and of its best matches.

    Args:
        scores: [Q, G], cosines of features, or (queries are captions) similarities.
    """
    sections = []
    for query, row in zip(queries, ranked(scores, top), strict=True):
        if isinstance(query, str):
            parts = [f"<blockquote>{html.escape(query)}</blockquote>"]
        else:
            parts = [_figure(query, "query", html.escape(f"query {query.name}"))]
        for rank, (number, score) in enumerate(row, start=1):
            picture = gallery[number]
            kind, word, close = "", "", f"similarity {score:.4f}"
            if not isinstance(query, str):
                # Features have length 1: the distance that the evaluation ranks by.
                close = f"distance {math.sqrt(max(0.0, 2 - 2 * score)):.4f}, cosine {score:.4f}"
                if query.pid and picture.pid:
                    kind = "right" if query.pid == picture.pid else "wrong"
                    word = f" <b>{'✓ same' if kind == 'right' else '✗ other'} identity</b>"
            parts.append(_figure(picture, kind, f"{rank}.{word} {close} {html.escape(picture.name)}"))
        sections.append(f"<section>{''.join(parts)}</section>")
    said = "Rank, similarity of caption and image, and file of each result."
    if not isinstance(queries[0], str):
        said = "Rank, distance and cosine of the features, and file of each result."
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
        f"<p>{said}</p>{''.join(sections)}</body></html>\n"
    )


def _figure(picture: Picture, kind: str, caption: str) -> str:
    """All modalities of a sample side by side; `caption` is HTML."""
    from sdtps.data.images import open_image

    shown = []
    for letter, path in picture.paths.items():
        image = open_image(path)
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        stream = io.BytesIO()
        image.convert("RGB").save(stream, "JPEG", quality=85)
        data = base64.b64encode(stream.getvalue()).decode()
        name = {"r": "RGB", "n": "NIR", "t": "TIR"}[letter]
        shown.append(f"<img alt='{name}' title='{name}' src='data:image/jpeg;base64,{data}'>")
    return (
        f"<figure class='{kind}'><div>{''.join(shown)}</div><figcaption>{caption}</figcaption></figure>"
    )
