"""The picture of `sdtps patches`: a row for each image, a group of columns for each run."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER = 0.052  # inches: a letter's width
DARK = (0.0, 0.0, 0.0, 0.78)  # over dropped patches


@dataclass(frozen=True)
class Tile:
    """An image uint8 [H, W, 3], and over it what is known of its patches.

    Attributes:
        layer: colours [rows, columns, RGBA] in [0, 1]. marks: a text on each patch [rows, columns].
        kept: [rows, columns]; white lines run between kept and dropped patches.
        below: a text.
    """

    pixels: np.ndarray
    layer: np.ndarray | None = None
    kept: np.ndarray | None = None
    marks: np.ndarray | None = None
    below: str = ""


@dataclass(frozen=True)
class Group:
    """Columns of one run: for each, what stands above it, and a tile in each row."""

    title: str
    columns: dict[str, list[Tile]]


def drawn(groups: Sequence[Group], legend: str, tile: float) -> bytes:
    """The picture as PNG; the same input gives the same bytes.

    Args:
        tile: inches: the width of an image.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine as Layout

    from analysis.figures.style import saved, styled
    from analysis.venues import VENUES

    columns: list[tuple[str, list[Tile]] | None] = []  # None: the space between groups
    for group in groups:
        title = textwrap.fill(group.title, max(12, int(len(group.columns) * tile / LETTER)))
        columns += [None] * bool(columns)
        for place, (heading, tiles) in enumerate(group.columns.items()):
            columns.append(("\n".join(["" if place else title, heading]).rstrip("\n"), tiles))
    tiles = columns[0][1] if columns[0] else []
    height, width = tiles[0].pixels.shape[:2]
    shares = [1.0 if column else 0.12 for column in columns]
    letters = int(tile / LETTER)
    lines = max(len(textwrap.wrap(t.below, letters)) for c in columns if c for t in c[1])
    down = len(tiles) * (tile * height / width + 0.15 * lines + 0.05) + 0.7
    with styled(VENUES["article"]):
        near = Layout(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0, rect=(0.01, 0, 0.98, 1))
        figure = Figure(figsize=(tile * 1.03 * sum(shares), down), layout=near)
        places = figure.subplots(len(tiles), len(columns), squeeze=False, width_ratios=shares)
        for axes in places.flat:
            axes.set_axis_off()
        for column, stacked in zip(columns, places.T, strict=True):
            for shown, axes in zip(column[1] if column else (), stacked, strict=False):
                _draw(axes, shown, tile)
                under, place = textwrap.fill(shown.below, letters), axes.transAxes
                axes.text(0, -0.02, under, transform=place, va="top", fontsize=7, parse_math=False)
            if column:
                stacked[0].set_title(column[0], loc="left", parse_math=False)
        figure.supxlabel(legend, x=0.01, ha="left", fontsize=7)
        return saved(figure, ("png",))["png"]


def _draw(axes: Axes, shown: Tile, width: float) -> None:
    layer = shown.layer if shown.layer is not None else np.zeros((1, 1, 4))
    rows, columns = layer.shape[:2]
    extent = (0, columns, rows, 0)
    height = shown.pixels.shape[0] / shown.pixels.shape[1]
    axes.imshow(shown.pixels, extent=extent, interpolation="nearest")
    axes.imshow(layer, extent=extent, interpolation="nearest", aspect=height * columns / rows)
    if shown.kept is not None:
        r, c = np.nonzero(shown.kept[:, 1:] != shown.kept[:, :-1])
        axes.vlines(c + 1, r, r + 1, color="white", linewidth=0.7)
        r, c = np.nonzero(shown.kept[1:] != shown.kept[:-1])
        axes.hlines(r + 1, c, c + 1, color="white", linewidth=0.7)
    if shown.marks is not None:
        for (r, c), mark in np.ndenumerate(shown.marks):
            size = min(8.0, 40 * width / columns)
            axes.text(c + 0.5, r + 0.5, mark, color="white", ha="center", va="center", fontsize=size)
