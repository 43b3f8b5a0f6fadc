"""Where a curve figure's legend goes, and drawing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures.curveline import marker
from analysis.figures.palette import Style

LINE, HANDLE, CHARACTER = 0.155, 0.5, 0.058  # inches of a legend's row, of its sample, of a letter
SHARE = 0.36  # of the width, at most, for a legend beside the curves


@dataclass(frozen=True)
class Legend:
    """Beside the curves, in the order in which they end, or below them in columns."""

    beside: bool
    columns: int
    height: float  # inches


def layout(entries: Sequence[tuple[str, Style]], width: float, *, panels: int) -> Legend:
    """Beside a single panel where there is room for the longest name, else below."""
    longest = HANDLE + CHARACTER * max((len(label) for label, _ in entries), default=1)
    if panels == 1 and longest <= SHARE * width:
        return Legend(True, 1, LINE * len(entries) + 0.3)
    columns = min(len(entries), max(1, int(width / (longest + 0.15))))
    return Legend(False, columns, LINE * -(-len(entries) // columns))


def draw(picture: Figure, entries: Sequence[tuple[str, Style]], legend: Legend) -> None:
    """Line, dashes and marker of each entry as they are in the curves."""
    handles = []
    for _, style in entries:
        line = Line2D([], [], linewidth=1.2, **marker(style))
        if style.dashes:
            line.set_dashes(style.dashes)
        handles.append(line)
    # A label that begins with an underscore would be left out, so the texts are set afterwards.
    drawn = picture.legend(
        handles,
        [f"{n}" for n in range(len(entries))],
        loc="outside right center" if legend.beside else "outside lower center",
        ncols=legend.columns,
        columnspacing=1.2,
        handlelength=2.6,
        labelspacing=0.25,
    )
    for shown, (label, _) in zip(drawn.get_texts(), entries, strict=True):
        shown.set_parse_math(False)
        shown.set_text(label)
