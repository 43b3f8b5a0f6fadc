"""`sdtps report [STUDY ...] -o report.html`: the whole result as one HTML file."""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis import commands
from analysis.report.audit import audit_parts
from analysis.report.page import page
from analysis.report.payload import payload
from analysis.runs.collect import Collected
from analysis.runs.comparable import KINDS, refuse_to_average
from sdtps.errors import SdtpsError
from sdtps.files import write_text

CLAIMS = Path("paper/generated/claims.json")


class ReportError(SdtpsError):
    """An input of the report that cannot be used."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands.add_study_arguments(parser)
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    parser.add_argument("--title", default="SDTPS results")
    parser.add_argument(
        "--audit",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="written by `sdtps audit --json`; may be repeated",
    )
    parser.add_argument("--claims", type=Path, help=f"claims.json; default: {CLAIMS} if it exists")
    parser.add_argument(
        "--patches",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="picture made by `sdtps patches`; may be repeated",
    )


def write(
    collected: Collected,
    output: Path,
    *,
    title: str = "SDTPS results",
    audits: Sequence[Path] = (),
    claims: Path | None = None,
    patches: Sequence[Path] = (),
) -> None:
    """Write the report of `collected` to `output`, whole or not at all.

    Raises:
        ReportError: a file that was asked for cannot be read.
    """
    from analysis.tables.study import tables

    audit = [part for path in audits for part in _audit(path)] if audits else None
    marks = refuse_to_average(collected, allow=KINDS)
    data = payload(
        collected,
        tables={study.name: tables(collected, study, marks) for study in collected.studies},
        audit=audit,
        claims=None if claims is None else claim_entries(_json(claims)),
        pictures=[picture(path) for path in patches],
    )
    write_text(output, page(title, data))


def command(arguments: argparse.Namespace) -> int:
    """Write the report of the studies."""
    from analysis.runs.collect import collect

    studies, _ = commands.load(arguments)
    collected = collect(studies, arguments.runs_dir)
    claims = arguments.claims
    if claims is None and CLAIMS.is_file():
        claims = CLAIMS
    write(
        collected,
        arguments.output,
        title=arguments.title,
        audits=arguments.audit,
        claims=claims,
        patches=arguments.patches,
    )
    print(arguments.output)
    return 0


def _audit(path: Path) -> list[dict[str, Any]]:
    try:
        return audit_parts(_json(path))
    except (KeyError, TypeError) as error:
        raise ReportError(f"{path}: not an audit: {error}") from None


def claim_entries(document: Any) -> list[dict[str, Any]]:
    """Entries of a claims.json (see `analysis.claims.report.as_json`) as the page shows them."""
    return [
        {
            "id": str(claim["id"]),
            "text": str(claim["claim"]),
            "source": str(claim.get("source", "")),
            "verdict": str(claim["verdict"]),
            "why": str(claim.get("evidence") or claim.get("why") or ""),
            "runs": [str(run) for run in claim.get("runs", [])],
        }
        for claim in document["claims"]
    ]


def picture(path: Path) -> dict[str, str]:
    """A PNG as a data URI, with the caption that `analysis.patches` wrote beside it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or error}") from None
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ReportError(f"{path}: not a PNG file")
    beside = path.with_suffix(".txt")
    caption = beside.read_text(encoding="utf-8").strip() if beside.is_file() else path.stem
    encoded = base64.b64encode(content).decode()
    return {"image": f"data:image/png;base64,{encoded}", "alt": caption, "caption": caption}


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ReportError(f"{path}: not JSON: {error}") from None
