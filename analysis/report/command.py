"""sdtps report: the curves, tables and runs of studies as one HTML file, or live in a browser."""

from __future__ import annotations

import argparse
import base64
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import commands
from sdtps.system.commandline import at_least
from sdtps.system.errors import SdtpsError

if TYPE_CHECKING:
    from analysis.runs.collect import Collected

CLAIMS = Path("paper/generated/claims.json")


class ReportError(SdtpsError):
    """An input of the report that cannot be used."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands.add_study_arguments(parser)
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE.html")
    parser.add_argument("--title", default="SDTPS results")
    parser.add_argument(
        "--live", action="store_true", help="serve it on this machine and follow running runs"
    )
    parser.add_argument(
        "--port", type=at_least(0), default=8642, help="of --live; 0: any that is free [8642]"
    )
    parser.add_argument(
        "--audit",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a file of `sdtps audit --json`; may be repeated",
    )
    parser.add_argument(
        "--claims",
        type=Path,
        metavar="FILE",
        help=f"claims.json; default: {CLAIMS}, for the runs that it was decided on",
    )
    parser.add_argument(
        "--patches",
        type=Path,
        action="append",
        default=[],
        metavar="FILE.png",
        help="a picture made by `sdtps patches`; may be repeated",
    )


def command(arguments: argparse.Namespace) -> int:
    """Write the report, or serve it until Ctrl-C."""
    from analysis.runs.collect import collect

    studies = commands.load(arguments)
    options: dict[str, Any] = {
        "audits": arguments.audit,
        "claims": arguments.claims or own_claims(arguments.runs_dir),
        "patches": arguments.patches,
    }
    if not arguments.live:
        collected = collect(studies, arguments.runs_dir)
        write(collected, arguments.output, title=arguments.title, **options)
        print(arguments.output)
        return 0
    from analysis.report.live import Source, served

    def make() -> dict[str, Any]:
        return report_data(collect(studies, arguments.runs_dir), **options)

    folders = [arguments.runs_dir / study.name for study in studies]
    with served(Source(arguments.title, make, folders), arguments.port) as address:
        print(f"{address}  (this machine only; Ctrl-C ends it)", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return 0


def own_claims(runs_dir: Path) -> Path | None:
    """The claims of this checkout's paper, where these are the runs that they were decided on.

    Another store's report must not show verdicts that its runs had no part in.
    """
    if not CLAIMS.is_file() or Path(runs_dir).resolve() != (CLAIMS.parents[2] / "runs").resolve():
        return None
    return CLAIMS


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
    from analysis.report.payload import page
    from sdtps.system.files import write_text

    data = report_data(collected, audits=audits, claims=claims, patches=patches)
    write_text(output, page(title, data))


def report_data(
    collected: Collected,
    *,
    audits: Sequence[Path] = (),
    claims: Path | None = None,
    patches: Sequence[Path] = (),
) -> dict[str, Any]:
    """What the page shows, with the files that were asked for.

    Raises:
        ReportError: one of them cannot be read.
    """
    audit = [part for path in audits for part in _audit(path)] if audits else None
    entries = None if claims is None else claim_entries(claims)
    pictures = [picture(path) for path in patches]
    from analysis.report.payload import payload
    from analysis.runs.comparable import KINDS, refuse_to_average
    from analysis.tables.study import tables

    marks = refuse_to_average(collected, allow=KINDS)
    return payload(
        collected,
        tables={study.name: tables(collected, study, marks) for study in collected.studies},
        audit=audit,
        claims=entries,
        pictures=pictures,
    )


def _audit(path: Path) -> list[dict[str, Any]]:
    from analysis.report.payload import audit_parts

    try:
        return audit_parts(_json(path))
    except (KeyError, TypeError) as error:
        raise ReportError(
            f"{path}: not an audit ({error}); make one: sdtps audit STUDY --json FILE"
        ) from None


def claim_entries(path: Path) -> list[dict[str, Any]]:
    """Entries of a claims.json (see `analysis.claims.report.as_json`) as the page shows them.

    Raises:
        ReportError: it cannot be read, or is none.
    """
    try:
        return [
            {
                "id": str(claim["id"]),
                "text": str(claim["claim"]),
                "source": str(claim.get("source", "")),
                "verdict": str(claim["verdict"]),
                "why": str(claim.get("evidence") or claim.get("why") or ""),
                "runs": [str(run) for run in claim.get("runs", [])],
            }
            for claim in _json(path)["claims"]
        ]
    except (KeyError, TypeError) as error:
        raise ReportError(f"{path}: not a file of `sdtps claims --json`: {error}") from None


def picture(path: Path) -> dict[str, str]:
    """A PNG as a data URI, with the caption that `sdtps patches` wrote beside it."""
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
