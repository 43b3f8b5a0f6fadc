"""Colour, line and marker of each variant, the same in every figure of a study and in the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ablations.study.model import Study

# Okabe and Ito's colours without black (the baseline's) and yellow (too light for thin lines), and a
# dark one of Paul Tol's. With black, any two are apart by 16 units of CIELAB in every form of colour
# blindness; an eighth would halve that. Grey print keeps markers and dashes.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#882255", "#56B4E9"),
)
MARKERS = ("s", "^", "D", "v", "P", "*", "<")  # one a colour
BASELINE_MARKER = "o"
# The baseline is dashed and dashed lines are drawn last: over a curve that it equals, both are seen.
BASELINE, BASELINE_DASHES = "#000000", (3.0, 2.0)
# Solid first; after each round of colours the next pattern. On, off, ... in line widths.
DASHES: tuple[tuple[float, ...] | None, ...] = (
    None,
    (4.0, 1.5),
    (1.2, 1.2),
    (5.0, 1.2, 1.2, 1.2),
    (8.0, 2.0),
)
FILLS = ("full", "none", "left", "bottom", "right")  # how much of a marker is filled, by round


@dataclass(frozen=True)
class Style:
    """How a variant is drawn; `marker` and `fill` are matplotlib's names."""

    colour: str
    dashes: tuple[float, ...] | None = None
    marker: str = BASELINE_MARKER
    fill: str = "full"


def palette(study: Study, others: tuple[str, ...] = ()) -> dict[str, Style]:
    """Variant to style. The manifest's `color` wins.

    The rest take colours in turn: first the variants that figures name, for those are compared with
    each other, then all in the manifest's order, then `others`, variants outside the manifest
    (imported).
    """
    pinned = {name: v.color for name, v in study.variants.items() if v.color}
    taken = {colour.upper() for colour in pinned.values()}
    pairs = list(zip(COLOURS, MARKERS, strict=True))
    free = [pair for pair in pairs if pair[0].upper() not in taken] or pairs
    styles: dict[str, Style] = {}
    number = 0
    for name in dict.fromkeys((*_compared(study), *study.variants, *others)):
        if name in pinned:
            marker = MARKERS[-1 - len(styles) % len(MARKERS)]
            styles[name] = Style(pinned[name], None, marker)
        elif name == study.baseline:
            styles[name] = Style(BASELINE, BASELINE_DASHES)
        else:
            rounds, index = divmod(number, len(free))
            # A round begins one colour later: the last of one and the first of the next, often in one
            # figure, then are no two blues.
            colour, marker = free[(index + rounds) % len(free)]
            pattern = rounds % len(DASHES)
            styles[name] = Style(colour, DASHES[pattern], marker, FILLS[pattern])
            number += 1
    return styles


def _compared(study: Study) -> list[str]:
    named = [name for figure in study.figures for name in figure.variants or ()]
    return [name for name in named if name in study.variants]
