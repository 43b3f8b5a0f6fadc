"""Reading a grid of runs beside reading row by row; drawing curves beside drawing every step."""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ablations.study.schema import FigureSpec
from analysis.figures.curves import Plot, draw_curves
from analysis.figures.style import COLOURS, VENUES, Style, saved, styled
from analysis.results.curves import Curve, curve_of
from analysis.results.outcomes import Outcome
from analysis.runs import metrics as metricrows
from analysis.runs.collect import collect
from analysis.runs.metrics import Block, MetricRows
from analysis.runs.record import Run
from sdtps.run.folder import RunFolder

REPEATS = 3  # of what takes seconds
READ_RUNS = 100  # run folders that both readers read


def bench(runs: int, rows: int, steps: int = 50_000) -> Iterator[dict[str, Any]]:
    """Collecting a grid beside reading row by row; drawing curves beside drawing every step."""
    yield _collect(runs, rows)
    yield _draw(steps)


class _Planned:
    """What collect asks of a planned run, without a configuration."""

    def __init__(self, number: int) -> None:
        self.study, self.variant, self.seed = "bench", f"v{number // 10}", number % 10
        self.identity = "0123456789"

    def folder(self, runs_dir: Path) -> Path:
        return Path(runs_dir) / self.study / self.variant / f"seed{self.seed}-{self.identity}"


def _collect(runs: int, rows: int) -> dict[str, Any]:
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
        seconds = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            values = sum(
                b.values.size for run in collect([study], temporary).runs for b in run.rows.blocks
            )
            seconds.append(time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Only now: it loads torch, whose memory is none of collect's.
        from benchmarks.machine import compare, machine, pick_device

        cpu = pick_device("cpu")
        folders = [RunFolder(run.folder(Path(temporary))) for run in planned[:READ_RUNS]]
        timed = compare(
            lambda: [metricrows.read(folder.metrics_file) for folder in folders],
            lambda: [pd.DataFrame(folder.resolved_metrics()) for folder in folders],
            cpu,
            repeats=REPEATS,
            warmup=1,
        )
    return {
        "bench": "collect",
        **machine(cpu),
        "versions": {"pandas": pd.__version__, "numpy": np.__version__},
        "read_runs": len(folders),
        **timed,
        "collect_runs": runs,
        "collect_rows_each": rows,
        "collect_values": values,
        "collect_seconds": round(statistics.median(seconds), 2),
        "collect_peak_gib": round(peak / 2**20, 2),
    }


def _draw(steps: int) -> dict[str, Any]:
    from benchmarks.machine import compare, machine, pick_device

    variants, seeds = 8, 5
    rng = np.random.default_rng(0)
    step = np.arange(1, steps + 1)
    values = [
        2 * np.exp(-step / 9000) + 0.1 * rng.random((seeds, steps)) + 0.2 * number
        for number in range(variants)
    ]
    files: dict[str, dict[str, bytes]] = {}

    def ours() -> None:
        files["ours"] = saved(_figure(_curves(step, values)))

    def reference() -> None:
        files["reference"] = saved(_every_step(step, values))

    with styled(VENUES["article"]):
        timed = compare(ours, reference, pick_device("cpu"), repeats=REPEATS, warmup=0)
    return {
        "bench": "curves",
        **machine(pick_device("cpu")),
        "versions": {"matplotlib": matplotlib.__version__, "numpy": np.__version__},
        "curves": f"{variants} variants x {seeds} seeds x {steps} steps",
        **timed,
        "pdf_kb": {name: round(len(made["pdf"]) / 1000, 1) for name, made in files.items()},
    }


def _curves(step: np.ndarray, values: list[np.ndarray]) -> list[Curve]:
    made = []
    for number, mine in enumerate(values):
        name, place = f"v{number}", np.stack([step * 0 + 1, step * 0, step], axis=1)
        logged = [Block("train", place, ("loss",), line[:, None]) for line in mine]
        runs = tuple(
            Run(study="bench", variant=name, seed=s, state="completed", rows=MetricRows((b,), (), 0))
            for s, b in enumerate(logged)
        )
        made.append(curve_of(Outcome("bench", name, name, name, runs), "train", "loss"))
    return made


def _picture() -> Figure:
    picture = Figure(figsize=(5.5, 3.0), layout="constrained")
    FigureCanvasAgg(picture)
    return picture


def _figure(curves: list[Curve]) -> Figure:
    picture = _picture()
    study: Any = SimpleNamespace(name="bench", metrics={})
    shown = Plot(study, FigureSpec(name="bench"), tuple(curves), 1.0, epochs=False, log=False)
    styles = {c.variant: Style(COLOURS[n % len(COLOURS)]) for n, c in enumerate(curves)}
    draw_curves(picture.subplots(), shown, curves, styles)
    return picture


def _every_step(step: np.ndarray, values: list[np.ndarray]) -> Figure:
    """The plain way: a mean, its band and each seed, with a point for every step."""
    picture = _picture()
    axes = picture.subplots()
    for number, mine in enumerate(values):
        colour = COLOURS[number % len(COLOURS)]
        axes.fill_between(step, mine.min(axis=0), mine.max(axis=0), color=colour, alpha=0.2)
        for line in mine:
            axes.plot(step, line, color=colour, alpha=0.3, linewidth=0.5)
        axes.plot(step, mine.mean(axis=0), color=colour)
    return picture
