"""python -m analysis audit: an audit.json (see `sdtps.audit.audit`) as a table in every form."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import commands
from analysis.tables.model import EMPTY, Cell, Column, Row, Table, text
from sdtps.errors import SdtpsError

# Parts of the model as columns, from the loss to the encoder, and what they are called.
PARTS = {
    "aggregation": "Aggregation",
    "extra_token": "Extra token",
    "score_mlp": "Score MLP",
    "guides": "Guides",
    "selected_patches": "Patches",
    "encoder": "Encoder",
    "text_encoder": "Text encoder",
}
STATES = {"none": "no path", "zero": "zero", "nonfinite": "not finite"}
MEANINGS = {
    "no path": "no gradient can reach the part",
    "zero": "one reaches it and is exactly zero",
    "not finite": "infinite or no number",
    "finite": "finite, where the baseline has none to compare with",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("audit", type=Path, help="file of `python -m sdtps audit --json`")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write .tex .csv .md .html .json")


def command(arguments: argparse.Namespace) -> int:
    from analysis.tables import render

    try:
        document = json.loads(arguments.audit.read_text(encoding="utf-8"))
        table = audit_table(document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SdtpsError(f"{arguments.audit}: not an audit: {error}") from None
    console = commands.console()
    if arguments.out is None:
        console.print(render.to_terminal(table))
        return 0
    for path in render.write(table, arguments.out):
        console.print(str(path))
    return 0


def audit_table(document: Mapping[str, Any]) -> Table:
    """Gradient norms at initialisation as multiples of the baseline's, one row a variant.

    Raises:
        KeyError, TypeError: not an audit.
    """
    baseline = document["baseline"]
    labels = {v["variant"]: v["label"] for v in document["variants"]}
    records = [r for r in document["gradients"] if r["when"] == "initial"]
    found = {(r["variant"], r["part"]): r for r in records}
    parts = [p for p in PARTS if any(r["part"] == p for r in records)]
    scaled = any(v["scaler_skipped"] is not None for v in document["variants"])
    columns = [
        Column("variant", "Variant", align="l"),
        *(Column(p, PARTS[p], align="r") for p in parts),
        Column("cosine", "Patch cosine", align="r"),
        Column("untrained", "Untrained", unit="%", align="r"),
    ]
    if scaled:
        columns.append(Column("skipped", "Steps skipped", align="r"))
    rows = []
    for variant in document["variants"]:
        name = variant["variant"]
        cells = [
            text(labels[name]),
            *(_gradient(found.get((name, p))) for p in parts),
            _number(variant["patch_cosine"], 2),
            _number(100 * variant["without_gradient"], 1),
        ]
        if scaled:
            skipped = variant["scaler_skipped"]
            cells.append(EMPTY if skipped is None else text(f"{skipped}/{document['steps']}"))
        rows.append(Row(name, tuple(cells)))
    return Table(
        name=f"{document['study']}-audit",
        study=document["study"],
        title="Gradient audit",
        columns=tuple(columns),
        rows=tuple(rows),
        caption=(
            "Gradient norm of each part at initialisation, on the same batch with the same weights, "
            f"as a multiple of that of {labels[baseline]}.",
            f"Patch cosine: of the gradient at the patches with that of {labels[baseline]}.",
            "Untrained: share of the parameters that get no gradient.",
            *_legend(rows),
        ),
        origin=("made by python -m analysis audit",),
    )


def _gradient(record: Mapping[str, Any] | None) -> Cell:
    if record is None:
        return EMPTY
    if record["state"] in STATES:
        return text(STATES[record["state"]])
    ratio = record["ratio"]
    return text("finite") if ratio is None else _factor(ratio)


def _legend(rows: Sequence[Row]) -> list[str]:
    """What words and empty cells of these rows mean."""
    cells = [cell for row in rows for cell in row.cells]
    found = [
        f"{word}: {meaning}" for word, meaning in MEANINGS.items() if any(c.text == word for c in cells)
    ]
    if EMPTY in cells:
        found.append("empty: the variant has no such part, or no gradient to compare")
    return [f"In the cells, {'; '.join(found)}."] if found else []


def _factor(value: float) -> Cell:
    """0.59, 1.0, 36, 264, or a power of ten: two figures, so that all are printed as exactly."""
    if 0.01 <= value < 999.5:
        digits = 0 if value >= 9.95 else 1 if value >= 0.995 else 2
        return text(f"{value:.{digits}f}")
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    power = int(exponent)
    return text(f"{mantissa}e{power}", tex=rf"${mantissa} \times 10^{{{power}}}$")


def _number(value: float | None, digits: int) -> Cell:
    return EMPTY if value is None else text(f"{value:.{digits}f}")
