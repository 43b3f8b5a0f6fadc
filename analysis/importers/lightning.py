"""PyTorch Lightning's `metrics.csv`, with `hparams.yaml` beside it where there is one.

Training and validation values of one step stand in rows of their own with the other cells empty.
Epochs and steps count from 0 there and from 1 here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from analysis.importers import table
from analysis.importers.naming import seed_of, variant_name
from analysis.importers.record import ImportedRun

NAME = "lightning"
LOOKS_FOR = "a CSV with the columns epoch and step whose rows leave cells empty"


def recognises(name: str, text: str) -> bool:
    header = text.lstrip("\ufeff").split("\n", 1)[0].strip().split(",")
    if not {"epoch", "step"} <= set(header) or {"variant", "seed", "kind"} & set(header):
        return False
    return name == "metrics.csv" or ",," in text or any(n.endswith(("_step", "_epoch")) for n in header)


def read(path: Path, content: bytes) -> list[ImportedRun]:
    runs = table.read_csv(path, content, zero_based=True, format_name=NAME)
    config = _hyperparameters(path.parent / "hparams.yaml")
    for run in runs:
        run.config = config
        run.variant = variant_name(path)
        run.seed = run.seed if run.seed is not None else seed_of(config.get("seed"))
        planned = config.get("max_epochs", "")
        last = run.facts["epochs"]
        if planned.isdigit() and run.state == "completed":
            run.facts["epochs_planned"] = int(planned)
            if last < int(planned):
                run.state, run.reason = "incomplete", f"the log ends at epoch {last} of {planned}"
    return runs


def _hyperparameters(path: Path) -> dict[str, str]:
    """Flat hyper-parameters as text; an unreadable file is no reason to lose the metrics."""
    try:
        loaded: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return {str(k): str(v) for k, v in loaded.items()} if isinstance(loaded, dict) else {}
