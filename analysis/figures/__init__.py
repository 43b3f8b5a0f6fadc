"""Figures: curves over training, results against settings, patch pictures. Widths of venues here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Venue:
    """Inches: the width of a column and of the text block; points: the size of a figure's text."""

    column: float
    page: float
    text: float = 8.0

    def width(self, kind: Literal["column", "page"]) -> float:
        return self.column if kind == "column" else self.page


# From the venues' own style files (one-column styles: both widths are the text block's).
VENUES = {
    "iclr": Venue(5.5, 5.5),
    "neurips": Venue(5.5, 5.5),
    "icml": Venue(3.25, 6.75),
    "cvpr": Venue(3.25, 6.875),
}
