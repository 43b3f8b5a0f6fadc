"""The mark on rows whose evaluation gives a query the dense text of its own target image.

Decided by the variant's configuration; `sdtps audit` decides the same by scoring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.results.outcomes import Outcome
from analysis.tables.latex import escape
from analysis.tables.model import Cell, text
from sdtps.config import RetrievalConfig

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import TableSpec

MARK = "†"


def leaks(study: Study, spec: TableSpec, row: Outcome) -> bool:
    """Whether a row's plain metrics come from an evaluation that sees the leak.

    Metrics that name their dense text (rsum@none) are no mystery and need no mark.
    """
    metrics = spec.metrics or tuple(study.metrics)
    variant = study.variants.get(row.variant)
    if variant is None or row.imported or all("@" in m and not m.endswith("@1k") for m in metrics):
        return False
    config = variant.config
    if not isinstance(config, RetrievalConfig) or config.matching.form == "laps":
        return False
    return config.sdtps.enabled and config.matching.eval_dense_text == "own"


def marked(cell: Cell) -> Cell:
    """A name with the mark behind it."""
    tex = escape(cell.plain) if cell.tex is None else cell.tex
    return text(f"{cell.plain} {MARK}", tex=rf"{tex}$^{{\dagger}}$")


def note(study: Study, spec: TableSpec, rows: Sequence[Outcome]) -> tuple[str, ...]:
    """What the mark means, where a row has it."""
    if not any(leaks(study, spec, row) for row in rows):
        return ()
    return (
        f"{MARK} Evaluated with the dense text of each query's own target image, which a query does "
        "not have outside of a benchmark.",
    )
