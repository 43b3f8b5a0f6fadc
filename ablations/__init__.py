"""Studies: manifests, their submission, and the state of their runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ablations.slurm.run_job import RunJob


def submit(
    study: str | Path, variants: Iterable[str] = (), seeds: Iterable[int] = (), **options: Any
) -> list[RunJob]:
    """A study's runs as submitit's jobs; see `ablations.launch.notebook.submit`."""
    from ablations.launch import notebook

    return notebook.submit(study, variants, seeds, **options)
