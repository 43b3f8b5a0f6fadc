"""The gradient audit: for each variant of a study, which parts learn, which do not, and which explode.

Every variant is built at the size of a toy (`audit.toys`) with the baseline's weights wherever the two
have the same tensor, and looked at on the same batch with the same random draws: at initialisation and
after some training steps in its own precision. What is looked at is computed in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from sdtps.audit.examination import Examination, cosine, examine
from sdtps.audit.findings import Finding, factors, findings, grouped
from sdtps.audit.table import gradient_table, terminal_table
from sdtps.audit.toys import build_toy
from sdtps.config import Config

if TYPE_CHECKING:
    from rich.console import Console

STEPS = 10
SEED = 0


@dataclass(frozen=True)
class Audit:
    """All variants of a study and what is to be said about them, worst first."""

    study: str
    baseline: str
    steps: int
    examinations: dict[str, Examination]
    findings: list[Finding]
    labels: Mapping[str, str]

    def warnings(self) -> list[Finding]:
        """Findings that are no mere notes, worst first."""
        return [finding for finding in self.findings if finding.severity != "note"]

    def as_json(self) -> dict[str, Any]:
        """The whole audit as flat records, as `audit.json` holds it."""
        base = self.examinations[self.baseline]
        variants, gradients = [], []
        for name, examined in self.examinations.items():
            scaler = examined.scaler
            variants.append(
                {
                    "variant": name,
                    "label": self.labels.get(name, name),
                    "loss": _finite(examined.initial.loss),
                    "loss_after": _finite(examined.after.loss),
                    "without_gradient": examined.initial.without_gradient,
                    "patch_cosine": cosine(
                        examined.initial.patch_gradient, base.initial.patch_gradient
                    ),
                    "scaler_skipped": None if scaler is None else scaler.skipped,
                    "scaler_scale": None if scaler is None else scaler.scale,
                }
            )
            for when, look, reference in (
                ("initial", examined.initial, base.initial),
                ("after", examined.after, base.after),
            ):
                ratios = factors(look, reference)
                gradients += [
                    {
                        "variant": name,
                        "when": when,
                        "part": part,
                        "state": gradient.state,
                        "norm": gradient.norm,
                        "ratio": ratios.get(part),
                    }
                    for part, gradient in look.parts.items()
                    if gradient.state != "absent"
                ]
        return {
            "study": self.study,
            "baseline": self.baseline,
            "steps": self.steps,
            "findings": [asdict(finding) for finding in self.findings],
            "variants": variants,
            "gradients": gradients,
        }


def audit(
    configs: Mapping[str, Config],
    baseline: str,
    *,
    study: str = "",
    labels: Mapping[str, str] | None = None,
    steps: int = STEPS,
) -> Audit:
    """Examine variants by name.

    Args:
        configs: variant name to configuration, the baseline's among them.
        labels: variant name to its name for readers.
        steps: training steps between the two looks.
    """
    with _undisturbed():
        weights = build_toy(configs[baseline], SEED, None).model.state_dict()
        weights = {name: value.clone() for name, value in weights.items()}
        found = {name: examine(config, weights, steps, SEED) for name, config in configs.items()}
    return Audit(study, baseline, steps, found, findings(found, baseline, steps), labels or {})


def show(audited: Audit, console: Console) -> None:
    """Print the table and the findings to a terminal."""
    from rich.markup import escape
    from rich.measure import Measurement

    found = gradient_table(audited.as_json())
    table = terminal_table(found, f"Gradients at initialisation, as multiples of {audited.baseline}'s")
    # A number cut short is worse than a line that a narrow terminal wraps.
    needed = Measurement.get(console, console.options.update(width=1000), table).maximum
    width, console.width = console.width, max(needed, console.width)
    console.print(table, crop=False)
    console.width = width
    for note in found.notes[1:]:
        console.print(escape(note))
    styles = {"error": "bold red", "warning": "yellow", "note": "dim"}
    for whose, finding in grouped(audited.findings):
        label = f"[{styles[finding.severity]}]{finding.severity}[/]"
        console.print(f"{label} [bold]{escape(whose)}[/]: {escape(finding.text)}")
    if not audited.findings:
        console.print("Nothing to report.")


@contextmanager
def one_thread() -> Iterator[None]:
    """For tiny tensors: on a busy machine, threads that wait for each other cost 30 times as much."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """The caller's random state and threads stay as they were."""
    with torch.random.fork_rng(devices=[]), one_thread():
        yield


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
