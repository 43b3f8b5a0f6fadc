"""Canaries: a short array makes a few steps of each code path; the rest starts if they succeed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ablations.launch.dispatch import submit
from ablations.launch.plan import Action
from ablations.store import attempts
from ablations.store.claims import read
from ablations.study.model import Study
from sdtps.config import AnyConfig, resolved
from sdtps.config.identity import flatten
from sdtps.errors import SubmissionError

FOLDER = "_canaries"  # a run store of their own, below the runs folder
STEPS = 3
MINUTES = 15  # at most, for each


def code_path(config: AnyConfig) -> str:
    """Equal for configurations that run the same code: choices count, numbers only by being there."""
    parts = []
    for key, value in sorted(flatten(resolved(config)).items()):
        if isinstance(value, str) and value.startswith("subtract_"):
            value = "subtract"
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            value = "number"
        elif isinstance(value, list):
            value = "list"
        if not key.startswith("data.") or key in ("data.dataset", "data.pipeline"):
            parts.append(f"{key}={value}")
    return ";".join(parts)


def pick(actions: Sequence[Action]) -> list[Action]:
    """The first run of each code path."""
    first: dict[str, Action] = {}
    for action in actions:
        first.setdefault(code_path(action.run.config), action)
    return list(first.values())


def send(
    study: Study, actions: Sequence[Action], runs_dir: Path, *, executor: str, slots: int | None = None
) -> str | None:
    """Start canaries for `actions`, apart from their runs; returns what the rest has to wait for.

    On a cluster that is a dependency (`afterok:ID`): the terminal is free, and jobs whose canary failed
    never start. On local slots the canaries are worked through first, and None is returned.

    Raises:
        SubmissionError: the scheduler refused, or a local canary failed; its last log lines follow.
    """
    runs = []
    for action in pick(actions):
        asked = action.run.resources
        short = {"timeout_min": min(MINUTES, asked.timeout_min), "max_parallel": None}
        runs.append(replace(action.run, resources=asked.model_copy(update=short)))
    store = runs_dir / FOLDER
    folders = [run.folder(store) for run in runs]
    report = submit(study, runs, store, executor=executor, slots=slots, over=folders, max_steps=STEPS)
    if executor != "local":
        return f"afterok:{':'.join(report.jobs)}" if report.jobs else None
    pairs = zip(runs, folders, strict=True)
    failed = [(run.name, folder) for run, folder in pairs if not _well(folder)]
    if failed:
        raise SubmissionError(_report(failed))
    return None


def _well(folder: Path) -> bool:
    claim = read(folder)
    end = attempts.read(folder, claim.submission).last_end if claim else None
    return end is not None and end.code == 0


def _report(failed: Sequence[tuple[str, Path]]) -> str:
    from ablations.slurm import verdict

    lines = [f"{len(failed)} of the canaries failed; the other runs were not started."]
    for name, folder in failed:
        lines.append(f"  {name}:")
        lines += [f"    {text}" for text in verdict.tail(attempts.log_file(folder)).splitlines()[-3:]]
    lines.append("  Fix these, then submit again; running jobs are kept.")
    return "\n".join(lines)
