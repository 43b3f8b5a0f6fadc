"""python -m benchmarks [NAME ...]: measured speeds of this machine, ours beside a plain way.

Each measurement runs in a process of its own and times both sides in turns. The last record in
benchmarks/records of the same kind of machine is compared: a ratio that fell by more than the noise of
both is a regression, named at the end, and the exit code is 1. `--record` writes a record to commit,
and the newest one of each kind of machine into docs/performance.md.
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

from benchmarks.machine import machine, pick_device
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
# What tells two cases of one measurement apart, in the order of its words.
CASE = (
    *("name", "backbone", "size", "form", "images", "captions", "encoder", "kernel", "batch", "amp"),
    *("folders", "runs", "collect_runs", "queries", "curves", "epochs", "together"),
)


def _step(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks import step

    yield step.run(pick_device(options.device))


def _data(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks import reid

    device = pick_device(options.device)
    on_gpu = device.type == "cuda"
    yield reid.images(device, sizes=((256, 128),), repeats=5) if on_gpu else reid.images(device)


def _evaluation(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks import reid

    yield reid.ranking(pick_device(options.device))


def _frozen(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks import reid

    yield reid.frozen(pick_device(options.device))


def _logging(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks import runs

    yield runs.logging(pick_device(options.device))


def _crossnet(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks import crossnet

    device = pick_device(options.device).type
    # On a GPU a block with which the loop over captions is soon done.
    block, repeats = ((128, 128), 5) if device == "cuda" else (None, 5)
    yield crossnet.run(device, form=options.form, block=block, repeats=repeats)


def _coco(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks import coco

    yield coco.run(pick_device(options.device))


def _dispatch(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks.dispatch import bench

    yield from bench(options.folders, compared=200, expanded=1_000)


def _analysis(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks.analysis import bench

    yield from bench(options.runs, rows=500)


def _packing(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks.dispatch import packing

    yield packing(options.together)


def _whole_run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks.runs import whole_run

    yield whole_run(pick_device(options.device))


@dataclass(frozen=True)
class Measurement:
    """What is measured, and whether a plain `python -m benchmarks` measures it on a CPU and a GPU."""

    text: str
    results: Callable[[argparse.Namespace], Iterator[dict[str, Any]]]
    on_cpu: bool = True
    on_gpu: bool = True


MEASUREMENTS = {
    "step": Measurement(
        "a training step beside DeMo's: three encoder calls, one group a parameter", _step
    ),
    "data": Measurement("cached images beside decoding JPEG files", _data),
    "eval": Measurement("ranking 836 x 836 beside a loop over queries", _evaluation),
    "frozen": Measurement("a step on a frozen backbone's cached outputs beside calling it", _frozen),
    "logging": Measurement("a logged row and the steps between two rows", _logging),
    "crossnet": Measurement("the batched cross-net beside the loop over captions", _crossnet),
    "coco": Measurement("evaluation of 5,000 x 25,000, projected from a slice of it", _coco),
    "dispatch": Measurement(
        "status, plan and expansion of many runs beside reading every file", _dispatch, on_gpu=False
    ),
    "analysis": Measurement(
        "reading a grid beside row by row; curves beside every step", _analysis, on_gpu=False
    ),
    "packing": Measurement("several runs at once beside one after the other", _packing, on_cpu=False),
    "run": Measurement("a whole run of RGBNT201's shape (minutes on a GPU)", _whole_run, on_cpu=False),
}


@dataclass(frozen=True)
class Row:
    """One case of one measurement; seconds are medians, None where only one side is measured."""

    bench: str
    case: str
    ours: float | None
    reference: float | None
    speedup: float | None
    spread: float


def rows(result: dict[str, Any]) -> Iterator[Row]:
    """The table's rows of what a measurement gave."""
    for case in result.get("cases") or [result]:
        timed = case.get("compared", case)
        if (
            timed is not case
        ):  # timed on many, where the plain way would take minutes, and beside it on few
            words = [_word(key, case[key]) for key in CASE if case.get(key) is not None]
            yield Row(result["bench"], ", ".join(words), case["seconds"], None, None, 0.0)
            case = timed
        seconds = timed.get("seconds")
        seconds = seconds if isinstance(seconds, dict) else {"ours": seconds}
        ours = seconds.get("ours") or seconds.get("row") or case.get("run_seconds")
        words = [_word(key, case[key]) for key in CASE if case.get(key) is not None]
        yield Row(
            result["bench"],
            ", ".join(words),
            ours,
            seconds.get("reference"),
            timed.get("speedup"),
            timed.get("spread", 0.0),
        )


def _word(key: str, value: Any) -> str:
    if key == "size":
        return "x".join(map(str, value))
    if key == "encoder":
        return f"{value['patches']} patches"
    if key == "amp" and isinstance(value, dict):
        return f"amp {value['ours']}"
    return str(value) if isinstance(value, str) and key != "amp" else f"{key} {value}"


@dataclass(frozen=True)
class Change:
    """A case whose ratio fell since a record by more than the noise of both."""

    row: Row
    before: float
    noise: float

    def __str__(self) -> str:
        return (
            f"REGRESSION {self.row.bench} ({self.row.case}): ratio {self.row.speedup:.2f}, was "
            f"{self.before:.2f}; noise {100 * self.noise:.0f} %"
        )


def regressions(now: Sequence[Row], record: dict[str, Any]) -> list[Change]:
    """Cases of both whose ratio fell by more than `LEAST_NOISE` and `SPREADS` spreads of the two."""
    before = {(r["bench"], r["case"]): Row(**r) for r in record["rows"]}
    found = []
    for row in now:
        old = before.get((row.bench, row.case))
        if old is None or not old.speedup or not row.speedup:
            continue
        noise = max(LEAST_NOISE, SPREADS * (row.spread + old.spread))
        if row.speedup < old.speedup * (1 - noise):
            found.append(Change(row, old.speedup, noise))
    return found


def last_record(here: dict[str, Any], folder: Path = RECORDS) -> tuple[Path, dict[str, Any]] | None:
    """The newest record of the same kind of machine."""
    for path in sorted(folder.glob("*.json"), reverse=True):
        record = json.loads(path.read_text(encoding="utf-8"))
        if all(record["machine"].get(key) == here.get(key) for key in KIND):
            return path, record
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
    top.add_argument("--json", action="store_true", help="print every result, one object a line")
    top.add_argument("--record", action="store_true", help="write a record of this machine to commit")
    top.add_argument("--form", choices=["laps", "released", "paper"], default="released")
    top.add_argument("--folders", type=at_least(1), default=10_000, help="run folders of `dispatch`")
    top.add_argument("--runs", type=at_least(1), default=3_000, help="run folders of `analysis`")
    top.add_argument("--together", type=at_least(2), default=8, help="runs of `packing`")
    top.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process
    return top


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    options = parser().parse_args(words)
    for name in options.names:
        if name not in MEASUREMENTS:
            print(f"no measurement '{name}'. {did_you_mean(name, MEASUREMENTS)}", file=sys.stderr)
            return 2
    device = pick_device(options.device)
    if options.threads is not None:
        import torch

        torch.set_num_threads(options.threads)
    if options.here:
        for name in options.names:
            for result in MEASUREMENTS[name].results(options):
                print(json.dumps(result), flush=True)
        return 0
    wanted = options.names or [
        name for name, m in MEASUREMENTS.items() if (m.on_gpu if device.type == "cuda" else m.on_cpu)
    ]
    here = machine(device)
    measured: list[Row] = []
    failed: list[str] = []
    for name in wanted:
        try:
            results = _measure(name, words)
        except SdtpsError as error:
            print(error, file=sys.stderr)
            failed.append(name)
            continue
        for result in results:
            if options.json:
                print(json.dumps({**here, **result}), flush=True)
            measured += rows(result)
    found = last_record(here)
    worse = [] if found is None else regressions(measured, found[1])
    if not options.json:
        _print(here, measured, found)
    for change in worse:
        print(change, file=sys.stderr)
    if options.record and not failed:
        print(_write(here, measured))
        PAGE.write_text(with_records(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if worse or failed else 0


def _measure(name: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """The results of one measurement, in a process of its own.

    Raises:
        SdtpsError: it failed; its own messages went to standard error.
    """
    passed = [word for word in words if word not in MEASUREMENTS and word != "--record"]
    command = [sys.executable, "-m", "benchmarks", name, "--here", *passed]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SdtpsError(f"{name}: failed with exit code {done.returncode} (see above)")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _print(
    here: dict[str, Any], measured: Sequence[Row], found: tuple[Path, dict[str, Any]] | None
) -> None:
    from rich.console import Console
    from rich.table import Table

    before = {} if found is None else {(r["bench"], r["case"]): r for r in found[1]["rows"]}
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("bench", "case"):
        table.add_column(heading)
    for heading in ("plain", "ours", "ratio", "± %", "recorded"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in measured:
        old = before.get((row.bench, row.case), {}).get("speedup")
        table.add_row(
            row.bench,
            row.case,
            _seconds(row.reference),
            _seconds(row.ours),
            "" if row.speedup is None else f"{row.speedup:.2f}",
            "" if row.speedup is None else f"{100 * row.spread:.0f}",
            "" if old is None else f"{old:.2f}",
        )
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(", ".join(f"{key} {value}" for key, value in here.items() if value is not None))
    console.print(table)
    if found is None:
        console.print("No record of this kind of machine yet: --record writes one.")
    else:
        console.print(f"Recorded: {found[0].name}, {found[1]['machine']['torch']} torch.")


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _write(here: dict[str, Any], measured: Sequence[Row]) -> Path:
    from sdtps.run.provenance import code_version

    time = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    kind = re.sub(r"[^A-Za-z0-9]+", "-", str(here["gpu"] or here["processor"])).strip("-") or "machine"
    path = RECORDS / f"{time}-{kind}.json"
    RECORDS.mkdir(exist_ok=True)
    commit = code_version()["commit"]
    content = {"machine": here, "commit": commit, "rows": [asdict(row) for row in measured]}
    write_json(path, content)
    return path


def with_records(page: str, folder: Path = RECORDS) -> str:
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
        "| bench | case | plain | ours | ratio | ± % |",
        "|---|---|---|---|---|---|",
    ]
    for row in (Row(**values) for values in record["rows"]):
        ratio = ("", "") if row.speedup is None else (f"{row.speedup:.2f}", f"{100 * row.spread:.0f}")
        cells = (row.bench, row.case, _seconds(row.reference), _seconds(row.ours), *ratio)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
