"""Where a paper is published: the widths that tables and figures must fit, in inches.

From the venues' own style files. A style in one column has the text block's width for both.
`article` is this project's paper; `any` fits the common classes of LaTeX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

POINTS = 72.27  # of TeX, in an inch


@dataclass(frozen=True)
class Venue:
    """Column and text block in inches, and the type size of a figure in points."""

    column: float
    page: float
    text: float = 8.0

    def width(self, kind: Literal["column", "page"]) -> float:
        return self.column if kind == "column" else self.page


VENUES = {
    "article": Venue(5.5, 5.5),
    "any": Venue(3.33, 4.77),
    "iclr": Venue(5.5, 5.5),
    "neurips": Venue(5.5, 5.5),
    "icml": Venue(3.25, 6.75),
    "cvpr": Venue(3.25, 6.875),
    "ieee": Venue(3.5, 7.16),
    "acm": Venue(3.33, 7.0),
}
