"""What it gains to run several runs of a study at once on one GPU, or on one machine's CPUs."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablations.launch import dispatch
from ablations.study.manifest import load_study
from ablations.study.model import RunSpec, Study
from sdtps.errors import SubmissionError
from sdtps.run.folder import RunFolder

QUICK = Path(__file__).resolve().parents[1] / "ablations" / "quick.yaml"


def packing(together: int) -> dict[str, Any]:
    """Seconds of `together` runs of the quick study, one after the other and all at once.

    The runs are of different variants with one seed. A run before them writes the images, so that
    neither way pays for it; starting Python is part of both.

    Raises:
        SubmissionError: more runs than the study has variants, or only one.
    """
    study = load_study(QUICK)
    runs = [run for run in study.runs() if run.seed == study.seeds[0]]
    if not 2 <= together < len(runs):
        raise SubmissionError(f"--packing {together}: give 2 to {len(runs) - 1} runs of {QUICK.name}")
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(sys.stderr):
        folder = Path(name)
        _work(study, runs[together : together + 1], folder / "before", 1)
        alone, _ = _work(study, runs[:together], folder / "alone", 1)
        packed, steps = _work(study, runs[:together], folder / "packed", together)
    return {
        "bench": "packing",
        "together": together,
        "cpus": os.cpu_count(),
        "seconds": {"ours": round(packed, 2), "reference": round(alone, 2)},
        "steps": steps,
        "speedup": round(alone / packed, 2),
    }


def _work(study: Study, runs: Sequence[RunSpec], runs_dir: Path, slots: int) -> tuple[float, int]:
    """Seconds until the last of `runs` has ended, and the steps that they trained."""
    begun = time.perf_counter()
    report = dispatch.submit(study, runs, runs_dir, executor="local", slots=slots)
    seconds = time.perf_counter() - begun
    bad = [f"{path}: {how}" for path, how in report.outcomes.items() if how == "failed"]
    if bad or len(report.outcomes) < len(runs):
        raise RuntimeError("runs failed, so their seconds say nothing:\n  " + "\n  ".join(bad))
    results = (RunFolder(path).result() or {} for path in report.outcomes)
    return seconds, sum(int(result.get("steps") or 0) for result in results)
