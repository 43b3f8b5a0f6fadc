"""sdtps rank RUN|FILE GALLERY: a page of pictures, each query with what a trained model finds for it.

In re-identification `--query` names pictures; in retrieval `--text` gives captions, to each of which a
`--dense` description may belong (`sdtps.trained.embed.read_pictures` says what pictures may be). Of a
table with splits, queries and gallery are those of its test (`--split`). As in the evaluation, a query
does not find its own file, nor pictures of its identity by its own camera. The page is one HTML file.
"""

from __future__ import annotations

import argparse
import base64
import functools
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sdtps.system.commandline import at_least
from sdtps.system.errors import RunError
from sdtps.trained.embed import add_model_arguments, read_pictures

if TYPE_CHECKING:
    from torch import Tensor

    from sdtps.data.own import Picture

THUMBNAIL = 160  # pixels of the longer side


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def command(arguments: argparse.Namespace) -> int:
    """The verb `rank`."""
    import torch

    from sdtps.system.files import write_text
    from sdtps.trained.features import features_of, similarities_of
    from sdtps.trained.model import load

    trained = load(arguments.target, arguments.weights, arguments.config, arguments.device)
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
    queries: Sequence[Picture | str]
    left_out = 0
    if reid:
        splits = ("test", "query") if arguments.split == "test" else splits
        queries = found = read_pictures(arguments.query, splits)
        features = features_of(trained, [*found, *gallery])
        scores = features[: len(found)] @ features[len(found) :].T
        own = torch.tensor([[_is_own(q, picture) for picture in gallery] for q in found])
        scores[own] = -torch.inf
        left_out = int(own.sum())
    else:
        queries = arguments.text
        scores = similarities_of(trained, gallery, arguments.text, arguments.dense)
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


def page(
    title: str,
    queries: Sequence[Picture | str],
    gallery: Sequence[Picture],
    scores: Tensor,
    top: int,
) -> str:
    """The page: every modality of a query and of its `top` best matches; ties keep the gallery's order.

    Args:
        scores: [Q, G], cosines of features, or (queries are captions) similarities; -inf is left out.
    """
    import jinja2
    import torch

    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :top]
    matches = [
        [(gallery[i], row[i].item()) for i in places if row[i] > -torch.inf]
        for row, places in zip(scores, order.tolist(), strict=True)
    ]
    template = Path(__file__).with_name("rank.html.j2").read_text(encoding="utf-8")
    return (
        jinja2.Environment(autoescape=True, trim_blocks=True)
        .from_string(template)
        .render(
            title=title,
            of_texts=isinstance(queries[0], str),
            found=list(zip(queries, matches, strict=True)),
            images=_images,
        )
    )


def _images(picture: Picture) -> list[tuple[str, str]]:
    """Each modality's name and its image as a URL."""
    names = {"r": "RGB", "n": "NIR", "t": "TIR"}
    return [(names[letter], _thumbnail(path)) for letter, path in picture.paths.items()]


@functools.cache
def _thumbnail(path: Path) -> str:
    from sdtps.data.images import open_image

    image = open_image(path)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"
