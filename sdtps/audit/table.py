"""The audit in a terminal: one row a variant, then what is to be said."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from sdtps.audit.audit import Audit, ratio
from sdtps.audit.examination import Examination
from sdtps.audit.findings import grouped, number
from sdtps.audit.gradients import Gradient, cosine

# Parts shown as columns, in the order of the signal: heads to encoder.
COLUMNS = {
    "heads": "heads",
    "aggregation": "aggregation",
    "extra_token": "extra token",
    "score_mlp": "score MLP",
    "guides": "guides",
    "selected_patches": "patches in SDTPS",
    "class_token": "class token",
    "encoder": "encoder",
    "words": "words",
    "dense_words": "dense words",
    "text_encoder": "text encoder",
}
_STYLE = {"error": "bold red", "warning": "yellow", "note": "dim"}


def show(audit: Audit, console: Console) -> None:
    """Print the table and the findings."""
    base = audit.examinations[audit.baseline]
    parts = [
        part for part in COLUMNS if any(part in e.initial.parts for e in audit.examinations.values())
    ]
    table = Table(
        title=f"Gradients at initialisation, as multiples of {audit.baseline}'s",
        caption="none: no path · 0: exactly zero · inf: not finite · blank: no such part",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("variant", no_wrap=True)
    for part in parts:
        table.add_column(COLUMNS[part].replace(" ", "\n"), justify="right", no_wrap=True)
    for heading in ("patch\ncosine", "untrained\n%", "fp16 steps\nskipped"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, examined in audit.examinations.items():
        look = examined.initial
        direction = cosine(look.patch_gradient, base.initial.patch_gradient)
        table.add_row(
            escape(name),
            *(_cell(look.parts.get(p), base.initial.parts.get(p)) for p in parts),
            "" if direction is None else f"{direction:.2f}",
            f"{100 * look.without_gradient:.1f}",
            _skipped(examined),
        )
    # A number cut short is worse than a line that a narrow terminal wraps.
    needed = Measurement.get(console, console.options.update(width=1000), table).maximum
    width, console.width = console.width, max(needed, console.width)
    console.print(table, crop=False)
    console.width = width
    for whose, finding in grouped(audit.findings):
        label = f"[{_STYLE[finding.severity]}]{finding.severity}[/]"
        console.print(f"{label} [bold]{escape(whose)}[/]: {escape(finding.text)}")
    if not audit.findings:
        console.print("Nothing to report.")


def _cell(gradient: Gradient | None, reference: Gradient | None) -> str:
    if gradient is None or gradient.state == "absent":
        return ""
    if gradient.state in ("none", "zero", "nonfinite"):
        return {"none": "none", "zero": "0", "nonfinite": "inf"}[gradient.state]
    factor = ratio(gradient, reference)
    return f"({number(gradient.norm or 0.0)})" if factor is None else number(factor)


def _skipped(examined: Examination) -> str:
    scaler = examined.scaler
    return "" if scaler is None else f"{scaler.skipped}/{scaler.steps}"
