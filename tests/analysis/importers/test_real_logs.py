"""32 real DeMo2 logs give exactly the values that were read from them by hand and by other means."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from analysis.importers.demo import DemoLog
from analysis.importers.run import ImportedRun, percent

pytestmark = pytest.mark.real_data

STATES = {"completed": "complete", "incomplete": "partial", "failed": "crashed"}


def _expected() -> list[dict[str, str]]:
    data = os.environ.get("SDTPS_REAL_DATA")
    if not data:
        return []
    with (Path(data).parent / "reference" / "demo_log_expected.csv").open(
        encoding="utf-8", newline=""
    ) as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def runs() -> dict[str, ImportedRun]:
    if not os.environ.get("SDTPS_REAL_DATA"):
        pytest.skip("SDTPS_REAL_DATA is not set")
    root = Path(os.environ["SDTPS_REAL_DATA"]) / "demo_logs"
    return {
        row["path"]: DemoLog.read(root / row["path"], (root / row["path"]).read_bytes())[0]
        for row in _expected()
    }


def _printed(row: dict | None, metric: str) -> str:
    return percent(row[metric]) if row and metric in row else ""


def _best(run: ImportedRun, metric: str) -> dict | None:
    """The first evaluation with the highest value."""
    rows = [row for row in run.rows if row["kind"] == "eval" and metric in row]
    return max(rows, key=lambda row: (row[metric], -row["step"]), default=None)


def _text(value: float | None) -> str:
    return "" if value is None else repr(value)


def _found(run: ImportedRun) -> dict[str, str]:
    """The columns of the expected table, from the imported run."""
    return {
        "dataset": run.facts["dataset"],
        "variant": run.label,
        "epochs": str(run.facts["epochs"]),
        "best_map": _printed(run.best, "mAP"),
        "best_r1": _printed(run.best, "rank1"),
        "best_r5": _printed(run.best, "rank5"),
        "best_r10": _printed(run.best, "rank10"),
        "best_epoch": str((_best(run, "mAP") or {}).get("epoch", "")),
        "final_map": _printed(run.final, "mAP"),
        "best_map_ori": _printed(_best(run, "mAP/ori"), "mAP/ori"),
        "best_map_moe": _printed(_best(run, "mAP/moe"), "mAP/moe"),
        "max_loss": _text(run.facts["max_loss"]),
        "final_loss": _text(run.facts["final_loss"]),
        "nan_losses": str(run.facts["nonfinite_losses"]),
        "status": STATES[run.state],
        "error": run.reason if run.state == "failed" else "",
    }


def test_every_value_and_setting_of_every_log(runs: dict[str, ImportedRun]) -> None:
    wrong = []
    rows = _expected()
    for row in rows:
        run = runs[row["path"]]
        wrong += [(row["path"], k, row[k], v) for k, v in _found(run).items() if row[k] != v]
        for key, value in (pair.split("=", 1) for pair in row["params"].split(";")):
            sections = ("SOLVER.", "MODEL.", "DATALOADER.", "TEST.")
            found = next((run.config[s + key] for s in sections if s + key in run.config), None)
            if found != value:
                wrong.append((row["path"], key, value, found))
    assert not wrong
    assert len(rows) == 32 and not any(run.unread for run in runs.values())
