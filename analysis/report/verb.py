"""sdtps report: the curves, tables and runs of studies as one HTML file, or live in a browser."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import verbs
from analysis.report.payload import page, payload
from sdtps.system.commandline import at_least

if TYPE_CHECKING:
    from analysis.runs.collect import Collected


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs.add_study_arguments(parser)
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE.html")
    parser.add_argument(
        "--live", action="store_true", help="serve it on this machine and follow running runs"
    )
    parser.add_argument(
        "--port", type=at_least(0), default=8642, help="of --live; 0: any that is free [8642]"
    )


def command(arguments: argparse.Namespace) -> int:
    """Write the report (1 where finished runs did not log a metric), or serve it until Ctrl-C."""
    from analysis.runs.collect import collect

    studies = verbs.load(arguments)
    if not arguments.live:
        collected = collect(studies, arguments.runs_dir)
        write(collected, arguments.output)
        print(arguments.output)
        return verbs.tell_unlogged(collected)
    from analysis.report.live import Source, served

    def make() -> dict[str, Any]:
        return report_data(collect(studies, arguments.runs_dir))

    folders = [arguments.runs_dir / study.name for study in studies]
    with served(Source(make, folders), arguments.port) as address:
        print(f"{address}  (this machine only; Ctrl-C ends it)", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return 0


def write(
    collected: Collected,
    output: Path,
    *,
    audits: Sequence[Mapping[str, Any]] = (),
    claims: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write the report of `collected` to `output`, whole or not at all."""
    from sdtps.system.files import replacing

    parts = page(report_data(collected, audits=audits, claims=claims))
    with replacing(output) as stream:
        stream.writelines(parts)


def report_data(
    collected: Collected,
    *,
    audits: Sequence[Mapping[str, Any]] = (),
    claims: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """What the page shows.

    Args:
        audits: as `sdtps audit --json` writes them. claims: see `analysis.claims.report.as_json`.
    """
    from analysis.tables.study import tables

    marks = verbs.tell_mixed(collected, allow=verbs.CONTENTS)
    made = {study.name: tables(collected, study, marks) for study in collected.studies}
    return payload(collected, tables=made, audits=audits, claims=claims)
