"""The states of a study's runs as text, as JSON and as an exit code."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablations.slurm.scheduler import Scheduler
from ablations.store import states
from ablations.store.states import FolderStatus, RunStatus
from ablations.study.arguments import (
    add_steering,
    filtered,
    next_command,
    print_json,
    read_studies,
)
from ablations.study.model import Study
from sdtps.run.folder import RunFolder
from sdtps.system.errors import ConfigError, visible
from sdtps.system.errors import counted as number

_LOG_LINES = 3  # of each failed run's log
_LISTED = 40  # failed runs that are listed one by one

# Exit codes of `status`, so that scripts need not read its text. 2 is a usage error, as everywhere.
COMPLETE, ENDED_BADLY, ACTIVE_RUNS, NOT_SUBMITTED = 0, 1, 3, 4
DAMAGED = "damaged"
# Of a run's state, for scripts.
_TOLD = (*("state", "kind", "detail", "attempt", "epoch", "progress", "job_id", "node", "held"),)


def exit_code(statuses: Sequence[RunStatus]) -> int:
    """0 all completed; 1 some ended badly, unknown, held or damaged; 3 some active; 4 some to submit.

    Active wins over everything (wait and ask again), then failure, then what was never submitted or
    was interrupted. A held run is not waited for: it needs somebody.
    """
    found = {s.state for s in statuses if not s.held}
    if found & states.ACTIVE:
        return ACTIVE_RUNS
    odd = any(s.held or s.kind == DAMAGED for s in statuses)
    if found & states.ENDED_BADLY or "unknown" in found or odd:
        return ENDED_BADLY
    return NOT_SUBMITTED if found & {"planned", "interrupted"} else COMPLETE


def with_damage(status: RunStatus, runs_dir: Path) -> RunStatus:
    """A completed run whose files were changed since then, as `completed (damaged)`."""
    if status.state != "completed":
        return status
    damage = RunFolder(status.run.folder(runs_dir)).changed_since_end(only_newer=True)
    return replace(status, kind=DAMAGED, detail="; ".join(damage)) if damage else status


def word(status: RunStatus) -> str:
    """`failed (oom)`, `requeued (attempt 2)`, `requeued (held)`, `running 40 %`."""
    if status.held:
        return f"{status.state} (held)"
    if status.state == "requeued" and status.attempt:
        return f"requeued (attempt {status.attempt})"
    if status.state == "running" and status.progress is not None:
        quiet = status.detail if status.detail.startswith("no heartbeat") else ""
        return f"running {status.progress:.0%}".replace("%", " %") + (quiet and f" ({quiet})")
    return f"{status.state} ({status.kind})" if status.kind else status.state


def counted(statuses: Sequence[FolderStatus]) -> str:
    """`12 completed, 2 running, 1 failed`."""
    numbers = {state: sum(s.state == state for s in statuses) for state in states.STATES}
    return ", ".join(f"{n} {state}" for state, n in numbers.items() if n) or "no runs"


def lines(
    study: Study,
    statuses: Sequence[RunStatus],
    runs_dir: Path,
    command_for: Callable[..., str],
    unplanned: Sequence[FolderStatus] = (),
) -> Iterator[str]:
    """One line a variant, then what went wrong with its last log lines, for a terminal.

    Args:
        command_for: a verb and words, to a command about this study (`next_command`).
        unplanned: runs whose variant left the manifest.
    """
    yield f"Runs in {runs_dir}"
    yield f"{study.name}: {number(len(statuses), 'run')}: {counted(statuses)}"
    by_variant: dict[str, list[RunStatus]] = {}
    for status in statuses:
        by_variant.setdefault(status.run.variant, []).append(status)
    width = max((len(name) for name in by_variant), default=0)
    for name, group in by_variant.items():
        if len({s.state for s in group}) == 1:
            yield f"  {name:<{width}}  {counted(group)}"
        else:
            seeds = ", ".join(f"seed {s.run.seed} {word(s)}" for s in group)
            yield f"  {name:<{width}}  {seeds}"
    if unplanned:
        yield f"Unplanned (no variant of the manifest has them): {counted(unplanned)}"
        yield from (f"  {one.name}  {one.state}" for one in unplanned if one.may_run)
    for status in statuses:
        if status.state == "running" and status.detail.startswith("no heartbeat"):
            yield f"Silent: {status.run.name}: {word(status)}"
    bad = ("failed", "diverged", "cancelled", "interrupted", "unknown")
    ended = [s for s in statuses if s.state in bad]
    held = [s for s in statuses if s.held]
    damaged = [s for s in statuses if s.kind == DAMAGED]
    stopped = [*ended, *held, *damaged]
    for status in stopped[:_LISTED]:
        yield ""
        why, _, more = status.detail.partition("\n")
        yield f"{status.run.name}: {word(status)}{': ' + why if why else ''}"
        tail = (status.log_tail or more).splitlines()[-_LOG_LINES:]
        yield from (f"    {text}" for text in tail if text.strip() not in why)
        if status.log_file and status.log_file.exists():
            yield f"  Log: {status.log_file}"
    advice = [f"and {len(stopped) - _LISTED} more (see --json)"] if len(stopped) > _LISTED else []
    unheard = (s.detail for s in statuses if s.active and "does not answer" in s.detail)
    advice += [f"States are {note}" for note in dict.fromkeys(unheard)]
    for s in statuses:
        if s.state == "completed" and s.run.config.task == "command":
            scores = (RunFolder(s.run.folder(runs_dir)).result() or {}).get("final") or {}
            advice += study.not_fractions(s.run.variant, scores)
    if not (runs_dir / study.name).is_dir():
        advice.append(study.no_runs(runs_dir))
    if damaged:
        advice.append("Restore the files of damaged runs, or delete their folders and submit again.")
    if held:
        advice.append(f"Release what is held: {command_for('retry', '--held')}")
    root = _data_root(ended, runs_dir)
    goes_on = [s for s in ended if s.state == "interrupted" or s.resumes]
    asked = [s for s in ended if s not in goes_on and s.kind != "unreadable" and s.state != "unknown"]
    retry = sorted({"oom" if s.kind == "oom" else s.state for s in asked})
    if goes_on:
        advice.append(f"Resume interrupted runs: {command_for('submit', data_root=root)}")
    if retry:
        words = [word for state in retry for word in ("--retry", state)]
        advice.append(f"Run them again: {command_for('submit', *words, data_root=root)}")
    for text in dict.fromkeys(advice):
        yield from ("", text)


def _data_root(ended: Sequence[RunStatus], runs_dir: Path) -> str | None:
    """The data root these runs were submitted with, where neither the study nor the shell says it."""
    for status in ended:
        if status.run.config.data.root is None and status.run.config.data.generate is None:
            try:
                return RunFolder(status.run.folder(runs_dir)).config().data.root
            except (ConfigError, OSError):
                continue
    return None


def as_json(
    study: Study, statuses: Sequence[RunStatus], runs_dir: Path, unplanned: Sequence[FolderStatus] = ()
) -> dict[str, Any]:
    """Counts and one object a run."""
    return {
        "study": study.name,
        "runs_dir": str(runs_dir),
        "counts": {s: n for s in states.STATES if (n := sum(r.state == s for r in statuses))},
        "runs": [
            {
                "run": s.run.name,
                **{key: getattr(s.run, key) for key in ("variant", "seed", "identity")},
                "folder": str(s.run.folder(runs_dir)),
                **{key: getattr(s, key) for key in _TOLD},
                "log_file": None if s.log_file is None else str(s.log_file),
            }
            for s in statuses
        ],
        "unplanned": [
            {"run": s.name, **{key: getattr(s, key) for key in ("state", "kind", "detail", "job_id")}}
            for s in unplanned
        ],
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_steering(parser, more=True)
    parser.epilog = (
        "Exit code, the first that applies: 3, runs are queued or running; 1, runs failed, diverged, "
        "were cancelled, are unknown, held or damaged; 4, runs are not submitted yet or interrupted; "
        "0, all are completed. Unplanned runs do not count."
    )


def command(arguments: argparse.Namespace) -> int:
    """Exit code: see `exit_code`."""
    from ablations.store.equal import shown_states

    runs_dir = arguments.runs_dir.resolve()
    everything: list[RunStatus] = []
    documents: list[dict[str, Any]] = []
    for whole in read_studies(arguments):
        study = filtered(whole, arguments.variant, arguments.seed)
        shown = shown_states(study.runs(), runs_dir)
        statuses = [with_damage(status, runs_dir) for status in shown]
        gone = states.of_folders(states.unplanned(whole, runs_dir), Scheduler(runs_dir))
        if arguments.json:
            documents.append(as_json(study, statuses, runs_dir, gone))
        else:
            command_for = functools.partial(next_command, arguments, study)
            told = lines(study, statuses, runs_dir, command_for, gone)
            print("\n" * bool(everything) + "\n".join(map(visible, told)))
        everything += statuses
    if arguments.json:
        print_json(documents)
    return exit_code(everything)
