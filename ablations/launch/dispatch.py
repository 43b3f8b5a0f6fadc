"""What the verbs `plan`, `submit` and `try` ask of the executors, and the local executor."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablations.launch.plan import Action, Plan
from ablations.slurm import commands as slurm
from ablations.slurm import script as batch
from ablations.slurm.arrays import Chunk, chunks
from ablations.slurm.executor import Entry, RunsExecutor, SubmitReport, train
from ablations.store import snapshot, submissions
from ablations.store.locks import JOBS
from ablations.store.submissions import new_name
from ablations.study.model import RunSpec, Study
from sdtps.system import files
from sdtps.system.errors import SubmissionError

ENTRY_VARIABLE = "SDTPS_JOB_ENTRY"  # what jobs call in place of the trainer: something short, in tests


class LocalRunsExecutor(RunsExecutor):
    """Runs studies on this machine; jobs are returned when all have ended.

    Args:
        slots: runs at once [what GPUs or CPUs hold].
        Others: see `RunsExecutor`.
    """

    word = "local"

    def __init__(self, folder: Path | str, *, slots: int | None = None, **more: Any) -> None:
        super().__init__(folder, **more)
        self._slots = slots

    def _send(self, runs: list[RunSpec], frozen: Path) -> None:
        for chunk in chunks(runs, len(runs) + 1):
            self._work(chunk, frozen)

    def _work(self, chunk: Chunk, frozen: Path) -> None:
        from ablations.launch import local

        locked = self._lock(chunk)
        if not locked.runs:
            return
        with locked.given_back_on_error():
            self._write_runs(locked, chunk.resources, frozen)
        self.report.submitted += locked.folders
        self.report.outcomes |= local.run_queue(locked.submission, chunk.resources, self._slots)


def submit(
    runs: Sequence[RunSpec],
    runs_dir: Path,
    *,
    executor: str = "slurm",
    slots: int | None = None,
    entry: str | None = None,
    max_steps: int | None = None,
    **more: Any,
) -> SubmitReport:
    """Submit those of `runs` that no other submission holds; on local slots, run them.

    Args:
        slots: local runs at once.
        entry: `module:function` in place of the trainer.
        max_steps: stop each run after so many steps (a canary).
        more: see `RunsExecutor`.

    Raises:
        SubmissionError, KeyboardInterrupt: see `RunsExecutor`.
    """
    local = executor == "local"
    make = functools.partial(LocalRunsExecutor, slots=slots) if local else RunsExecutor
    sender = make(runs_dir, **more)
    given = entry or os.environ.get(ENTRY_VARIABLE)
    call = Entry(given) if given else train
    options: dict[str, int] = {} if max_steps is None else {"max_steps": max_steps}
    if runs:
        with sender.batch():
            for run in runs:
                sender.submit(call, run, **options)
    return sender.report


def take_over(actions: Sequence[Action]) -> list[Path]:
    """Link each run to the completed equal run that stands for it; returns the folders made.

    What a run that was stopped holds is put aside, with its lock.
    """
    made = []
    for action in actions:
        assert action.equal is not None
        folder = action.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        target = Path("../..") / action.equal.parent.parent.name / submissions.key(action.equal)
        if folder.is_dir() and not folder.is_symlink():
            submissions.put_aside_whole(folder, folder.parents[2])
        try:
            folder.symlink_to(target, target_is_directory=True)
        except FileExistsError:
            continue
        made.append(folder)
    return made


def then(study: Study, command: str, runs_dir: Path, jobs: Sequence[str]) -> Path:
    """Queue a shell command that runs when `jobs` have ended, however; returns its folder.

    Raises:
        SubmissionError: the scheduler refused it.
    """
    folder = Path(runs_dir).resolve() / study.name / JOBS / f"{new_name(study.name)}-then"
    folder.mkdir(parents=True)
    after = f"afterany:{':'.join(jobs)}"
    text = batch.command_script(folder, study.resources, command, after)
    files.write_text(folder / "submission.sh", text)
    files.write_json(folder / "submission.json", {"command": command, "after": list(jobs)})
    try:
        job, _ = slurm.sbatch(folder / "submission.sh", study.resources)
    except slurm.NoAnswer as error:
        raise SubmissionError(f"sbatch gave no clear answer: {error}") from None
    files.write_json(folder / "receipt.json", {"job_id": job})
    return folder


def render(plan: Plan) -> list[str]:
    """What sbatch would be given for the plan's runs, array by array. Writes nothing, asks nothing."""
    runs_dir = plan.runs_dir.resolve()
    # Stands for the name that a submission makes up.
    placeholder = runs_dir / plan.study.name / JOBS / f"sdtps-{plan.study.name}-NAME"
    texts = []
    for chunk in plan.arrays:
        frozen = runs_dir / snapshot.CODE / "DIGEST"
        text = batch.script(placeholder, chunk, frozen)
        setup = batch.setup_text(chunk.resources)
        texts.append(f"{text}\n# setup.sh:\n{setup}" if setup else text)
    return texts
