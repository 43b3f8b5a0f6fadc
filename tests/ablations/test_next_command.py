"""`status` names the command that runs again what ended, and no more than is needed for it."""

from __future__ import annotations

import functools
import shlex
from argparse import Namespace
from pathlib import Path

import pytest

from ablations.launch.plan import make_plan
from ablations.store.states import RunStatus
from ablations.study.arguments import next_command
from ablations.view.status import lines
from tests.ablations import plant

ENDS = [
    ("interrupted", None),
    *(("failed", kind) for kind in ("killed", "node", "lost")),
    *(("failed", kind) for kind in ("error", "exit", "oom", "timeout", "start", "result")),
    *(("cancelled", kind) for kind in (None, "unstarted")),
    ("diverged", None),
]


def _named(tmp_path: Path, *ends: tuple[str, str | None]) -> list[list[str]]:
    """The words after `--retry` (none: without it) of each command that is named."""
    study = plant.study(tmp_path, ["ok"], seeds=len(ends))
    runs = tmp_path / "runs"
    statuses = [
        RunStatus(run, state=end[0], kind=end[1]) for run, end in zip(study.runs(), ends, strict=True)
    ]
    text = list(lines(study, statuses, runs, functools.partial(next_command, Namespace(), study)))
    commands = [
        shlex.split(line.partition("sdtps submit ")[2]) for line in text if "sdtps submit" in line
    ]
    retries = [[w for w in words[1:] if w != "--retry"] for words in commands]
    plans = [make_plan(study, runs, statuses, retry=retry) for retry in retries]
    sent = {action.run.name for plan in plans for action in plan.submitted}
    assert sent == {run.name for run in study.runs()}, "the commands leave a run out"
    return retries


@pytest.mark.parametrize("end", ENDS)
def test_the_command_runs_it_again_and_retry_is_named_only_where_it_is_needed(
    tmp_path: Path, end: tuple[str, str | None]
) -> None:
    study = plant.study(tmp_path, ["ok"])
    plain = make_plan(
        study, tmp_path / "runs", [RunStatus(study.runs()[0], state=end[0], kind=end[1])]
    ).submitted
    word = "oom" if end[1] == "oom" else end[0]
    assert _named(tmp_path, end) == [[] if plain else [word]]
