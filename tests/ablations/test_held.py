"""A job that the scheduler holds is told apart from one that waits, and our own commands let it go."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import ablations.cli as control
from ablations.launch import dispatch
from ablations.launch.plan import make_plan
from ablations.store import attempts as records
from ablations.store.states import run_states
from ablations.study.model import Study
from tests.ablations import plant
from tests.ablations.fakes import Fakes

HELD = (
    {"state": "PENDING", "reason": "JobHeldUser"},
    {"state": "PENDING", "reason": "JobHeldAdmin", "restarts": 1},
    {"state": "PENDING", "reason": "job requeued in held state", "restarts": 1},
    {"state": "PENDING", "reason": "launch_failed_requeued_held", "restarts": 1},
    {"state": "RESV_DEL_HOLD", "reason": "Reservation"},
    {"state": "SPECIAL_EXIT", "reason": "job_requeued_in_special_exit_state", "restarts": 1},
)


@pytest.fixture
def study(tmp_path: Path, fakes: Fakes) -> Study:
    """Two runs of one array, queued."""
    made = plant.study(tmp_path, ["ok"], seeds=2)
    dispatch.submit(made.runs(), tmp_path / "runs")
    return made


def call(command: str, study: Study, *words: str) -> int:
    return control.main(
        [command, str(study.path), "--runs-dir", str(study.path.parent / "runs"), *words]
    )


def ask_anew(study: Study) -> None:
    (study.path.parent / "runs" / f".squeue-{os.getuid()}.json").unlink(missing_ok=True)


@pytest.mark.parametrize("scheduler", HELD)
def test_a_held_job_is_told_and_retry_lets_exactly_it_go(
    study: Study, fakes: Fakes, scheduler: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.set("1_0", **scheduler)
    fakes.set("1_1", state="RUNNING")
    assert call("status", study) == 3  # the other run goes on
    out = capsys.readouterr().out
    assert "(held)" in out and str(scheduler["reason"]) in out
    runs = study.path.parent / "runs"
    hint = f"sdtps retry {study.path} --held --runs-dir {runs}"
    assert f"Release what is held: {hint}" in out
    assert call("retry", study, "--held") == 0
    assert [c["argv"] for c in fakes.calls("scontrol") if c["argv"][0] == "release"] == [
        ["release", "1_0"]
    ]
    assert len(fakes.calls("sbatch")) == 1
    captured = capsys.readouterr()
    assert "0 to submit, 1 skipped, 1 to release" in captured.out
    assert "Released 1 held run." in captured.err
    assert call("status", study) == 3
    assert "(held)" not in capsys.readouterr().out


def test_runs_that_are_only_held_are_not_waited_for(
    study: Study, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    for element in ("1_0", "1_1"):
        fakes.set(element, state="PENDING", reason="JobHeldUser")
    assert call("status", study, "--json") == 1
    assert [r["held"] for r in json.loads(capsys.readouterr().out)["runs"]] == [True, True]
    assert call("watch", study) == 0  # and so is a live table, which would never end
    assert call("submit", study, "--no-audit") == 0
    assert "(--retry held releases it)" in capsys.readouterr().out
    runs = study.path.parent / "runs"
    actions = make_plan(study, runs, run_states(study.runs(), runs)).actions
    assert {action.action for action in actions} == {"skip"}


def test_a_job_that_is_still_being_cleared_away_is_not_released_yet(study: Study, fakes: Fakes) -> None:
    fakes.set("1_0", state="REQUEUE_HOLD", reason="job_requeued_in_held_state", restarts=1)
    assert call("retry", study, "--held") == 0
    assert not [c for c in fakes.calls("scontrol") if c["argv"][0] == "release"]


def test_one_run_is_released_by_its_name(study: Study, fakes: Fakes) -> None:
    for element in ("1_0", "1_1"):
        fakes.set(element, state="PENDING", reason="JobHeldUser")
    assert call("retry", study, "ok/seed1") == 0
    assert fakes.calls("scontrol")[-1]["argv"] == ["release", "1_1"]


def test_what_may_not_be_released_can_be_cancelled_and_submitted_again(
    study: Study, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.set("1_0", state="PENDING", reason="JobHeldAdmin")
    refused = {"exit": 1, "stderr": "Access/permission denied for job 1_0"}
    fakes.answer("scontrol", None, refused)  # ping, release
    assert call("retry", study, "--held") == 2
    err = capsys.readouterr().err
    assert "Access/permission denied" in err
    assert "sdtps cancel" in err and "--held --yes" in err and "--cancelled" in err
    assert call("cancel", study, "--held", "--yes") == 0
    assert fakes.calls("scancel")[0]["argv"] == ["1_0"]
    assert call("retry", study, "--cancelled", "--no-audit") == 0
    assert len(fakes.calls("sbatch")) == 2


def test_a_job_that_began_and_was_then_held_is_not_taken_for_running(
    study: Study, fakes: Fakes, tmp_path: Path
) -> None:
    folder = study.runs()[0].folder(tmp_path / "runs")
    records.write_start(folder, fakes.arrays()[0]["name"], "1_0", 0)
    fakes.set("1_0", state="PENDING", reason="job requeued in held state")
    ask_anew(study)
    status = run_states(study.runs(), tmp_path / "runs")[0]
    assert (status.state, status.held) == ("requeued", True)
