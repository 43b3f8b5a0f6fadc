"""The live table: state, epoch, loss with its curve, metric and time left of the runs that matter."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ablations.store.equal import shown_states
from ablations.store.states import RunStatus
from ablations.study.arguments import add_study, filtered, read_studies
from ablations.study.model import Study
from ablations.view.logs import Tail
from ablations.view.status import counted, word
from sdtps.system.commandline import add_runs_dir, add_seeds, add_variants

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
Curves = dict[Path, "LossCurve"]  # by run folder


def duration(seconds: float | None) -> str:
    """`42 s`, `12 min`, `3 h 05`."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d}"


# Columns beside the run's name: the width of each, and the terminal's width from which it shows.
COLUMNS = {
    **{"state": (16, 0), "loss": (7, 0), "curve": (16, 0), "metric": (6, 64)},
    **{"epoch": (5, 76), "to go": (8, 88), "node": (12, 104)},
}
NUMBERS = ("loss", "metric", "epoch", "to go")
NARROW = 64  # below: short states and curves


def table(
    study: Study, statuses: Sequence[RunStatus], curves: Curves, rows: int, width: int = 100
) -> Group:
    """At most `rows` runs, active ones first, then those that ended badly; as many columns as fit.

    Args:
        curves: takes those that are missing; each is read on from where it was.
    """
    order = ("running", "requeued", "unknown", "failed", "diverged", "cancelled", "interrupted")
    rank = {state: place for place, state in enumerate((*order, "completed"))}
    ordered = sorted(statuses, key=lambda s: rank.get(s.state, len(rank)))
    widths = {title: wide for title, (wide, least) in COLUMNS.items() if width >= least}
    narrow = width < NARROW
    taken = sum((min(wide, 9) if narrow else wide) + 2 for wide in widths.values())
    longest = max(8, width - taken - 1)
    grid = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    grid.add_column("run", no_wrap=True)
    for title in widths:
        head = next(iter(study.metrics), "metric") if title == "metric" else title
        grid.add_column(head, justify="right" if title in NUMBERS else "left", no_wrap=True)
    for status in ordered[:rows]:
        curve = curves.setdefault(status.folder, LossCurve(status.folder / "metrics.jsonl"))
        if status.state not in ("planned", "queued"):
            curve.update()
        name = f"{status.run.variant}/{'' if narrow else 'seed'}{status.run.seed}"
        state = status.state if narrow else word(status)
        cells: dict[str, str | Text] = {
            "state": Text(state, style=STYLES.get(status.state, "")),
            "loss": f"{curve.losses[-1]:.3g}" if curve.losses else "",
            "curve": sparkline(curve.losses, 8 if narrow else 16),
            "metric": metric(study, curve),
            "epoch": "" if status.epoch is None else str(status.epoch),
            "to go": duration(status.eta) if status.state == "running" else "",
            "node": status.node or "",
        }
        grid.add_row(Text(middle(name, longest)), *(cells[title] for title in widths))
    hidden = len(ordered) - rows
    parts: list[Text | Table] = [Text(f"{study.name}: {counted(statuses)}", style="bold"), grid]
    if hidden > 0:
        parts.append(Text(f"and {hidden} more: {counted(ordered[rows:])}", style="dim"))
    return Group(*parts)


def middle(text: str, width: int) -> str:
    """`text` without its middle where it is longer than `width`: variants differ at their ends."""
    if len(text) <= width:
        return text
    return f"{text[: (width - 1) // 2]}…{text[-(width - 1 - (width - 1) // 2) :]}"


def metric(study: Study, curve: LossCurve) -> str:
    """The last evaluation's value of the study's first metric, in the unit in which it is printed."""
    name, spec = next(iter(study.metrics.items()), ("", None))
    value = curve.evaluation.get(name)
    if spec is None or not isinstance(value, (int, float)):
        return ""
    return f"{value * (100 if spec.unit == '%' else 1):.{spec.digits}f}"


def watch(
    studies: Sequence[Study], runs_dir: Path, *, once: bool = False, console: Console | None = None
) -> int:
    """Show a table for each study until no run is active any more, or Ctrl-C. Only reads."""
    console = console or Console()
    curves: Curves = {}

    def look() -> tuple[list[list[RunStatus]], Group]:
        states = [shown_states(study.runs(), runs_dir) for study in studies]
        rows = max(5, (console.height - 5) // len(studies))
        tables = (
            table(study, statuses, curves, len(statuses) if once else rows, console.width)
            for study, statuses in zip(studies, states, strict=True)
        )
        return states, Group(*tables)

    states, shown = look()
    if once:
        console.print(shown)
        return 0
    try:
        with Live(shown, console=console, auto_refresh=False) as live:
            while any(s.active and not s.held for statuses in states for s in statuses):
                time.sleep(REFRESH_SECONDS)
                states, shown = look()
                live.update(shown, refresh=True)
    except KeyboardInterrupt:
        console.print("The runs go on; look again with the same command.")
    return 0


# -- loss curves ----------------------------------------------------------------------------------

BARS = "▁▂▃▄▅▆▇█"
_WIDE = 50.0  # largest over smallest from which on the heights are logarithmic


class LossCurve:
    """What one metrics.jsonl says so far.

    Attributes:
        losses: training losses in file order.
        evaluation: the last evaluation row.
    """

    def __init__(self, file: Path) -> None:
        self.losses: list[float] = []
        self.evaluation: dict[str, Any] = {}
        self._tail = Tail(file, again=self.losses.clear)

    def update(self) -> None:
        """Take in what was added since."""
        for line in self._tail.lines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(row, dict):
                continue
            if row.get("kind") == "eval":
                self.evaluation = row
            if row.get("kind") == "train" and "loss" in row:
                loss = row["loss"]
                self.losses.append(float(loss) if isinstance(loss, (int, float)) else math.inf)


def sparkline(values: list[float], width: int = 16) -> str:
    """Bins of equal size as bars, each its mean; logarithmic where they span a factor of 50 or more.

    A bin that holds a non-finite value is drawn as ×.
    """
    if not values:
        return ""
    bins = min(width, len(values))
    edges = [round(i * len(values) / bins) for i in range(bins + 1)]
    means = [_mean(values[a:b]) for a, b in itertools.pairwise(edges)]
    finite = [m for m in means if math.isfinite(m)]
    if not finite:
        return "×" * bins
    low, high = min(finite), max(finite)
    if low > 0 and high / low > _WIDE:
        means = [math.log(m) if math.isfinite(m) else m for m in means]
        low, high = math.log(low), math.log(high)
    span = high - low or 1.0
    top = len(BARS) - 1
    return "".join(BARS[round((m - low) / span * top)] if math.isfinite(m) else "×" for m in means)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if all(map(math.isfinite, values)) else math.inf


# -- the verb -------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser, more=True)
    add_runs_dir(parser)
    add_variants(parser)
    add_seeds(parser)
    parser.add_argument("--once", action="store_true", help="print the table once, with every run")


def command(arguments: argparse.Namespace) -> int:
    studies = [filtered(one, arguments.variant, arguments.seed) for one in read_studies(arguments)]
    return watch(studies, arguments.runs_dir.resolve(), once=arguments.once)
