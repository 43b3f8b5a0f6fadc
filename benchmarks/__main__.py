"""python -m benchmarks [NAME ...]: measured speeds of this machine, ours beside a plain way.

Each measurement times both sides in turns, on one CPU thread in processor time. `--record` writes a
record to commit, and the newest one of each kind of machine into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks import crossnet, scale, training
from benchmarks.timing import Row, machine
from sdtps.run.provenance import code_version
from sdtps.system.commandline import Parser, at_least
from sdtps.system.files import write_json

RECORDS = Path(__file__).with_name("records")
PAGE = Path(__file__).parents[1] / "docs/performance.md"
BEGIN, END = "<!-- records: written by --record -->", "<!-- end of records -->"
# What the records of one kind of machine have in common.
KIND = ("processor", "gpu", "threads")

MEASUREMENTS: dict[str, tuple[str, Callable[..., Iterator[Row]]]] = {
    "step": ("a training step beside DeMo's", training.step),
    "crossnet": ("the batched cross-net beside the loop over captions", crossnet.run),
    "scale": ("status, plan, tables, report and paper of many runs", scale.verbs),
}


def main(words: list[str] | None = None) -> int:
    listed = "\n".join(f"  {name:10} {text}" for name, (text, _) in MEASUREMENTS.items())
    parser = Parser(
        prog="python -m benchmarks",
        description=f"{__doc__}\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", choices=MEASUREMENTS, metavar="NAME", help="[all]")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if there is one")
    parser.add_argument("--threads", type=at_least(1), default=1, help="of the CPU [1]")
    forms = ["laps", "released", "paper"]
    parser.add_argument("--form", choices=forms, default="released", help="of crossnet [released]")
    parser.add_argument("--record", action="store_true", help="write a record to commit")
    options = parser.parse_args(words)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.set_num_threads(options.threads)
    rows = []
    for name in options.names or MEASUREMENTS:
        print(f"measuring {name} ...", file=sys.stderr)
        form = {"form": options.form} if name == "crossnet" else {}
        rows += [asdict(row) for row in MEASUREMENTS[name][1](device, **form)]
    now = datetime.now(UTC)
    record = {"machine": machine(device), "commit": code_version()["commit"], "rows": rows}
    print(_section(now.strftime("%Y-%m-%d"), record))
    if options.record:
        name = str(record["machine"]["gpu"] or record["machine"]["processor"])
        kind = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "machine"
        write_json(RECORDS / f"{now.strftime('%Y-%m-%dT%H%M%SZ')}-{kind}.json", record)
        PAGE.write_text(with_records(PAGE.read_text(encoding="utf-8"), RECORDS), encoding="utf-8")
    return 0


def with_records(page: str, folder: Path) -> str:
    """`page` with the newest record of each kind of machine as a table, between its two marks."""
    newest: dict[str, tuple[str, dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        newest[str([record["machine"].get(key) for key in KIND])] = path.stem[:10], record
    parts = [_section(day, record) for day, record in newest.values()]
    before, rest = page.split(BEGIN)
    return "\n\n".join([before + BEGIN, *parts, END + rest.split(END)[1]])


def _section(day: str, record: dict[str, Any]) -> str:
    here, commit = record["machine"], str(record["commit"])[:7]
    known = {k: v for k, v in here.items() if v is not None and k not in ("host", "processor", "gpu")}
    lines = [
        f"**{here['gpu'] or here['processor']}** ({', '.join(f'{k} {v}' for k, v in known.items())}; "
        f"{day}, commit {commit})",
        "",
        "| bench | case | plain | ours | ratio | ± % | plain, MiB | ours, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in (Row(**values) for values in record["rows"]):
        ratio = ("", "") if row.speedup is None else (f"{row.speedup:.2f}", f"{100 * row.spread:.0f}")
        peaks = ("" if x is None else f"{x:.0f}" for x in (row.reference_mib, row.peak_mib))
        cells = (row.bench, row.case, _seconds(row.reference), _seconds(row.ours), *ratio, *peaks)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"


if __name__ == "__main__":
    sys.exit(main())
