"""python -m analysis bench: measured speeds of this package on this machine, as JSON."""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=10_000, help="run folders to collect")
    parser.add_argument("--rows", type=int, default=500, help="rows in each metrics.jsonl")


def command(arguments: argparse.Namespace) -> int:
    print(json.dumps(bench(arguments.runs, arguments.rows), indent=1))
    return 0


def bench(runs: int, rows: int) -> dict[str, Any]:
    """Seconds and memory of collecting a grid, and of drawing 8 variants x 5 seeds x 50,000 steps."""
    return {**_collect(runs, rows), **_draw()}


class _Planned:
    """What collect asks of a planned run, without a configuration."""

    def __init__(self, number: int) -> None:
        self.study, self.variant, self.seed = "bench", f"v{number // 10}", number % 10
        self.identity = "0123456789"

    def folder(self, runs_dir: Path) -> Path:
        return Path(runs_dir) / self.study / self.variant / f"seed{self.seed}-{self.identity}"


def _collect(runs: int, rows: int) -> dict[str, Any]:
    from analysis.collect import collect

    planned = [_Planned(number) for number in range(runs)]
    study: Any = SimpleNamespace(name="bench", path=Path("bench"), runs=lambda: planned)
    lines = "".join(
        json.dumps(
            {
                **{"attempt": 1, "kind": "train", "epoch": step // 10 + 1, "step": step + 1},
                **{"loss": 1.2345678 / (step + 1), "loss/id": 0.512 / (step + 1)},
                **{"lr": 1e-3, "grad_norm": 1.0 + step * 0.123},
            }
        )
        + "\n"
        for step in range(rows)
    )
    result = json.dumps({"attempt": 1, "best": {"epoch": 3, "mAP": 0.5}, "final": {"mAP": 0.4}})
    with tempfile.TemporaryDirectory() as temporary:
        for run in planned:
            folder = run.folder(Path(temporary))
            folder.mkdir(parents=True)
            (folder / "metrics.jsonl").write_text(lines)
            (folder / "run.json").write_text('{"study": "bench", "code": {"digest": "x"}}')
            (folder / "result.json").write_text(result)
        start = time.perf_counter()
        collected = collect([study], temporary)
        seconds = time.perf_counter() - start
    return {
        "collect_runs": runs,
        "collect_rows_each": rows,
        "collect_values": len(collected.rows),
        "collect_seconds": round(seconds, 2),
        "collect_peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def _draw() -> dict[str, Any]:
    from analysis.binning import binned, grid
    from analysis.curvedata import CurveSet, SeedCurve, VariantCurve
    from analysis.figurestyle import saved, styled
    from analysis.outcomes import Outcome, Run
    from analysis.venues import VENUES

    variants, seeds, steps = 8, 5, 50_000
    rng = np.random.default_rng(0)
    step = np.arange(1, steps + 1)
    start = time.perf_counter()
    on = grid(step, 400)
    made = []
    for number in range(variants):
        values = 2 * np.exp(-step / 9000) + 0.1 * rng.random((seeds, steps)) + 0.2 * number
        lines = [SeedCurve(s, "completed", binned(step, values[s], on), None) for s in range(seeds)]
        table = np.stack([line.line.mean for line in lines])
        runs = tuple(Run(s, "completed", "", None, None, "", {}) for s in range(seeds))
        outcome = Outcome("bench", f"v{number}", f"v{number}", None, runs)
        low, high = table.min(axis=0), table.max(axis=0)
        whole = np.ones(on.bins, bool)
        x = lines[0].line.x
        made.append(
            VariantCurve(f"v{number}", outcome, tuple(lines), x, table.mean(axis=0), low, high, whole)
        )
    curves = CurveSet("loss", "train", 1.0, None, on, tuple(made))
    with styled(VENUES["iclr"]):
        files = saved(_figure(curves))
    return {
        "curves": f"{variants} variants x {seeds} seeds x {steps} steps",
        "curves_seconds": round(time.perf_counter() - start, 2),
        "curves_pdf_kb": round(len(files["pdf"]) / 1000, 1),
    }


def _figure(curves: Any) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from analysis.curves import draw_curve
    from analysis.palette import COLOURS, Style

    picture = Figure(figsize=(5.5, 3.0), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    for number, curve in enumerate(curves.curves):
        draw_curve(axes, curve, Style(COLOURS[number]), curves, log=False)
    return picture
