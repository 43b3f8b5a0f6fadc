"""`make paper` and `make studies` go on after failed runs, say so, and stop at anything else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Stands for Python: writes down what it was asked for, and ends as `submit.py` is told to;
# the eighth word is the folder behind --data-root.
STAND_IN = """\
#!/bin/sh
echo "$*" >>"{calls}"
case "$1" in submit.py) [ -z "$8" ] || [ -d "$8" ] || exit 2; exit {code} ;; esac
"""

pytestmark = pytest.mark.latex  # the target would install it


def _make(folder: Path, target: str, code: int, *more: str) -> tuple[int, list[str], str]:
    calls, python = folder / "calls.txt", folder / "python"
    python.write_text(STAND_IN.format(calls=calls, code=code))
    python.chmod(0o755)
    (folder / "installed").touch()
    done = subprocess.run(
        ["make", target, f"PY={python}", f"VENV={folder}", "STUDIES=gumbel nograd", *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    called = calls.read_text().splitlines() if calls.exists() else []
    return done.returncode, called, done.stdout + done.stderr


@pytest.mark.parametrize("target", ["paper", "studies"])
def test_all_completed(tmp_path: Path, target: str) -> None:
    code, calls, told = _make(tmp_path, target, 0)
    assert code == 0 and "failed" not in told
    assert not any("--allow-missing" in call or "omniglot" in call for call in calls)
    assert ("Left out: omniglot. To run it: make studies OMNIGLOT=" in told) == (target == "studies")


def test_handwriting_is_among_the_studies_where_its_data_are(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    code, calls, told = _make(tmp_path, "studies", 0, f"OMNIGLOT={data}")
    assert code != 0 and calls == [] and f"OMNIGLOT={data}: there is no folder RGBNT201" in told
    (data / "RGBNT201").mkdir(parents=True)
    code, calls, told = _make(tmp_path, "studies", 0, f"OMNIGLOT={data}")
    assert code == 0 and "Left out" not in told
    assert [call.split()[1] for call in calls[:3]] == ["gumbel", "nograd", "omniglot"]
    assert [call for call in calls if "--data-root" in call] == [calls[2]]
    assert calls[2].endswith(f"--data-root {data}")
    assert calls[3] == "-m analysis curves gumbel nograd omniglot"


@pytest.mark.parametrize(("target", "submissions"), [("paper", 1), ("studies", 2)])
def test_failed_runs_are_shown_and_the_exit_code_says_so(
    tmp_path: Path, target: str, submissions: int
) -> None:
    code, calls, told = _make(tmp_path, target, 1)
    assert code != 0 and "Some runs failed" in told
    assert sum(call.startswith("submit.py") for call in calls) == submissions
    assert [call.split()[:3] for call in calls[submissions:]] == {
        "paper": [["-m", "analysis", "paper"]],
        "studies": [["-m", "analysis", "curves"], ["-m", "analysis", "claims"]],
    }[target]


@pytest.mark.parametrize("target", ["paper", "studies"])
def test_a_manifest_with_mistakes_stops_it(tmp_path: Path, target: str) -> None:
    code, calls, _ = _make(tmp_path, target, 2)
    assert code != 0
    assert len(calls) == 1
