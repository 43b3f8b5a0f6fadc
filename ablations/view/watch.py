"""The live table: state, epoch, loss with its curve, metric and time left of the runs that matter."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ablations.store.life import RunStatus, run_states
from ablations.study.arguments import add_study, read_study
from ablations.study.model import Study
from ablations.view.curve import LossCurve
from ablations.view.status import counted, word
from sdtps.commandline import add_runs_dir, add_seeds, add_variants

STYLES = {
    "completed": "green",
    "running": "cyan",
    "requeued": "yellow",
    "queued": "dim",
    "planned": "dim",
    "interrupted": "yellow",
    "diverged": "magenta",
    "failed": "red",
    "cancelled": "red",
}
REFRESH_SECONDS = 3.0


class Curves:
    """One loss curve a run, each read on from where it was."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._known: dict[str, LossCurve] = {}

    def of(self, status: RunStatus) -> LossCurve:
        name = status.run.name
        if name not in self._known:
            self._known[name] = LossCurve(status.run.folder(self._runs_dir) / "metrics.jsonl")
        curve = self._known[name]
        if status.state not in ("planned", "queued"):
            curve.update()
        return curve


def duration(seconds: float | None) -> str:
    """`42 s`, `12 min`, `3 h 05`."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d}"


def table(study: Study, statuses: Sequence[RunStatus], curves: Curves, rows: int) -> Group:
    """At most `rows` runs: active ones first, then those that ended badly, then the rest."""
    order = ("running", "requeued", "failed", "diverged", "cancelled", "interrupted", "completed")
    rank = {state: place for place, state in enumerate(order)}
    ordered = sorted(statuses, key=lambda s: rank.get(s.state, len(order)))
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for title, side in (
        ("run", "left"),
        ("state", "left"),
        ("epoch", "right"),
        ("loss", "right"),
        ("", "left"),
        (next(iter(study.metrics), "metric"), "right"),
        ("to go", "right"),
        ("node", "left"),
    ):
        grid.add_column(title, justify="right" if side == "right" else "left", no_wrap=True)
    for status in ordered[:rows]:
        curve = curves.of(status)
        grid.add_row(
            Text(f"{status.run.variant}/seed{status.run.seed}"),
            Text(word(status), style=STYLES.get(status.state, "")),
            "" if status.epoch is None else str(status.epoch),
            "" if curve.loss is None else f"{curve.loss:.4g}",
            curve.drawn(),
            metric(study, curve),
            duration(status.eta) if status.state == "running" else "",
            status.node or "",
        )
    hidden = len(ordered) - rows
    parts: list[Text | Table] = [Text(f"{study.name}: {counted(statuses)}", style="bold"), grid]
    if hidden > 0:
        parts.append(Text(f"and {hidden} more: {counted(ordered[rows:])}", style="dim"))
    return Group(*parts)


def metric(study: Study, curve: LossCurve) -> str:
    """The last evaluation's value of the study's first metric, in the unit in which it is printed."""
    name, spec = next(iter(study.metrics.items()), ("", None))
    value = curve.evaluation.get(name)
    if spec is None or not isinstance(value, (int, float)):
        return ""
    return f"{value * (100 if spec.unit == '%' else 1):.{spec.digits}f}"


def watch(study: Study, runs_dir: Path, *, once: bool = False, console: Console | None = None) -> int:
    """Show the table until nothing goes on by itself any more (or Ctrl-C). Reads only."""
    console = console or Console()
    curves = Curves(runs_dir)
    statuses = run_states(study.runs(), runs_dir)
    rows = max(5, console.height - 5)
    if once:
        console.print(table(study, statuses, curves, len(statuses)))
        return 0
    try:
        with Live(table(study, statuses, curves, rows), console=console, auto_refresh=False) as live:
            while any(s.active and not s.held for s in statuses):
                time.sleep(REFRESH_SECONDS)
                statuses = run_states(study.runs(), runs_dir)
                rows = max(5, console.height - 5)
                live.update(table(study, statuses, curves, rows), refresh=True)
    except KeyboardInterrupt:
        console.print("The runs go on; look again with the same command.")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    add_runs_dir(parser)
    add_variants(parser)
    add_seeds(parser)
    parser.add_argument("--once", action="store_true", help="print it once, with every run")


def command(arguments: argparse.Namespace) -> int:
    return watch(read_study(arguments), arguments.runs_dir.resolve(), once=arguments.once)
