"""From planned runs to jobs: runs are claimed, the code frozen, and the scheduler asked once an array.

    1. a submission folder with a fresh name, which is also the jobs' name
    2. a claim for each run; what another submission holds is left out
    3. the intent: which runs, in which order, by which code
    4. sbatch, or this machine's queue
    5. the receipt: job id and cluster

A submitter may die between any two of these. The next one tells by 3 whether the scheduler may have
been asked, then by the name whether it took the job, and resumes from what it finds.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablations.launch.plan import Action, Chunk, Contents, Plan, chunks, halves
from ablations.slurm import commands as slurm
from ablations.slurm import executor as batch
from ablations.slurm.queue import Scheduler
from ablations.store import claims, snapshot, submissions
from ablations.store.claims import JOBS, Claim
from ablations.store.life import RunStatus, run_states
from ablations.store.submissions import Claimed, Submission, new_name
from ablations.study.model import RunSpec, Study
from ablations.study.schema import Resources
from sdtps.run.folder import RunFolder, config_text
from sdtps.system import files
from sdtps.system.errors import SubmissionError, counted

# What a job calls with its run folder; tests put something short in its place.
ENTRY = "sdtps.training.job:execute"
ENTRY_VARIABLE = "SDTPS_JOB_ENTRY"
WRITERS = 16  # run folders written at the same time
LIMIT = "the cluster's limit on jobs"


class TooMany(SubmissionError):
    """The cluster does not take so many jobs of this user at once."""


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


def submit(
    study: Study,
    runs: Sequence[RunSpec],
    runs_dir: Path,
    *,
    executor: str = "slurm",
    slots: int | None = None,
    replace: Collection[Path] = frozenset(),
    over: Collection[Path] = frozenset(),
    entry: str | None = None,
    max_steps: int | None = None,
    after: str | None = None,
    report: SubmitReport | None = None,
    contents: Contents = lambda config: {},
) -> SubmitReport:
    """Submit those of `runs` that no other submission holds; on local slots, run them.

    Args:
        slots: local runs at once.
        replace: folders of ended or unknown runs that may be run again, from their checkpoint.
        over: folders of ended runs that start from nothing; what they hold is put aside.
        entry: `module:function` in place of the trainer.
        max_steps: stop each run after so many steps (a canary).
        after: sbatch's dependency, such as `afterok:17`.
        report: is filled as runs are submitted, and returned.
        contents: what data and weights hold now, for the runs' records.

    Raises:
        SubmissionError: refused (nothing of the refused part is recorded), or no clear answer.
        KeyboardInterrupt: the local queue was stopped; what had not ended is given back.
    """
    runs_dir = Path(runs_dir).resolve()
    batch.check_path(runs_dir)
    files.share(runs_dir)
    order = _Order(
        study,
        runs_dir,
        executor,
        entry or os.environ.get(ENTRY_VARIABLE, ENTRY),
        max_steps=max_steps,
        after=after,
        report=report or SubmitReport(),
        contents=contents,
    )
    folders = [run.folder(runs_dir) for run in runs]
    submissions.repair(folders)
    order.over = frozenset(_absolute(p) for p in over)
    again = {*map(_absolute, replace), *order.over}
    # Read before the states are told: a claim made meanwhile is then not the one that was judged.
    order.judged = {folder: claims.read(folder) for folder in folders}
    wanted = []
    for run, folder, status in zip(runs, folders, run_states(runs, runs_dir), strict=True):
        free = status.state in ("planned", "interrupted") and not status.elsewhere
        if free or (folder in again and not status.active):
            wanted.append(run)
            if status.state == "unknown":
                _end_earlier(folder)
            if folder.is_symlink():  # an equal run stood for it, which stays as it is
                folder.unlink()
                order.judged[folder] = None
        else:
            order.report.skipped[folder] = _why(status)
    if wanted:
        order.send(wanted, slots)
    return order.report


def _absolute(folder: Path) -> Path:
    """A run folder without links above it; itself it may be a link to an equal run."""
    return Path(folder).parent.resolve() / Path(folder).name


def _end_earlier(folder: Path) -> None:
    """Cancel an unknown run's job where it still waits or runs: found by name, as ids may repeat."""
    claim = claims.read(folder)
    work = submissions.submission(folder, claim.submission) if claim else None
    element = work.element(folder) if work and not work.elsewhere else None
    if work is None or element is None:
        return
    cluster = None if work.cluster in ("", slurm.cluster_name()) else work.cluster
    try:
        known = slurm.squeue(name=work.name, cluster=cluster).get(element)
    except slurm.NoAnswer:
        return
    if known is not None and known.name == work.name and not known.ended:
        slurm.cancel([element], cluster)


def take_over(actions: Sequence[Action]) -> list[Path]:
    """Link each run to the completed equal run that stands for it; returns the folders made."""
    made = []
    for action in actions:
        assert action.equal is not None
        folder = action.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        target = Path("../..") / action.equal.parent.parent.name / submissions.key(action.equal)
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
    answer = slurm.sbatch(folder / "submission.sh", study.resources, Path.cwd())
    if answer.job_id is None:
        raise SubmissionError(_refusal(answer.refused or answer.unclear or ""))
    files.write_json(folder / "receipt.json", {"job_id": answer.job_id})
    return folder


def render(plan: Plan) -> list[str]:
    """What sbatch would be given for the plan's runs, array by array. Writes nothing, asks nothing."""
    runs_dir = plan.runs_dir.resolve()
    # Stands for the name that a submission makes up.
    placeholder = runs_dir / plan.study.name / JOBS / f"sdtps-{plan.study.name}-NAME"
    texts = []
    for chunk in plan.arrays:
        frozen = runs_dir / snapshot.CODE / "DIGEST"
        text = batch.script(placeholder, chunk.resources, len(chunk.runs), chunk.throttle, frozen)
        setup = batch.setup_text(chunk.resources)
        texts.append(f"{text}\n# setup.sh:\n{setup}" if setup else text)
    return texts


@dataclass
class _Order:
    """One call of `submit`."""

    study: Study
    runs_dir: Path
    executor: str
    entry: str
    max_steps: int | None = None
    after: str | None = None
    contents: Contents = lambda config: {}
    report: SubmitReport = field(default_factory=SubmitReport)
    over: frozenset[Path] = frozenset()
    judged: dict[Path, Claim | None] = field(default_factory=dict)

    def send(self, runs: list[RunSpec], slots: int | None) -> None:
        frozen = snapshot.freeze(self.runs_dir)
        if self.executor == "local":
            for chunk in chunks(runs, len(runs) + 1):
                self._work(chunk, frozen, slots)
            return
        previous: str | None = None
        waiting = deque(chunks(runs, slurm.max_array_size()))
        smallest = max(1, len(runs) // 64)  # arrays are not cut below it: each is a question to sbatch
        while waiting:
            chunk = waiting.popleft()
            try:
                previous = self._array(chunk, frozen, previous) or previous
            except TooMany as error:
                if len(chunk.runs) > smallest:
                    waiting.extendleft(reversed(halves(chunk)))
                    continue
                left = [chunk, *waiting]
                for run in (run for part in left for run in part.runs):
                    self.report.skipped[run.folder(self.runs_dir)] = LIMIT
                if not self.report.jobs:
                    raise
                print(f"{error}\n  Submit again when some jobs have ended.", file=sys.stderr)
                return
            except SubmissionError as error:
                jobs = ", ".join(self.report.jobs)
                done = f"\n  Accepted before it: job {jobs}." if jobs else ""
                raise SubmissionError(f"{error}{done}") from None

    # -- one array ------------------------------------------------------------------------------

    def _array(self, chunk: Chunk, frozen: Path, previous: str | None) -> str | None:
        """Submit one array; returns its job id, or None where others hold all of its runs."""
        claimed, runs = self._claim(chunk)
        if not runs:
            claimed.submission.discard()
            return None
        conditions = [self.after] if self.after else []
        conditions += [f"afterany:{previous}"] if chunk.after_previous and previous else []
        try:
            script = batch.script(
                claimed.submission.folder,
                chunk.resources,
                len(runs),
                chunk.throttle,
                frozen,
                dependency=",".join(conditions) or None,
            )
            files.write_text(claimed.submission.script_file, script)
            if setup := batch.setup_text(chunk.resources):
                files.write_text(claimed.submission.folder / "setup.sh", setup)
            self._write_runs(claimed, runs, chunk.resources, frozen)
        except BaseException:
            claimed.give_back()
            raise
        job, cluster = _ask(claimed, chunk.resources)
        claimed.submission.write_receipt(job, cluster=cluster)
        Scheduler(self.runs_dir).expire()
        self.report.jobs.append(job)
        self.report.submitted += claimed.folders
        return job

    def _work(self, chunk: Chunk, frozen: Path, slots: int | None) -> None:
        """Work through the chunk on this machine."""
        from ablations.launch import local

        claimed, runs = self._claim(chunk)
        if not runs:
            claimed.submission.discard()
            return
        try:
            self._write_runs(claimed, runs, chunk.resources, frozen)
        except BaseException:
            claimed.give_back()
            raise
        items = [
            local.QueueItem(index, folder, f"{run.slug} seed {run.seed}")
            for index, (run, folder) in enumerate(zip(runs, claimed.folders, strict=True))
        ]
        self.report.submitted += claimed.folders
        self.report.outcomes |= local.run_queue(
            claimed.submission,
            items,
            chunk.resources,
            frozen,
            slots=slots,
            max_requeues=chunk.resources.max_requeues,
        )

    def _claim(self, chunk: Chunk) -> tuple[Claimed, list[RunSpec]]:
        """A new submission, and those runs of the chunk that nobody else holds."""
        folder = self.runs_dir / self.study.name / JOBS / new_name(self.study.name)
        claimed = Claimed(Submission(folder))
        runs = []
        try:
            claimed.submission.begin(Claim.new(claimed.submission.name, self.executor))
            for run in chunk.runs:
                run_folder = run.folder(self.runs_dir)
                if claimed.take(run_folder, self.judged[run_folder]):
                    runs.append(run)
                else:
                    self.report.skipped[run_folder] = "another submission was first"
        except BaseException:
            claimed.give_back()
            raise
        return claimed, runs

    def _write_runs(
        self, claimed: Claimed, runs: list[RunSpec], resources: Resources, frozen: Path
    ) -> None:
        """The run folders' own files, then the intent."""
        labels = {v.name: v.label for v in self.study.variants.values()}
        configs = {run.variant: run.config for run in runs}
        texts = {variant: config_text(config) for variant, config in configs.items()}
        data = {}  # so that another submission knows what a run will train on before it does
        for variant, config in configs.items():
            if digest := self.contents(config).get("data"):
                data[variant] = {"digest": digest, "root": config.data.root}

        def write(run: RunSpec, folder: Path) -> None:
            if folder not in claimed.fresh:
                submissions.sweep(folder, self.runs_dir)
            if folder in self.over:
                submissions.put_aside(folder, self.runs_dir)
            record = {
                "study": run.study,
                "variant": run.variant,
                "label": labels.get(run.variant, run.variant),
                "seed": run.seed,
                "identity": run.identity,
            }
            if run.variant in data:
                record["data"] = data[run.variant]
            RunFolder(folder).create(texts[run.variant], record)

        # Each file waits for the disk; many at once wait together.
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(write, runs, claimed.folders))
        more: dict[str, Any] = {} if self.max_steps is None else {"max_steps": self.max_steps}
        claimed.submission.write_intent(
            claimed.folders,
            study=self.study.name,
            executor=self.executor,
            entry=self.entry,
            max_requeues=resources.max_requeues,
            resources=resources.model_dump(mode="json"),
            snapshot=frozen.name,
            cluster=_cluster(resources) if self.executor == "slurm" else "",
            **more,
        )


def _cluster(resources: Resources) -> str:
    """The cluster that sbatch will send the jobs to."""
    asked = resources.sbatch.get("clusters") or resources.sbatch.get("cluster")
    return str(asked or slurm.cluster_name())


def _ask(claimed: Claimed, resources: Resources) -> tuple[str, str]:
    """Job id and cluster that sbatch gave, found by the job's name where its answer was lost.

    Raises:
        SubmissionError: refused, and all claims released; or without a clear answer.
    """
    name, usual = claimed.submission.name, _cluster(resources)
    interrupted: KeyboardInterrupt | None = None
    try:
        answer = slurm.sbatch(claimed.submission.script_file, resources, Path.cwd())
    except KeyboardInterrupt as error:
        interrupted, answer = error, slurm.Answer(unclear="interrupted")
    if answer.job_id is not None:
        return answer.job_id, answer.cluster or usual
    if answer.refused is not None:
        claimed.give_back()
        kind = TooMany if slurm.is_limit(answer.refused) else SubmissionError
        raise kind(_refusal(answer.refused))
    try:
        job = slurm.find_array(name, None if usual == slurm.cluster_name() else usual)
    except slurm.NoAnswer as error:
        raise SubmissionError(
            f"sbatch gave no clear answer: {answer.unclear}\n"
            f"  {error}\n"
            f"  It is unclear whether the array {name} ({counted(len(claimed.folders), 'run')}) was"
            " queued. Its runs stay claimed. Submit again later: squeue is then asked for it first."
        ) from None
    if job is None:
        claimed.give_back()
        if interrupted is not None:
            raise interrupted
        raise SubmissionError(
            f"sbatch gave no clear answer, and squeue knows no job {name}: {answer.unclear}\n"
            "  Nothing was queued. Submit again."
        )
    if interrupted is not None:
        claimed.submission.write_receipt(job, cluster=usual)
        raise interrupted
    return job, usual


def _refusal(words: str) -> str:
    key = None if slurm.is_limit(words) else slurm.key_to_change(words)
    hint = f"  Change {key} in the study or in the site file." if key else "  Nothing of it was queued."
    quoted = "\n".join(f"  {line}" for line in words.splitlines())
    return f"sbatch refused the array:\n{quoted}\n{hint}"


def _why(status: RunStatus) -> str:
    return f"{status.state}: {status.reason}" if status.reason else status.state
