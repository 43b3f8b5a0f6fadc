"""A mistyped command, choice or option is answered with the nearest right one, and exit code 2."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from sdtps.commandline import at_least

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["-m", "ablations", "statsu", "x"], "status"),
        (["-m", "ablations", "retry", "quick", "--faild"], "--failed"),
        (["-m", "ablations", "plan", "quick", "--retry", "faild"], "failed"),
        (["submit.py", "quick", "--dryrun"], "--dry-run"),
        (["submit.py", "quick", "--executer=local"], "--executor"),
        (["submit.py", "quick", "--executor", "slrum"], "slurm"),
        (["-m", "analysis", "tabels"], "tables"),
        (["-m", "analysis", "paper", "--no-pfd"], "--no-pdf"),
        (["-m", "sdtps", "convrt"], "convert"),
        (["submit.py", "quik"], "quick"),
        (["submit.py", "ablations/quik.yaml"], "quick"),
    ],
)
def test_the_nearest_word_is_named(typed: list[str], meant: str) -> None:
    done = subprocess.run(
        [sys.executable, *typed], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert f"Did you mean '{meant}'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("typed", ["-1", "0", "1.5", "x", "\N{SUPERSCRIPT TWO}"])
def test_numbers_that_cannot_be_are_refused(typed: str) -> None:
    with pytest.raises(
        argparse.ArgumentTypeError, match=f"'{typed}' is not a whole number of at least 1"
    ):
        at_least(1)(typed)
    assert at_least(1)("12") == 12
