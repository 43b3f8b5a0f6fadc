"""What would be done: a study against the run store gives one action, with its reason, for each run.

Planning is read-only and quick: one listing for each variant, small JSON files, no YAML parsed (except
a few old configurations, to say how they differ).

    state                         without --retry        with it
    planned (nothing there)       submit                 submit
    interrupted                   submit                 submit: goes on from its checkpoint
    queued, running, requeued     skip                   `held`: its held job is released
    completed                     skip                   `stale`: from scratch, where other code made it
    diverged                      skip                   `diverged`: from scratch
    failed: lost, node, killed    submit                 submit: it was not the run's fault
    failed: result                skip                   `failed`: from scratch, the file is put aside
    failed: unreadable            skip                   skip: the file must be mended or deleted
    failed: anything else         skip                   `failed`: from its checkpoint
    cancelled                     skip                   `cancelled`: from its checkpoint
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from ablations.slurm.arrays import Chunk, chunks
from ablations.study.model import RunSpec, Study
from sdtps.config import resolved
from sdtps.config.identity import NOT_IN_IDENTITY, flatten
from sdtps.errors import ConfigError
from sdtps.files import read_bytes
from sdtps.run.folder import RunFolder

RETRY_WORDS = ("failed", "diverged", "cancelled", "stale", "held")
ACTIVE = frozenset({"queued", "running", "requeued"})
# Kinds of failure that say nothing about the run: machine, scheduler or submitter went away under it.
REPAIRED = frozenset({"lost", "node", "killed", "preempted"})
MAX_ARRAY_SIZE = 1001  # SLURM's default MaxArraySize: the largest index is one less
_EXPLAINED = 20  # older settings that are read and compared in one plan

# new: nothing there. resume: from the run's checkpoint. over: from nothing, what is there is put aside.
Start = Literal["new", "resume", "over"]


class State(Protocol):
    """What planning needs to know of a run's state (see ablations/store/states.py)."""

    @property
    def state(self) -> str: ...
    @property
    def kind(self) -> str | None: ...
    @property
    def detail(self) -> str: ...
    @property
    def held(self) -> bool: ...


@dataclass(frozen=True)
class Action:
    """What is done with one run, and why."""

    run: RunSpec
    action: Literal["submit", "skip", "release"]
    reason: str
    folder: Path
    state: str
    start: Start = "new"


@dataclass(frozen=True)
class Estimate:
    """What the submitted runs will cost.

    `basis` counts runs by where their duration comes from: finished runs of the same variant, of other
    variants of the study, or the time limit (an upper bound).
    """

    run_hours: float = 0.0
    gpu_hours: float = 0.0
    basis: dict[str, int] = field(default_factory=dict)

    @property
    def is_bound(self) -> bool:
        return self.basis.get("time limit", 0) > 0


@dataclass(frozen=True)
class Plan:
    study: Study
    runs_dir: Path
    actions: tuple[Action, ...]
    arrays: tuple[Chunk, ...]  # job arrays: one for each class of resources, or more by MaxArraySize
    estimate: Estimate
    warnings: tuple[str, ...] = ()
    max_array_size: int = MAX_ARRAY_SIZE

    @property
    def submitted(self) -> list[Action]:
        return [a for a in self.actions if a.action == "submit"]

    @property
    def released(self) -> list[Action]:
        """Held runs whose jobs are let go."""
        return [a for a in self.actions if a.action == "release"]

    @property
    def skipped(self) -> list[Action]:
        return [a for a in self.actions if a.action == "skip"]

    def without_new(self) -> Plan:
        """Only what is run again: runs that were never submitted are skipped."""
        actions = tuple(
            replace(a, action="skip", reason="never submitted") if a.state == "planned" else a
            for a in self.actions
        )
        submitted = [a for a in actions if a.action == "submit"]
        arrays = _arrays(submitted, self.max_array_size)
        return replace(
            self,
            actions=actions,
            arrays=arrays,
            estimate=_estimate(actions, submitted, arrays),
        )


def make_plan(
    study: Study,
    runs_dir: Path | str,
    states: Sequence[State],
    *,
    retry: Iterable[str] = (),
    retry_runs: Iterable[str] = (),
    code: str | None = None,
    max_array_size: int = MAX_ARRAY_SIZE,
) -> Plan:
    """Decide what happens with each run of `study`.

    Args:
        states: of `study.runs()`, in that order.
        retry: states to run again; see the table above.
        retry_runs: names of runs (`RunSpec.name`) to run again whatever ended them.
        code: digest of the sources that would run; None leaves staleness out.
    """
    runs_dir = Path(runs_dir)
    runs = study.runs()
    retry, retry_runs = frozenset(retry), frozenset(retry_runs)
    older = _Older(study, runs_dir)
    made_by_other = 0
    actions = []
    for run, status in zip(runs, states, strict=True):
        folder = run.folder(runs_dir)
        made_by = _code(folder) if code and status.state in ("completed", "diverged") else None
        stale = made_by is not None and made_by != code
        why, action, start = _decide(status, stale, made_by, retry, run.name in retry_runs)
        made_by_other += stale and status.state == "completed" and action == "skip"
        if status.state == "planned" and not status.detail:
            why = older.reason(run) or why
        actions.append(Action(run, action, why, folder, status.state, start))
    warnings = []
    if made_by_other:
        warnings.append(
            f"{made_by_other} completed run{'s were' * (made_by_other > 1) or ' was'} made by other "
            "code than is here now; tables tell them apart. --retry stale runs them again"
        )
    submitted = [a for a in actions if a.action == "submit"]
    arrays = _arrays(submitted, max_array_size)
    return Plan(
        study=study,
        runs_dir=runs_dir,
        actions=tuple(actions),
        arrays=arrays,
        estimate=_estimate(actions, submitted, arrays),
        warnings=tuple(warnings),
        max_array_size=max_array_size,
    )


def _decide(
    status: State, stale: bool, made_by: str | None, retry: frozenset[str], named: bool
) -> tuple[str, Literal["submit", "skip", "release"], Start]:
    """(reason, action, start): the table at the top of this file."""
    state = status.state
    word = f"{state} ({status.kind})" if status.kind else state
    detail = status.detail.partition("\n")[0][:160]
    ended = f"{word}: {detail}" if detail else word
    if state == "planned":
        return detail or "no run yet", "submit", "resume" if detail else "new"
    if state == "interrupted":
        return ended, "submit", "resume"
    if state in ACTIVE:
        if status.held and ("held" in retry or named):
            return ended, "release", "resume"
        return f"{ended}{' (--retry held releases it)' * status.held}", "skip", "resume"
    if state == "completed":
        if stale and ("stale" in retry or named):
            return f"made by other code ({made_by}): run again", "submit", "over"
        if named:
            return (
                "completed: asked for by name, but its code and settings are unchanged",
                "skip",
                "over",
            )
        return f"completed by other code ({made_by})" if stale else "completed", "skip", "resume"
    if status.kind == "unreadable":
        return f"{ended}: mend or delete it", "skip", "resume"
    if status.kind in REPAIRED:
        return f"{ended}; goes on", "submit", "resume"
    if state in retry or named or (stale and "stale" in retry):
        # Going on from a diverged checkpoint would diverge again, and a finished one has no more to do.
        over = state == "diverged" or status.kind == "result"
        how = "from scratch" if over else "again"
        return f"{ended}; {how}", "submit", "over" if over else "resume"
    return f"{ended} (--retry {state} runs it again)", "skip", "resume"


def _code(folder: Path) -> str | None:
    """Digest of the sources that made the run, or None where it is not recorded."""
    code = _json(folder / "run.json").get("code")
    return str(code["digest"]) if isinstance(code, dict) and code.get("digest") else None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_bytes(path) or b"")
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class _Older:
    """Runs of the same variant and seed with another identity: a setting or default has changed."""

    def __init__(self, study: Study, runs_dir: Path) -> None:
        self._root = runs_dir / study.name
        self._listed: dict[str, dict[str, list[str]]] = {}
        self._explained: dict[str, str] = {}

    def reason(self, run: RunSpec) -> str | None:
        others = self._seeds(run.slug).get(f"seed{run.seed}", [])
        if not others:
            return None
        newest = max((self._root / run.slug / name for name in others), key=_modified)
        if run.slug not in self._explained and len(self._explained) < _EXPLAINED:
            self._explained[run.slug] = _what_changed(newest, run)
        changed = self._explained.get(run.slug, "settings or defaults changed")
        return f"new settings: {changed} (the older run stays in {newest.name})"

    def _seeds(self, slug: str) -> dict[str, list[str]]:
        """seedK to folder names."""
        if slug not in self._listed:
            seeds: dict[str, list[str]] = {}
            try:
                with os.scandir(self._root / slug) as entries:
                    names = [e.name for e in entries if e.name.startswith("seed") and "-" in e.name]
            except OSError:
                names = []
            for name in names:
                seeds.setdefault(name.partition("-")[0], []).append(name)
            self._listed[slug] = seeds
        return self._listed[slug]


def _modified(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _what_changed(folder: Path, run: RunSpec) -> str:
    try:
        old = flatten(resolved(RunFolder(folder).config()))
    except (ConfigError, OSError):
        return "the configuration's keys changed"
    new = flatten(resolved(run.config))
    changed = [
        f"{k} {old.get(k)} → {new.get(k)}"
        for k in {**new, **old}
        if old.get(k) != new.get(k) and k not in NOT_IN_IDENTITY
    ]
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return ", ".join(changed[:3]) + more or "the meaning of the configuration changed"


def _arrays(submitted: list[Action], max_array_size: int) -> tuple[Chunk, ...]:
    return tuple(chunks([a.run for a in submitted], max_array_size))


def _estimate(actions: Sequence[Action], submitted: list[Action], arrays: Sequence[Chunk]) -> Estimate:
    """From the training time of finished runs; read only where something is submitted.

    A job holds its GPUs until the longest of its runs has ended.
    """
    if not submitted:
        return Estimate()
    seconds: dict[str, list[float]] = {}
    for action in actions:
        if action.state == "completed":
            took = _json(action.folder / "result.json").get("train_seconds")
            if isinstance(took, (int, float)) and not isinstance(took, bool) and took > 0:
                seconds.setdefault(action.run.variant, []).append(float(took))
    everything = [s for group in seconds.values() for s in group]
    basis: dict[str, int] = {}
    hours: dict[str, float] = {}  # by run
    for action in submitted:
        if own := seconds.get(action.run.variant):
            word, taken = "same variant", sum(own) / len(own) / 3600
        elif everything:
            word, taken = "other variants", sum(everything) / len(everything) / 3600
        else:
            word, taken = "time limit", action.run.resources.timeout_min / 60
        basis[word] = basis.get(word, 0) + 1
        hours[action.run.name] = taken
    gpu_hours = 0.0
    for array in arrays:
        gpus = array.resources.gpu_count * array.resources.nodes
        gpu_hours += sum(gpus * max(hours[run.name] for run in job) for job in array.jobs())
    return Estimate(sum(hours.values()), gpu_hours, basis)
