"""The sbatch file as bash runs it: what it writes down, and for whose runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ablations.launch import submit as front
from ablations.slurm import endings
from ablations.slurm import script as batch
from ablations.slurm.arrays import Chunk
from ablations.store import attempts as records
from ablations.store.submissions import Submission
from ablations.study.schema import Resources
from sdtps.system.errors import SubmissionError

NAME = "sdtps-study-0123456789"


@pytest.mark.parametrize("together", [1, 2], ids=["one run", "two runs on a GPU"])
def test_a_line_that_was_cut_short_costs_only_itself(tmp_path: Path, together: int) -> None:
    run, text = _element(tmp_path, Resources(gpus=1, runs_per_gpu=together))
    records.attempts_file(run).parent.mkdir()
    records.attempts_file(run).write_text(f"end {NAME} 7_0")
    assert _bash(tmp_path, text, code=3) == 3
    found = records.read(run, NAME)
    assert found.last_start is not None and found.last_start.job == "7_0"
    assert found.last_end is not None and found.last_end.code == 3


def test_a_run_that_a_submission_of_a_longer_name_holds_is_left_alone(tmp_path: Path) -> None:
    run, text = _element(tmp_path, Resources(), holder=f"{NAME}-and-more")
    assert _bash(tmp_path, text, code=0) == endings.NOT_OURS
    assert not records.attempts_file(run).exists()


def test_shellcheck_finds_nothing_in_the_job_script(tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    file = Path(batch.__file__).with_name("job.sh")
    done = subprocess.run(["shellcheck", str(file)], capture_output=True, text=True)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("setup", "code"),
    [
        ("export SHOWN=1\n\n", 3),
        (["# nothing but a comment", "export SHOWN='# no comment'"], 3),
        (["if true; then", "  export SHOWN=1", "fi"], 3),
        (["true", "false || true", "! false"], 3),
        (["export SHOWN=1", "false  # fails", "export SHOWN=2"], endings.SETUP_FAILED),
        (["module load nothing"], endings.SETUP_FAILED),
        (["echo 'no end"], endings.SETUP_FAILED),
    ],
)
def test_a_setup_line_that_fails_ends_the_job_and_others_do_not(
    tmp_path: Path, setup: str | list[str], code: int
) -> None:
    given = setup if isinstance(setup, str) else tuple(setup)
    resources = Resources.model_validate({"setup": given})
    run, text = _element(tmp_path, resources)
    assert _bash(tmp_path, text, code=3) == code
    end = records.read(run, NAME).last_end
    assert end is not None and end.code == code


def test_the_interpreter_may_be_a_command_and_srun_gets_its_options(tmp_path: Path) -> None:
    asked = {
        "python": "apptainer exec --nv '/images/a b.sif' python",
        "srun": ("--mpi=pmix", "--comment=a b"),
        "environment": {"SHOWN": "it's $HOME"},
    }
    run, text = _element(tmp_path, Resources.model_validate(asked))
    assert _bash(tmp_path, text, code=0, show='printf "%s\\n" "$@" "$SHOWN" "${RANK-none}"') == 0
    words = (tmp_path / "shown").read_text().splitlines()
    jobs = str(run.parent.parent / "_jobs" / NAME)
    assert words == [
        *("--kill-on-bad-exit=1", "--mpi=pmix", "--comment=a b"),
        *("apptainer", "exec", "--nv", "/images/a b.sif", "python"),
        *("-P", "-u", "-m", "ablations.launch.worker", jobs, "it's $HOME", "none"),
    ]


@pytest.mark.parametrize("name", ["a:b", "a\\b", "a\nb"])
def test_a_store_whose_jobs_would_all_fail_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SubmissionError, match="cannot hold"):
        batch.script(tmp_path / name / NAME, Chunk((None,), Resources()), tmp_path)


def test_a_percent_sign_in_a_path_is_no_pattern(tmp_path: Path) -> None:
    text = batch.script(tmp_path / "50%u" / NAME, Chunk((None,), Resources()), tmp_path)
    assert f"{tmp_path}/50%%u/{NAME}/%A_%a.log" in text


def _element(folder: Path, resources: Resources, holder: str = NAME) -> tuple[Path, str]:
    """A run folder and the script of the one array element that it is in."""
    run, submission = folder / "s/v/seed0-x", Submission(folder / "s/_jobs" / NAME)
    run.mkdir(parents=True)
    submission.folder.mkdir(parents=True)
    (run / "lock.json").write_text(json.dumps({"submission": holder}))
    (submission.folder / "runs.txt").write_text("v/seed0-x\n")
    (submission.folder / "setup.sh").write_text(batch.setup_text(resources))
    return run, batch.script(submission.folder, Chunk((None,), resources), folder)


def _bash(folder: Path, text: str, code: int, show: str = ":") -> int:
    """The exit code of the script, where srun does `show` and ends with `code`."""
    srun = folder / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(f"#!/bin/bash\n{show} >{folder}/shown\nexit {code}\n")
    srun.chmod(0o755)
    slurm = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURM_RESTART_COUNT": "0"}
    env = {**os.environ, **slurm, "RANK": "1", "PATH": f"{srun.parent}:/usr/bin:/bin"}
    return subprocess.run(["bash", "-c", text], env=env, cwd=folder, timeout=300).returncode


# -- which executor ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ping", "executor"),
    [
        ("echo 'Slurmctld(primary) at head is UP'", "slurm"),
        ("echo 'Slurmctld(primary) at head is DOWN'; exit 1", "slurm"),
        ("echo 'scontrol: fatal: Could not establish a configuration source' >&2; exit 1", "local"),
        (None, "local"),  # no client programs
    ],
)
def test_auto_follows_the_cluster_not_the_client_programs(
    ping: str | None, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, body in {"sbatch": "exit 0", "scontrol": ping}.items() if ping else ():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if ping else str(tmp_path))
    assert front.choose_executor("auto") == executor
    assert [front.choose_executor(word) for word in ("slurm", "local")] == ["slurm", "local"]
