"""Try one run on this machine before anything is queued, apart from the run store."""

from __future__ import annotations

import shutil
from pathlib import Path

from ablations.study.model import RunSpec
from ablations.view.counted import counted
from sdtps.run.folder import RunFolder


def try_here(run: RunSpec, runs_dir: Path, max_steps: int | None) -> int:
    """Run `run` in runs/_trials/..., whose earlier contents go; returns 0 unless it diverged (3)."""
    from sdtps.training.job import execute

    folder = RunFolder(run.folder(runs_dir / "_trials"))
    shutil.rmtree(folder.path, ignore_errors=True)
    folder.create(
        run.config,
        {"study": run.study, "variant": run.variant, "seed": run.seed, "identity": run.identity},
    )
    outcome = execute(folder.path, max_steps=max_steps)
    tried = f" after {counted(max_steps, 'step')}" if outcome == "requeued" and max_steps else ""
    print(f"{run.name}: {'stopped as asked' if tried else outcome}{tried}; see {folder.path}")
    return 3 if outcome == "diverged" else 0
