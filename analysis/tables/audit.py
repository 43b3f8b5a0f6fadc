"""sdtps audit: an audit.json (see `sdtps.audit.audit`) as a table in every form."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis import commands
from analysis.results.numbers import raised
from analysis.tables.model import EMPTY, Cell, Column, Row, Table, text
from sdtps.audit.table import gradient_table
from sdtps.errors import SdtpsError

# What the paper's table shows of the audit's parts.
PARTS = (
    "aggregation",
    "extra_token",
    "score_mlp",
    "guides",
    "selected_patches",
    "encoder",
    "text_encoder",
)
_POWER = re.compile(r"(\d+\.\d)e(-?\d+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("audit", type=Path, help="file of `sdtps audit --json`")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write .tex .csv .md .html .json")


def command(arguments: argparse.Namespace) -> int:
    from analysis.tables import forms

    try:
        document = json.loads(arguments.audit.read_text(encoding="utf-8"))
        table = audit_table(document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SdtpsError(
            f"{arguments.audit}: not an audit ({error}); make one: sdtps audit STUDY --json FILE"
        ) from None
    console = commands.console()
    if arguments.out is None:
        console.print(forms.to_terminal(table))
        return 0
    for path in forms.write(table, arguments.out):
        console.print(str(path))
    return 0


def audit_table(document: Mapping[str, Any]) -> Table:
    """Gradient norms at initialisation as multiples of the baseline's, one row a variant.

    Raises:
        KeyError, TypeError: not an audit.
    """
    found = gradient_table(document, parts=PARTS)
    columns = [Column("variant", "Variant", align="l")]
    for key, heading in found.columns.items():
        heading, _, unit = heading.removesuffix(")").partition(" (")
        columns.append(Column(key, heading, unit=unit, align="r"))
    rows = tuple(
        Row(name, (text(found.labels[name]), *(_cell(row[key]) for key in found.columns)))
        for name, row in found.rows.items()
    )
    return Table(
        name=f"{document['study']}-audit",
        study=document["study"],
        title="Gradient audit",
        columns=tuple(columns),
        rows=rows,
        caption=found.notes,
        origin=("made by sdtps audit",),
    )


def _cell(shown: str) -> Cell:
    """5.4e9 as 5.4 × 10⁹."""
    power = _POWER.fullmatch(shown)
    if power is None:
        return text(shown) if shown else EMPTY
    return text(f"{power[1]} × 10{raised(int(power[2]))}")
