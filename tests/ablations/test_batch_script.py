"""The sbatch file as bash runs it: what it writes down, and for whose runs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ablations.slurm import script as batch
from ablations.slurm import verdict
from ablations.store import attempts as records
from ablations.store.submissions import Submission
from ablations.study.schema import Resources

NAME = "sdtps-study-0123456789"


@pytest.mark.parametrize("together", [1, 2], ids=["one run", "two runs on a GPU"])
def test_a_line_that_was_cut_short_costs_only_itself(tmp_path: Path, together: int) -> None:
    run, text = _element(tmp_path, together)
    records.attempts_file(run).parent.mkdir()
    records.attempts_file(run).write_text(f"end {NAME} 7_0")
    assert _bash(tmp_path, text, code=3) == 3
    found = records.read(run, NAME)
    assert found.last_start is not None and found.last_start.job == "7_0"
    assert found.last_end is not None and found.last_end.code == 3


def test_a_run_that_a_submission_of_a_longer_name_holds_is_left_alone(tmp_path: Path) -> None:
    run, text = _element(tmp_path, 1, holder=f"{NAME}-and-more")
    assert _bash(tmp_path, text, code=0) == verdict.NOT_OURS
    assert not records.attempts_file(run).exists()


def test_an_option_without_a_value_is_there_or_not(tmp_path: Path) -> None:
    given = {"exclusive": True, "overcommit": False, "mem": 0, "mail_type": "END"}
    resources = Resources.model_validate({"sbatch": given})
    text = batch.script(tmp_path / NAME, resources, 1, None, tmp_path)
    options = [line.removeprefix("#SBATCH --") for line in text.splitlines() if "#SBATCH" in line]
    assert {"exclusive", "mem=0", "mail-type=END"} <= set(options)
    assert not any("overcommit" in option for option in options)
    assert len({option.partition("=")[0] for option in options}) == len(options)  # each once


def _element(folder: Path, together: int, holder: str = NAME) -> tuple[Path, str]:
    """A run folder and the script of the one array element that it is in."""
    run, submission = folder / "s/v/seed0-x", Submission(folder / "s/_jobs" / NAME)
    run.mkdir(parents=True)
    submission.folder.mkdir(parents=True)
    (run / "claim.json").write_text(json.dumps({"submission": holder}))
    (submission.folder / "runs.txt").write_text("v/seed0-x\n")
    resources = Resources.model_validate({"gpus": 1, "runs_per_gpu": together})
    return run, batch.script(submission.folder, resources, 1, None, folder)


def _bash(folder: Path, text: str, code: int) -> int:
    """The exit code of the script, where srun ends with `code`."""
    srun = folder / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(f"#!/bin/sh\nexit {code}\n")
    srun.chmod(0o755)
    slurm = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURM_RESTART_COUNT": "0"}
    env = {**os.environ, **slurm, "PATH": f"{srun.parent}:/usr/bin:/bin"}
    return subprocess.run(["bash", "-c", text], env=env, cwd=folder, timeout=30).returncode
