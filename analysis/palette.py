"""One colour and line style for each variant, the same in every figure of a study and in the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ablations.study import Study

# Okabe and Ito's colours without black (the baseline's) and yellow (too light for thin lines), then
# three more of Paul Tol's; told apart with every common form of colour blindness.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"),
    *("#E69F00", "#882255", "#999933", "#44AA99"),
)
# The baseline is dashed and dashed lines are drawn last: over a curve that it equals, both are seen.
BASELINE, BASELINE_DASHES = "#000000", (3.0, 2.0)
# Solid first; after each round of colours the next pattern. On, off, ... in line widths.
DASHES: tuple[tuple[float, ...] | None, ...] = (
    None,
    (4.0, 1.5),
    (1.2, 1.2),
    (5.0, 1.2, 1.2, 1.2),
)


@dataclass(frozen=True)
class Style:
    colour: str
    dashes: tuple[float, ...] | None = None


def palette(study: Study, others: tuple[str, ...] = ()) -> dict[str, Style]:
    """Variant to style. The manifest's `color` wins; the rest follow its order.

    `others` are variants outside the manifest (imported); they come last.
    """
    styles: dict[str, Style] = {}
    number = 0
    for name in (*study.variants, *others):
        variant = study.variants.get(name)
        if variant is not None and variant.color:
            styles[name] = Style(variant.color)
        elif name == study.baseline:
            styles[name] = Style(BASELINE, BASELINE_DASHES)
        else:
            rounds, index = divmod(number, len(COLOURS))
            styles[name] = Style(COLOURS[index], DASHES[rounds % len(DASHES)])
            number += 1
    return styles
