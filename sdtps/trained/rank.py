"""sdtps rank RUN|FILE GALLERY: a page of pictures, each query with what the model finds for it.

Re-identification: `--query` names a picture, a folder or a CSV file. Retrieval: `--text` gives
captions, to each of which a `--dense` description may belong. The page is one self-contained HTML file.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
from pathlib import Path
from typing import TYPE_CHECKING

from sdtps.commandline import at_least
from sdtps.errors import DataError, RunError
from sdtps.trained.embed import Embedder, Picture, add_model_arguments, read_pictures

if TYPE_CHECKING:
    from torch import Tensor

THUMBNAIL = 160  # pixels of the longer side
STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 24px; color: #1a1a1a; background: #fff; }
section { display: flex; flex-wrap: wrap; gap: 10px; padding: 14px 0; border-top: 1px solid #ddd; }
figure { margin: 0; max-width: 180px; } figure.query { margin-right: 22px; }
img { display: block; min-width: 64px; max-width: 160px; border: 3px solid transparent; }
.right img { border-color: #16803c; } .wrong img { border-color: #c0392b; }
figcaption { font-size: 12px; overflow-wrap: anywhere; }
blockquote { margin: 0 22px 0 0; width: 160px; }
"""


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
        "--dense", action="append", default=[], help="retrieval: a description for each --text"
    )
    parser.add_argument(
        "--top", type=at_least(1), default=10, metavar="N", help="results of a query [10]"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("ranking.html"), help="the page [ranking.html]"
    )


def command(arguments: argparse.Namespace) -> int:
    """The verb `rank`."""
    from sdtps.files import write_text
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
    gallery = read_pictures(arguments.gallery)
    embedder = Embedder(trained, arguments.device)
    features = embedder.images(gallery)
    queries: list[Picture | str]
    if reid:
        found = _query_pictures(arguments.query)
        scores = embedder.images(found) @ features.T
        queries = list(found)
    else:
        scores = embedder.similarities(features, arguments.text, arguments.dense)
        queries = list(arguments.text)
    write_text(arguments.out, page(trained.name, queries, gallery, scores, arguments.top))
    top = min(arguments.top, len(gallery))
    print(f"{arguments.out}: {len(queries)} queries, the first {top} of {len(gallery)} for each")
    return 0


def _query_pictures(place: Path) -> list[Picture]:
    from sdtps.data.images import FORMATS

    if place.suffix.lower() in FORMATS:
        if not place.is_file():
            raise DataError(f"{place}: there is no file of that name")
        return [Picture(place.name, {"r": str(place)})]
    return read_pictures(place)


def ranked(scores: Tensor, top: int) -> list[list[tuple[int, float]]]:
    """Per query [Q, G] its `top` gallery rows with scores, best first; ties keep the order."""
    import torch

    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :top]
    return [
        [(i, row[i].item()) for i in places.tolist()] for row, places in zip(scores, order, strict=True)
    ]


def page(
    title: str, queries: list[Picture | str], gallery: list[Picture], scores: Tensor, top: int
) -> str:
    """The page; borders tell right from wrong where both sides have a pid."""
    sections = []
    for query, row in zip(queries, ranked(scores, top), strict=True):
        if isinstance(query, str):
            head = f"<blockquote>{html.escape(query)}</blockquote>"
        else:
            head = _figure(query, "query", f"query {query.name}")
        cells = []
        for rank, (number, score) in enumerate(row, start=1):
            picture = gallery[number]
            known = isinstance(query, Picture) and query.pid and picture.pid
            kind = ""
            if known and isinstance(query, Picture):
                kind = "right" if query.pid == picture.pid else "wrong"
            cells.append(_figure(picture, kind, f"{rank}. {score:.4f} {picture.name}"))
        sections.append(f"<section>{head}{''.join(cells)}</section>")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
        "<p>Rank, score and file of each result: cosine of the features, or similarity of caption and "
        "image. Green and red borders: same or another identity, where both are given.</p>"
        f"{''.join(sections)}</body></html>\n"
    )


def _figure(picture: Picture, kind: str, caption: str) -> str:
    from sdtps.data.images import open_image

    image = open_image(picture.shown)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=85)
    data = base64.b64encode(stream.getvalue()).decode()
    return (
        f"<figure class='{kind}'><img alt='' src='data:image/jpeg;base64,{data}'>"
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )
