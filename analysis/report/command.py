"""`python -m analysis report [STUDY.yaml ...] -o report.html`: the whole result as one HTML file."""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.collect import Collected, refuse_to_average
from analysis.report.page import page
from analysis.report.payload import payload
from sdtps import atomic
from sdtps.errors import SdtpsError


class ReportError(SdtpsError):
    """An input of the report that cannot be used."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `report` beside the choice of studies."""
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    parser.add_argument("--title", default="SDTPS results")
    parser.add_argument("--audit", type=Path, help="audit.json; default: found below --runs")
    parser.add_argument(
        "--claims", type=Path, help="claims.json; default: paper/generated/claims.json if it exists"
    )
    parser.add_argument(
        "--patches",
        type=Path,
        nargs="*",
        default=[],
        help="pictures made by `python -m analysis patches`",
    )


def write(
    collected: Collected,
    output: Path,
    *,
    title: str = "SDTPS results",
    audit: Path | None = None,
    claims: Path | None = None,
    patches: Sequence[Path] = (),
) -> None:
    """Write the report of `collected` to `output`, whole or not at all.

    Raises:
        ReportError: a file that was asked for cannot be read.
    """
    from analysis.tables import tables

    marks = refuse_to_average(collected, allow_missing=True, allow_mixed_code=True)
    data = payload(
        collected,
        tables={study.name: tables(collected, study, marks) for study in collected.studies},
        audit=None if audit is None else audit_parts(_json(audit)),
        claims=None if claims is None else claim_entries(_json(claims)),
        pictures=[picture(path) for path in patches],
    )
    atomic.write_text(output, page(title, data))


def claim_entries(document: Any) -> list[dict[str, Any]]:
    """Entries of a claims.json (see `analysis.claim_report.as_json`) as the page shows them."""
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


def audit_parts(document: Any) -> list[dict[str, Any]]:
    """An audit.json as tables of text: each list of equal records in it becomes one table."""
    parts: list[dict[str, Any]] = []
    _gather(document, "Audit", parts)
    return parts


def _gather(value: Any, title: str, parts: list[dict[str, Any]]) -> None:
    if isinstance(value, Mapping):
        plain = {k: v for k, v in value.items() if not isinstance(v, Mapping | list)}
        if plain:
            rows = [[str(k), _shown(v)] for k, v in plain.items()]
            parts.append({"title": title, "notes": [], "columns": ["", "Value"], "rows": rows})
        for key, inner in value.items():
            if isinstance(inner, Mapping | list):
                _gather(inner, str(key), parts)
    elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
        columns = list(dict.fromkeys(key for row in value for key in row))
        rows = [[_shown(row.get(c)) for c in columns] for row in value]
        parts.append({"title": title, "notes": [], "columns": [str(c) for c in columns], "rows": rows})
    elif isinstance(value, list):
        parts.append({"title": title, "notes": [_shown(v) for v in value], "columns": [], "rows": []})


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_shown(v) for v in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_shown(v)}" for k, v in value.items())
    return str(value)


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
