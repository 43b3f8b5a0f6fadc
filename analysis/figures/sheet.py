"""What the pictures of `sdtps patches` share: colours, letters, lines between patches, the file."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

DROPPED = 0.25  # brightness of dropped patches
PAPER, INK, MUTED = (255, 255, 255), (28, 33, 39), (92, 102, 112)


def png(sheet: Image.Image) -> bytes:
    """The same picture gives the same bytes."""
    stream = io.BytesIO()
    sheet.save(stream, format="PNG", compress_level=9)
    return stream.getvalue()


def borders(
    pen: ImageDraw.ImageDraw, kept: np.ndarray, corner: tuple[int, int], tile: tuple[int, int]
) -> None:
    """White lines where a kept patch [rows, columns] meets a dropped one."""
    rows, columns = kept.shape
    xs = [corner[0] + round(i * tile[0] / columns) for i in range(columns + 1)]
    ys = [corner[1] + round(i * tile[1] / rows) for i in range(rows + 1)]
    for r, c in zip(*np.nonzero(kept[:, 1:] != kept[:, :-1]), strict=True):
        pen.line([(xs[c + 1], ys[r]), (xs[c + 1], ys[r + 1])], fill=PAPER)
    for r, c in zip(*np.nonzero(kept[1:] != kept[:-1]), strict=True):
        pen.line([(xs[c], ys[r + 1]), (xs[c + 1], ys[r + 1])], fill=PAPER)


def font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans as matplotlib ships it: the same letters on every machine."""
    import matplotlib as mpl

    return ImageFont.truetype(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)


def fitted(text: str, width: int, size: int) -> str:
    """`text` cut with an ellipsis to `width` pixels."""
    letters = font(size)
    if letters.getlength(text) <= width:
        return text
    while text and letters.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
