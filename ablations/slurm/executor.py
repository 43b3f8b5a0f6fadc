"""The executor of runs: submitit's interface, one job array for each class of resources, no pickles.

    executor = RunsExecutor("runs")               # or submitit.AutoExecutor("runs", cluster="runs")
    executor.update_parameters(timeout_min=30)    # over each run's own resources
    jobs = executor.map_array(train, study.runs())

    1. a submission folder with a fresh name, which is also the jobs' name
    2. a lock for each run; what another submission holds is left out
    3. the intent: which runs, in which order, by which code
    4. sbatch, or this machine's queue
    5. the receipt: job id and cluster

A submitter may die between any two of these. The next one tells by 3 whether the scheduler may have
been asked, then by the name whether it took the job, and resumes from what it finds.

Runs that are there already are not started again; a job is a handle on its run in any case.
"""

from __future__ import annotations

import importlib
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from submitit.core import core
from submitit.core.utils import DelayedSubmission

from ablations.slurm import commands as slurm
from ablations.slurm import script as batch
from ablations.slurm.arrays import Chunk, chunks, halves
from ablations.slurm.run_job import RunJob
from ablations.slurm.scheduler import Scheduler
from ablations.store import locks, snapshot, submissions
from ablations.store.equal import equal_holders
from ablations.store.locks import JOBS, Lock
from ablations.store.states import run_states
from ablations.store.submissions import Locked, Submission, new_name
from ablations.study.model import RunSpec
from ablations.study.schema import Resources
from sdtps.run.folder import RunFolder, config_text
from sdtps.system import files
from sdtps.system.errors import SubmissionError, counted

WRITERS = 16  # run folders written at the same time
LIMIT = "the cluster's limit on jobs"


@dataclass(frozen=True)
class Entry:
    """A function of a run folder that jobs import, by its name `MODULE:FUNCTION`."""

    name: str

    def __call__(self, folder: Path, **options: Any) -> Any:
        module, _, function = self.name.partition(":")
        return getattr(importlib.import_module(module), function)(folder, **options)


train = Entry("sdtps.training.attempt:execute")


@dataclass
class SubmitReport:
    """What became of the runs.

    Attributes:
        submitted: run folders whose jobs the scheduler has (local: that were worked through).
        skipped: run folders that were not, and why.
        jobs: ids of the arrays.
        outcomes: on local slots, how each run ended.
    """

    submitted: list[Path] = field(default_factory=list)
    skipped: dict[Path, str] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)
    outcomes: dict[Path, str] = field(default_factory=dict)

    @property
    def partial(self) -> bool:
        """The cluster took some of the runs and not the others."""
        return LIMIT in self.skipped.values()


class RunsExecutor(core.Executor):
    """Submits runs of studies to SLURM. `submit` and `map_array` take `train` (or an `Entry`) and runs.

    Args:
        folder: the run store.
        resume: folders of ended or unknown runs that may be run again, from their checkpoint.
        over: folders of ended runs that start from nothing; what they hold is put aside.
        after: sbatch's dependency, such as `afterok:17`.
        seen: which submissions hold equal runs elsewhere, as it was when the runs were chosen [now].
        report: is filled as runs are submitted.
        contents: digests of what a configuration reads here now, for the runs' records.
    """

    job_class = RunJob
    word = "slurm"  # in locks and intents

    def __init__(
        self,
        folder: Path | str,
        *,
        resume: Collection[Path] = (),
        over: Collection[Path] = (),
        after: str | None = None,
        seen: frozenset[tuple[Path, str]] | None = None,
        report: SubmitReport | None = None,
        contents: Callable[[Any], Mapping[str, str]] = lambda config: {},
    ) -> None:
        super().__init__(Path(folder).expanduser().resolve())
        batch.check_path(self.folder)
        files.share(self.folder)
        self.report = SubmitReport() if report is None else report
        self._over = frozenset(map(_absolute, over))
        self._again = self._over | set(map(_absolute, resume))
        self._after = after
        self._seen = seen
        self._contents = contents
        self._judged: dict[Path, Lock | None] = {}
        self._entry = train
        self._options: dict[str, Any] = {}  # of the submissions in hand, as the entry is

    @classmethod
    def affinity(cls) -> int:
        """Taken only where it is named."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return set(Resources.model_fields)

    @classmethod
    def _equivalence_dict(cls) -> Any:
        return {"cpus_per_task": "cpus", "gpus_per_node": "gpus"}

    def _internal_process_submissions(
        self, delayed_submissions: list[DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """Submit those runs that no other submission holds.

        Raises:
            SubmissionError: refused (nothing of the refused part is recorded), or no clear answer; or
                parameters that a run's resources do not have.
            TypeError: not a function of a run.
            KeyboardInterrupt: the local queue was stopped; what had not ended is given back.
        """
        calls = [_call(delayed) for delayed in delayed_submissions]
        self._entry, self._options = calls[0][0], calls[0][2]
        if any((entry, options) != (self._entry, self._options) for entry, _, options in calls):
            raise TypeError("the runs of one submission call one function with equal options")
        runs = [self._with_parameters(run) for _, run, _ in calls]
        free = self._free(runs)
        if free:
            self._send(free, snapshot.freeze(self.folder))
        return [RunJob(run.folder(self.folder)) for run in runs]

    def _with_parameters(self, run: RunSpec) -> RunSpec:
        if not self.parameters:
            return run
        try:
            resources = Resources.model_validate({**run.resources.model_dump(), **self.parameters})
        except ValueError as error:
            raise SubmissionError(f"update_parameters: {error}") from None
        return replace(run, resources=resources)

    def _free(self, runs: Sequence[RunSpec]) -> list[RunSpec]:
        """The runs that may be started; the others are reported as skipped."""
        folders = [run.folder(self.folder) for run in runs]
        submissions.repair(folders)
        # Read before the states are: a lock made meanwhile is then not the one that was judged.
        self._judged = {folder: locks.read(folder) for folder in folders}
        if self._seen is None:
            self._seen = equal_holders(folders, self.folder)
        free = []
        for run, folder, status in zip(runs, folders, run_states(runs, self.folder), strict=True):
            new = status.state in ("planned", "interrupted") and not status.elsewhere
            if not new and (folder not in self._again or status.active):
                self.report.skipped[folder] = ": ".join(filter(None, (status.state, status.reason)))
                continue
            free.append(run)
            if status.state == "unknown":
                _end_earlier(folder)
            if folder.is_symlink():  # an equal run stood for it, which stays as it is
                folder.unlink()
                self._judged[folder] = None
        return free

    def _send(self, runs: list[RunSpec], frozen: Path) -> None:
        """Submit the runs, in as few arrays as the cluster takes."""
        previous: str | None = None
        waiting = deque(chunks(runs, slurm.max_array_size()))
        smallest = max(1, len(runs) // 64)  # arrays are not cut below it: each is a question to sbatch
        while waiting:
            chunk = waiting.popleft()
            try:
                previous = self._array(chunk, frozen, previous) or previous
            except slurm.TooMany as error:
                if len(chunk.runs) > smallest:
                    waiting.extendleft(reversed(halves(chunk)))
                    continue
                left = [chunk, *waiting]
                for run in (run for part in left for run in part.runs):
                    self.report.skipped[run.folder(self.folder)] = LIMIT
                if not self.report.jobs:
                    raise
                print(f"{error}\n  Submit again when some jobs have ended.", file=sys.stderr)
                return
            except SubmissionError as error:
                jobs = ", ".join(self.report.jobs)
                done = f"\n  Accepted before it: job {jobs}." if jobs else ""
                raise SubmissionError(f"{error}{done}") from None

    def _array(self, chunk: Chunk, frozen: Path, previous: str | None) -> str | None:
        """Submit one array; returns its job id, or None where others hold all of its runs."""
        locked = self._lock(chunk)
        if not locked.runs:
            return None
        conditions = [self._after] if self._after else []
        conditions += [f"afterany:{previous}"] if chunk.after_previous and previous else []
        jobs = locked.submission.folder
        with locked.given_back_on_error():
            taken = replace(chunk, runs=tuple(locked.runs))
            script = batch.script(jobs, taken, frozen, dependency=",".join(conditions) or None)
            files.write_text(jobs / "submission.sh", script)
            if setup := batch.setup_text(chunk.resources):
                files.write_text(jobs / "setup.sh", setup)
            self._write_runs(locked, chunk.resources, frozen, cluster=_cluster(chunk.resources))
        job, cluster = _ask(locked, chunk.resources)
        locked.submission.write_receipt(job, cluster=cluster)
        Scheduler(self.folder).expire()
        self.report.jobs.append(job)
        self.report.submitted += locked.folders
        return job

    def _lock(self, chunk: Chunk) -> Locked:
        """A new submission, with those runs of the chunk that nobody else holds."""
        study = chunk.runs[0].study
        locked = Locked(Submission(self.folder / study / JOBS / new_name(study)))
        with locked.given_back_on_error():
            locked.submission.begin(Lock.new(locked.submission.name, self.word))
            folders = [run.folder(self.folder) for run in chunk.runs]
            study_lock = locks.file_lock(locked.submission.folder.parent)
            # Once for all of them. While the store's is held, nobody locks an equal run elsewhere.
            with locks.file_lock(self.folder), study_lock:
                holders = equal_holders(folders, self.folder) - (self._seen or frozenset())
                equal = {folder.name: folder for folder, _ in holders}
                for run, folder in zip(chunk.runs, folders, strict=True):
                    if other := equal.get(folder.name):
                        why = f"equal to {'/'.join(other.parts[-3:])}, which another submission began"
                        self.report.skipped[folder] = why
                    elif locked.take(folder, self._judged[folder]):
                        locked.runs.append(run)
                    else:
                        self.report.skipped[folder] = "another submission was first"
        if not locked.runs:
            locked.submission.discard()
        return locked

    def _write_runs(
        self, locked: Locked, resources: Resources, frozen: Path, cluster: str = ""
    ) -> None:
        """The run folders' own files, then the intent."""
        configs = {run.variant: run.config for run in locked.runs}
        texts = {variant: config_text(config) for variant, config in configs.items()}
        data = {}  # so that another submission knows what a run will train on before it does
        for variant, config in configs.items():
            if digest := self._contents(config).get("data"):
                data[variant] = {"digest": digest, "root": config.data.root}

        def write(run: RunSpec, folder: Path) -> None:
            if folder not in locked.fresh:
                submissions.sweep(folder, self.folder)
            if folder in self._over:
                submissions.put_aside(folder, self.folder)
            record: dict[str, Any] = {
                "study": run.study,
                "variant": run.variant,
                "label": run.label or run.variant,
                "seed": run.seed,
                "identity": run.identity,
            }
            if run.variant in data:
                record["data"] = data[run.variant]
            RunFolder(folder).create(texts[run.variant], record)

        # Each file waits for the disk; many at once wait together.
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(write, locked.runs, locked.folders))
        locked.submission.write_intent(
            locked.folders,
            study=locked.runs[0].study,
            executor=self.word,
            entry=self._entry.name,
            max_requeues=resources.max_requeues,
            resources=resources.model_dump(mode="json"),
            snapshot=frozen.name,
            cluster=cluster,
            after=self._after or "",
            **self._options,
        )


def _call(delayed: DelayedSubmission) -> tuple[Entry, RunSpec, dict[str, Any]]:
    """The entry, run and options of a call `function(run, max_steps=N)`."""
    entry, options = delayed.function, delayed.kwargs
    one_run = len(delayed.args) == 1 and isinstance(delayed.args[0], RunSpec)
    if not isinstance(entry, Entry) or not one_run or options.keys() - {"max_steps"}:
        raise TypeError(
            "the executor of runs takes `train` or an Entry, one run of a study (study.runs()), and "
            "max_steps"
        )
    return entry, delayed.args[0], options


def _absolute(folder: Path) -> Path:
    """A run folder without links above it; itself it may be a link to an equal run."""
    return Path(folder).parent.resolve() / Path(folder).name


def _end_earlier(folder: Path) -> None:
    """Cancel an unknown run's job where it still waits or runs: found by name, as ids may repeat."""
    lock = locks.read(folder)
    if lock is None:
        return
    work = Submission(submissions.submission_folder(folder, lock.submission))
    element = work.element(folder)
    if element is None or work.elsewhere:
        return
    try:
        known = slurm.squeue(name=work.name, cluster=work.cluster).get(element)
    except slurm.NoAnswer:
        return
    if known is not None and known.name == work.name and not known.ended:
        slurm.cancel([element], work.cluster)


def _cluster(resources: Resources) -> str:
    """The cluster that sbatch will send the jobs to."""
    given = resources.sbatch.get("clusters") or resources.sbatch.get("cluster")
    return str(given or slurm.cluster_name())


def _ask(locked: Locked, resources: Resources) -> tuple[str, str]:
    """Job id and cluster that sbatch gave, found by the job's name where its answer was lost.

    Raises:
        SubmissionError: refused, and all locks released; or without a clear answer.
    """
    name, usual = locked.submission.name, _cluster(resources)
    unclear: slurm.NoAnswer | KeyboardInterrupt
    try:
        job, cluster = slurm.sbatch(locked.submission.folder / "submission.sh", resources)
        return job, cluster or usual
    except slurm.Refused:
        locked.give_back()
        raise
    except (slurm.NoAnswer, KeyboardInterrupt) as error:
        unclear = error
    try:
        found = slurm.find_array(name, usual)
    except slurm.NoAnswer as error:
        raise SubmissionError(
            f"sbatch gave no clear answer: {unclear}\n"
            f"  {error}\n"
            f"  It is unclear whether the array {name} ({counted(len(locked.folders), 'run')}) was"
            " queued. Its runs stay locked. Submit again later: squeue is then asked for it first."
        ) from None
    if found is not None:
        locked.submission.write_receipt(found, cluster=usual)
    else:
        locked.give_back()
    if isinstance(unclear, KeyboardInterrupt):
        raise unclear
    if found is None:
        raise SubmissionError(
            f"sbatch gave no clear answer, and squeue knows no job {name}: {unclear}\n"
            "  Nothing was queued. Submit again."
        )
    return found, usual
