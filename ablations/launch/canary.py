"""Canaries: one run of each code path goes first, the rest after these have made their first steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ablations.launch.plan import ACTIVE, Action
from ablations.store.runstatus import RunStatus
from sdtps.config import Config, resolved
from sdtps.config.identity import flatten
from sdtps.errors import SubmissionError
from sdtps.run.folder import RunFolder

POLL_SECONDS = 5.0


def code_path(config: Config) -> str:
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


def stepped(folder: Path) -> bool:
    """The run has trained at least one step in this attempt."""
    status = RunFolder(folder).status() or {}
    return int(status.get("step") or 0) >= 1


def wait(
    canaries: Sequence[Action],
    states: Callable[[], Sequence[RunStatus]],
    *,
    sleep: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = print,
) -> None:
    """Return once every canary has stepped or completed.

    Args:
        states: gives the canaries' states now, in order.

    Raises:
        SubmissionError: one ended before its first step, diverged in it, or is held; its last log
            lines follow.
    """
    said = -1
    while True:
        now = states()
        dead = [s for s in now if s.held or s.state not in ACTIVE | {"completed"}]
        if dead:
            raise SubmissionError(_report(dead))
        done = sum(
            s.state == "completed" or (s.state == "running" and stepped(action.folder))
            for action, s in zip(canaries, now, strict=True)
        )
        if done != said:
            say(f"Canaries that have made their first steps: {done} of {len(canaries)}.")
            said = done
        if done == len(canaries):
            return
        sleep(POLL_SECONDS)


def _report(dead: Sequence[RunStatus]) -> str:
    lines = [f"{len(dead)} of the canaries failed; the other runs were not submitted."]
    for status in dead:
        word = f"{status.state} ({status.kind})" if status.kind else status.state
        lines.append(f"  {status.run.name}: {word}{': ' + status.detail if status.detail else ''}")
        lines += [f"    {text}" for text in status.log_tail.splitlines()[-3:]]
    lines.append("  Mend them and submit again: what runs is left alone, what is missing is submitted.")
    return "\n".join(lines)
