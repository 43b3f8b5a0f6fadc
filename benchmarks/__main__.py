"""python -m benchmarks [NAME ...]: measured speeds of this machine, ours beside a plain way.

Each measurement runs in a process of its own and times both sides in turns, on one CPU thread in
processor time. The last record in benchmarks/records of the same kind of machine is compared: a ratio
that fell by more than the noise of both is a regression, named at the end, and the exit code is 1.
`--record` writes a record to commit, and the newest one of each kind of machine into
docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks import crossnet, scale, training
from benchmarks.timing import Row, machine
from sdtps.run.provenance import code_version
from sdtps.system.commandline import Parser, at_least
from sdtps.system.errors import SdtpsError, did_you_mean
from sdtps.system.files import write_json

RECORDS = Path(__file__).with_name("records")
PAGE = Path(__file__).parents[1] / "docs/performance.md"
BEGIN, END = "<!-- records: written by --record -->", "<!-- end of records -->"
LEAST_NOISE = 0.1  # a ratio moves by a tenth between two runs on a quiet machine
SPREADS = 2.0  # and by twice its turns' spread on a busy one
# What a record's machine has in common with this one where the two are of one kind.
KIND = ("processor", "gpu", "threads")


@dataclass(frozen=True)
class Measurement:
    """What is measured, and whether on a GPU too."""

    text: str
    rows: Callable[[torch.device], Iterator[Row]]
    on_gpu: bool = True


MEASUREMENTS = {
    "step": Measurement("a training step beside DeMo's", training.step),
    "logging": Measurement("a logged row beside the steps between two rows", training.logging),
    "crossnet": Measurement("the batched cross-net beside the loop over captions", crossnet.run),
    "scale": Measurement(
        "status, plan, tables, report and paper of many runs", scale.verbs, on_gpu=False
    ),
}


def regressions(now: Sequence[Row], record: dict[str, Any]) -> list[str]:
    """Cases of both whose ratio fell by more than `LEAST_NOISE` and `SPREADS` spreads of the two."""
    before = {(r["bench"], r["case"]): Row(**r) for r in record["rows"]}
    messages = []
    for row in now:
        old = before.get((row.bench, row.case))
        if old is None or not old.speedup or not row.speedup:
            continue
        noise = max(LEAST_NOISE, SPREADS * (row.spread + old.spread))
        if row.speedup < old.speedup * (1 - noise):
            messages.append(
                f"REGRESSION {row.bench} ({row.case}): ratio {row.speedup:.2f}, was {old.speedup:.2f}; "
                f"noise {100 * noise:.0f} %"
            )
    return messages


def last_record(here: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """The newest record of the same kind of machine."""
    for path in sorted(folder.glob("*.json"), reverse=True):
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if all(record["machine"].get(key) == here.get(key) for key in KIND):
            return record
    return None


def parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:10} {m.text}" for name, m in MEASUREMENTS.items())
    top = Parser(
        prog="python -m benchmarks",
        description=f"{__doc__}\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("names", nargs="*", metavar="NAME", help="default: all that this machine is for")
    top.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if there is one")
    top.add_argument("--threads", type=at_least(1), help="CPU threads; default: torch's")
    top.add_argument("--json", action="store_true", help="print every row, one object a line")
    top.add_argument("--record", action="store_true", help="write a record of this machine to commit")
    top.add_argument("--form", choices=["laps", "released", "paper"], help="of `crossnet` [released]")
    top.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process
    return top


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    options = parser().parse_args(words)
    for name in options.names:
        if name not in MEASUREMENTS:
            print(f"no measurement '{name}'. {did_you_mean(name, MEASUREMENTS)}", file=sys.stderr)
            return 2
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.here:
        for name in options.names:
            form = {"form": options.form} if name == "crossnet" and options.form else {}
            for row in MEASUREMENTS[name].rows(device, **form):
                print(json.dumps(asdict(row)), flush=True)
        return 0
    here = machine(device)
    measured: list[Row] = []
    failed = False
    for name, measurement in MEASUREMENTS.items():
        is_default = not options.names and (measurement.on_gpu or device.type == "cpu")
        if is_default or name in options.names:
            try:
                measured += _measure(name, words)
            except SdtpsError as error:
                print(error, file=sys.stderr)
                failed = True
    record = last_record(here, RECORDS)
    if options.json:
        for row in measured:
            print(json.dumps({**here, **asdict(row)}))
    else:
        print(_section(datetime.now(UTC).strftime("%Y-%m-%d"), _record(here, measured)))
    worse = [] if record is None else regressions(measured, record)
    for message in worse:
        print(message, file=sys.stderr)
    if options.record and not failed:
        print(_write(_record(here, measured)))
        PAGE.write_text(with_records(PAGE.read_text(encoding="utf-8"), RECORDS), encoding="utf-8")
    return 1 if worse or failed else 0


def _measure(name: str, words: Sequence[str]) -> list[Row]:
    """The rows of one measurement, made in a process of its own.

    Raises:
        SdtpsError: it failed; its own messages went to standard error.
    """
    passed = [word for word in words if word not in MEASUREMENTS and word != "--record"]
    command = [sys.executable, "-m", "benchmarks", name, "--here", *passed]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SdtpsError(f"{name}: failed with exit code {done.returncode} (see above)")
    return [Row(**json.loads(line)) for line in done.stdout.splitlines()]


def _record(here: dict[str, Any], measured: Sequence[Row]) -> dict[str, Any]:
    rows = [asdict(row) for row in measured]
    return {"machine": here, "commit": code_version()["commit"], "rows": rows}


def _write(record: dict[str, Any]) -> Path:
    name = str(record["machine"]["gpu"] or record["machine"]["processor"])
    kind = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "machine"
    path = RECORDS / f"{datetime.now(UTC).strftime('%Y-%m-%dT%H%M%SZ')}-{kind}.json"
    write_json(path, record)
    return path


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
