"""What would be done: a study against the run store gives one action, with its reason, for each run.

`ablations.view.plan` prints it, `ablations.launch.submit` does it.

Planning is read-only and quick: one listing for each variant, small JSON files, no YAML parsed.

    state                         without --retry        with it
    planned (nothing there)       submit                 submit
    to submit, equal run elsewhere  link, or skip while it is on its way
    interrupted                   submit                 submit: resumes from its checkpoint
    queued, running, requeued     skip                   `held`: its held job is released
    unknown                       skip                   `unknown`: from its checkpoint
    completed                     skip                   `stale`: from scratch, where other code made it
    diverged                      skip                   `diverged`: from scratch
    failed: lost, node, killed    submit                 submit: it was not the run's fault
    failed: result                skip                   `failed`: from scratch, the file is put aside
    failed: unreadable            skip                   skip: the file must be repaired or deleted
    failed: oom                   skip                   `oom`: with twice the memory
    failed: anything else         skip                   `failed`: from its checkpoint
    cancelled                     skip                   `cancelled`: from its checkpoint
    trained on other data         refused                `stale`: from scratch

In a copy of a store nothing is submitted again that was submitted from the original, unless asked.
"""

from __future__ import annotations

import difflib
import functools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ablations.slurm.arrays import Chunk, chunks
from ablations.slurm.commands import DEFAULT_MAX_ARRAY_SIZE
from ablations.store import states
from ablations.store.equal import equal_holders, equal_runs
from ablations.store.states import FolderStatus
from ablations.store.submissions import read_json
from ablations.study.model import RunSpec, Study
from ablations.study.schema import Resources
from sdtps.run.folder import RunFolder, is_finite
from sdtps.system import files
from sdtps.system.errors import counted

BEYOND = "beyond the budget"
_TO_DO = frozenset(
    {"planned", "interrupted", "failed", "cancelled"}
)  # what has no result, and may get one

# new: nothing there. resume: from the run's checkpoint. over: from nothing, what is there is put aside.
Start = Literal["new", "resume", "over"]
# Digests of what a configuration reads on this machine now (`sdtps.data.inputs.input_digests`).
Contents = Callable[[Any], Mapping[str, str]]
# release: let a held job go. link: an equal run of another study or name stands for it.
What = Literal["submit", "skip", "release", "link"]


# -- the plan -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Action:
    """What is done with one run, and why.

    Attributes:
        run: with the resources that it is to get.
        status: how the run was when the plan was made.
        equal: the run of the same hash that stands for it (`link`), or that is waited for (`skip`).
    """

    run: RunSpec
    action: What
    reason: str
    folder: Path
    status: FolderStatus
    start: Start = "new"
    equal: Path | None = None

    @property
    def state(self) -> str:
        return self.status.state


@dataclass(frozen=True)
class Estimate:
    """What the submitted runs will cost.

    `basis` counts runs by where their duration comes from: finished runs of the same variant, of other
    variants of the study, or the time limit (an upper bound).
    """

    run_hours: float = 0.0
    gpu_hours: float = 0.0
    basis: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Spending:
    """A study's budget in GPU-hours; what is spent, expected of runs in flight, and planned so far."""

    budget: float
    spent: float
    in_flight: float
    planned: float  # by this plan and by those that come first

    @property
    def left(self) -> float:
        return self.budget - self.spent - self.in_flight - self.planned


@dataclass(frozen=True)
class Plan:
    study: Study
    runs_dir: Path
    actions: tuple[Action, ...]
    arrays: tuple[Chunk, ...]  # job arrays: one for each class of resources, or more by MaxArraySize
    estimate: Estimate
    warnings: tuple[str, ...] = ()
    max_array_size: int = DEFAULT_MAX_ARRAY_SIZE
    mixed: tuple[str, ...] = ()  # runs of other data or weights than are here, with what they are of
    contents: Contents = lambda config: {}
    seen: frozenset[tuple[Path, str]] = frozenset()  # who held equal runs elsewhere
    spending: Spending | None = None
    local: bool = False  # on slots of this machine, and not by SLURM

    def of(self, action: What) -> list[Action]:
        """The runs with which this is done."""
        return [a for a in self.actions if a.action == action]

    @property
    def submitted(self) -> list[Action]:
        return self.of("submit")

    @property
    def waiting(self) -> list[Action]:
        """Runs for which the study's budget does not suffice."""
        return [a for a in self.of("skip") if a.reason.startswith(BEYOND)]

    def skipping(self, which: Callable[[Action], str]) -> Plan:
        """Without submitting the runs for which there is a reason not to."""

        def judged(action: Action) -> Action:
            reason = which(action) if action.action == "submit" else ""
            return replace(action, action="skip", reason=reason) if reason else action

        return replan(self, tuple(map(judged, self.actions)))

    def without_new(self) -> Plan:
        """Only what is run again."""
        return self.skipping(
            lambda a: "never submitted" * (a.state == "planned" and not a.folder.exists())
        )

    def limited(self, most: int | None) -> Plan:
        """No more than `most` runs are submitted now."""
        later = {a.run.name for a in self.submitted[most:]} if most is not None else set()
        return self.skipping(lambda a: f"{a.reason}; over --limit" if a.run.name in later else "")


def replan(plan: Plan, actions: tuple[Action, ...]) -> Plan:
    """`plan` with other actions: arrays and estimate follow."""
    submitted = [a for a in actions if a.action == "submit"]
    arrays = tuple(chunks([a.run for a in submitted], plan.max_array_size))
    return replace(
        plan,
        actions=actions,
        arrays=arrays,
        estimate=_estimate(actions, submitted, arrays),
    )


def make_plan(
    study: Study,
    runs_dir: Path | str,
    statuses: Sequence[FolderStatus],
    *,
    retry: Iterable[str] = (),
    retry_runs: Iterable[str] = (),
    code: str | Callable[[], str] | None = None,
    contents: Contents = lambda config: {},
    max_array_size: int = DEFAULT_MAX_ARRAY_SIZE,
) -> Plan:
    """Decide what happens with each run of `study`.

    Args:
        statuses: of `study.runs()`, in that order.
        retry: states to run again; see the table above.
        retry_runs: names of runs (`RunSpec.name`) to run again whatever ended them.
        code: digest of the sources that would run, or a function that gives it, which is asked only
            where a run is there to compare with; None leaves staleness out, that of programs too.
        contents: what data and weights hold here, asked where a run records what it was trained on.
    """
    runs_dir = Path(runs_dir)
    runs = study.runs()
    retry, retry_runs = frozenset(retry), frozenset(retry_runs)
    digest = functools.cache(code) if callable(code) else lambda: code
    content = functools.cache(lambda file: files.digest(file.read_bytes()))

    def other_code(record: dict[str, Any], run: RunSpec) -> str | None:
        """What made the run of a run.json and is another here, in words: a program's file, our code."""
        program, made_by = record.get("program"), _code(record)
        place = Path(getattr(run.config, "directory", None) or ".")
        for name, known in program.items() if code and isinstance(program, dict) else ():
            if (place / name).is_file() and content(place / name) != known:
                return f"another version of {name} ({str(known)[:12]})"
        return f"other code ({made_by})" if code and made_by != digest() else None

    folders = [run.folder(runs_dir) for run in runs]
    seen = equal_holders(folders, runs_dir)  # before their states are read
    to_do = {f for f, s in zip(folders, statuses, strict=True) if s.state in _TO_DO}
    equal = equal_runs(to_do, runs_dir)
    made_by_other: list[str] = []
    mixed: list[str] = []
    actions = []
    for run, status in zip(runs, statuses, strict=True):
        folder = run.folder(runs_dir)
        record = {} if status.state == "planned" else read_json(folder / "run.json")
        known = status.state in ("completed", "diverged") and _code(record) is not None
        stale = other_code(record, run) if known else None
        action = _decide(run, folder, status, stale, retry, run.name in retry_runs)
        other = _other_contents(record, run, contents)
        kept = ("completed", "diverged", *states.ACTIVE)
        if other and (status.state in kept or RunFolder(folder).checkpoint_file.exists()):
            over = status.state not in states.ACTIVE and ("stale" in retry or run.name in retry_runs)
            reason = f"{status.state}, trained on {other}"
            action = Action(run, "submit" if over else "skip", reason, folder, status, "over")
            mixed += [] if over else [f"{run.name}: {reason}"]
        if stale and status.state == "completed" and action.action == "skip":
            made_by_other.append(f"{run.name} by {stale}")
        if action.action == "submit" and action.start != "over":
            action = _of_equal(action, equal.get(folder, ()), retry, other_code, contents)
        actions.append(action)
    warnings = []
    if made_by_other:
        warnings.append(
            f"{counted(len(made_by_other), 'completed run')} by other code than is here now "
            f"({made_by_other[0]}); tables average them and say so. --retry stale runs them again"
        )
    for figure in study.figures if len(study.models()) < len(study.variants) else ():
        near = difflib.get_close_matches(figure.metric, study.metrics, n=1, cutoff=0.8)
        if near and figure.metric not in study.metrics:
            warnings.append(
                f"figure {figure.name} draws '{figure.metric}', which is not among 'metrics'; the "
                f"nearest is '{near[0]}'"
            )
    if mixed:
        warnings.append(
            f"{counted(len(mixed), 'run')} of other data or weights than are here now, not to be "
            f"averaged with new ones ({mixed[0]}). To keep them, give the study another name; to train "
            "them again on these: --retry stale"
        )
    empty = Plan(study, runs_dir, (), (), Estimate(), tuple(warnings), max_array_size)
    return replan(replace(empty, mixed=tuple(mixed), contents=contents, seen=seen), tuple(actions))


def _other_contents(record: dict[str, Any], run: RunSpec, contents: Contents) -> str | None:
    """Which of data and weights run.json has with another digest than is here now, in words."""
    data, init, weights = (record.get(key) for key in ("data", "init", "weights"))
    parts = {"data": data, "init": init, **(weights if isinstance(weights, dict) else {})}
    known = {k: v for k, v in parts.items() if isinstance(v, dict) and isinstance(v.get("digest"), str)}
    here = contents(run.config) if known else {}
    for part, file in known.items():
        if here.get(part, file["digest"]) != file["digest"]:
            what = "data" if part == "data" else f"weights ({part})"
            place = file.get("root") or file.get("file")
            return f"other {what}: {file['digest'][:12]} at {place}, here is {here[part][:12]}"
    return None


def _decide(
    run: RunSpec,
    folder: Path,
    status: FolderStatus,
    stale: str | None,
    retry: frozenset[str],
    named: bool,
) -> Action:
    """The table at the top of this file. `stale`: the code that made the run, where it is another."""
    state = status.state
    word = f"{state} ({status.kind})" if status.kind else state
    detail = status.detail.partition("\n")[0][:160].rstrip(":")
    ended = f"{word}: {detail}" if detail else word

    def skip(why: str) -> Action:
        return Action(run, "skip", why, folder, status, "resume")

    def submit(why: str, start: Start = "resume", resources: Resources | None = None) -> Action:
        one = run if resources is None else replace(run, resources=resources)
        return Action(one, "submit", why, folder, status, start)

    requested = state in retry or named
    if state == "planned":
        return submit(detail or "no run yet", "resume" if detail else "new")
    if state in states.ACTIVE:
        if status.held and ("held" in retry or named):
            return Action(run, "release", ended, folder, status, "resume")
        return skip(f"{ended}{' (--retry held releases it)' * status.held}")
    if state == "unknown":
        if requested:
            return submit(f"{ended}; asked for: make sure that it does not run")
        return skip(f"{ended} (--retry unknown runs it again)")
    if state == "completed":
        if stale and ("stale" in retry or named):
            return submit(f"made by {stale}: run again", "over")
        if named:
            return skip("completed: asked for by name, but its code and settings are unchanged")
        return skip(f"completed by {stale}" if stale else ended)
    if status.kind == "unreadable":
        return skip(f"{ended}: repair or delete it")
    if state == "interrupted" or status.resumes:
        if status.elsewhere and not (named or "failed" in retry):
            where = f"submitted from {status.elsewhere}, which this store is a copy of"
            return skip(f"{ended} ({where}; --retry failed runs it again)")
        return submit(ended if state == "interrupted" else f"{ended}; resumes")
    if status.kind == "oom":
        how = _after_oom(run, folder, ended, raised=requested, requested=named or "oom" in retry)
        return skip(how) if isinstance(how, str) else submit(how[0], "resume", how[1])
    if requested or (stale and "stale" in retry):
        # Resuming from a diverged checkpoint would diverge again, and a finished one has no more to do.
        over = state == "diverged" or status.kind == "result"
        return submit(f"{ended}; {'from scratch' if over else 'again'}", "over" if over else "resume")
    return skip(f"{ended} (--retry {state} runs it again)")


def _after_oom(
    run: RunSpec, folder: Path, ended: str, *, raised: bool, requested: bool
) -> tuple[str, Resources | None] | str:
    """(why, resources) to submit with, or why not: with the same memory it would end in the same way.

    Args:
        raised: run it again where the study gives more memory than it had.
        requested: run it again in any case, with twice the memory where a limit is set.
    """
    attempts = RunFolder(folder).run().get("attempts") or [{}]
    used = attempts[-1].get("peak_memory_mib")
    took = f" (it used {used / 1024:.1f} GB)" if isinstance(used, (int, float)) else ""
    now, before = run.resources.mem_gb, states.memory_asked(folder)
    if (raised or requested) and now is not None and before is not None and now > before:
        return f"{ended}{took}; again with {now:g} GB instead of {before:g}", run.resources
    had = before or now
    if requested and had is not None and "CUDA" not in ended:
        more = run.resources.model_copy(update={"mem_gb": 2 * had})
        return f"{ended}{took}; again with {2 * had:g} GB instead of {had:g}", more
    if requested:
        return f"{ended}{took}; again", run.resources
    memory = "the same memory" if had is None else f"{had:g} GB"
    return f"{ended}{took}; not again with {memory}: raise resources.mem_gb, or --retry oom doubles it"


def _code(record: dict[str, Any]) -> str | None:
    """Digest of the sources that made the run of a run.json, or None where it is not recorded."""
    code = record.get("code")
    return str(code["digest"]) if isinstance(code, dict) and code.get("digest") else None


def _of_equal(
    action: Action,
    equal: Sequence[FolderStatus],
    retry: frozenset[str],
    other_code: Callable[[dict[str, Any], RunSpec], str | None],
    contents: Contents,
) -> Action:
    """What is done with a run that would begin or go on, where equal ones are elsewhere."""
    why = action.reason
    same = []
    for one in equal:
        record = read_json(one.folder / "run.json")
        other = _other_contents(record, action.run, contents)
        if other is None:
            same.append((one, record))
        else:
            why = f"configured as {one.name}, which was trained on {other}"
    for one, record in same:
        if one.state == "completed":
            if (other := other_code(record, action.run)) is None:
                why = f"equal to {one.name}, which is completed: taken over"
                return replace(action, action="link", reason=why, equal=one.folder)
            why = f"equal to {one.name}, but {other} made that"
    for one, _ in same:
        if one.active or (one.state == "unknown" and "unknown" not in retry):
            what = f"{one.state} ({one.detail})" if one.detail else one.state
            why = f"equal to {one.name}, which is {what}: submit again when that has ended"
            return replace(action, action="skip", reason=why, equal=one.folder)
    return replace(action, reason=why)


def _estimate(actions: Sequence[Action], submitted: list[Action], arrays: Sequence[Chunk]) -> Estimate:
    """From the training time of finished runs; read only where something is submitted.

    A job holds its GPUs until the longest of its runs has ended.
    """
    if not submitted:
        return Estimate()
    expected = expectation(action.folder for action in actions if action.state == "completed")
    hours = {action.run.name: expected(action.folder, action.run.resources) for action in submitted}
    basis = Counter(source for _, source in hours.values())
    gpu_hours = 0.0
    for array in arrays:
        gpus = array.resources.gpus_of_node * array.resources.nodes
        gpu_hours += sum(gpus * max(hours[run.name][0] for run in job) for job in array.jobs())
    return Estimate(sum(taken for taken, _ in hours.values()), gpu_hours, dict(basis))


def expectation(folders: Iterable[Path]) -> Callable[[Path, Resources], tuple[float, str]]:
    """What gives the hours that a run is expected to take, and where that number comes from.

    Args:
        folders: of runs; those that have finished tell how long others take.
    """
    seconds: dict[Path, list[float]] = {}
    for folder in folders:
        took: Any = read_json(folder / "result.json").get("train_seconds")
        if is_finite(took) and took > 0:
            seconds.setdefault(folder.parent, []).append(float(took))
    everything = [s for group in seconds.values() for s in group]
    mean = statistics.fmean(everything) / 3600 if everything else None

    def expected(folder: Path, resources: Resources) -> tuple[float, str]:
        if own := seconds.get(folder.parent):
            return statistics.fmean(own) / 3600, "same variant"
        if mean is not None:
            return mean, "other variants"
        return resources.timeout_min / 60, "time limit"

    return expected
