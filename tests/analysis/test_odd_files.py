"""Whatever lies under the name of a run's file: a note on that run, no traceback, and nobody waits."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from planted import plant, planted_study, sketched

from analysis.figures import figure
from analysis.paper.explain import describe
from analysis.report.verb import write as write_report
from analysis.runs.collect import collect
from analysis.runs.comparable import KINDS, refuse_to_average
from analysis.tables import forms
from analysis.tables import study as tables


def _unreadable(path: Path) -> None:
    path.symlink_to("/proc/self/mem")  # regular, and fails when read, for root too


ODD = [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("nowhere"), _unreadable]
FILES = [
    *("result.json", "status.json", "run.json", "config.yaml", "lock.json", "metrics.jsonl"),
    *("checkpoint.pt", "train.log", "submitit", "submitit/job.log"),
]


@pytest.fixture(autouse=True)
def _nobody_waits() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError("waited for a file")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 30)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def _replace(path: Path, odd: Callable[[Path], None]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    odd(path)


@pytest.mark.parametrize("odd", ODD)
def test_every_reader_goes_on_beside_an_odd_file(tmp_path: Path, odd: Callable[[Path], None]) -> None:
    study = planted_study("odd", FILES, seeds=(0, 1))
    runs = tmp_path / "runs"
    for variant in FILES:
        plant(runs, study, variant, 0)
        folder = plant(runs, study, variant, 1)
        _replace(folder.path / variant, odd)
    collected = collect([study], runs)
    found = {(run.variant, run.seed): run for run in collected.runs}
    assert all(run.state == "completed" for run in collected.runs if run.seed == 0)
    assert found["result.json", 1].state == "failed"
    assert "result.json" in found["result.json", 1].reason
    sealed = {"run.json", "config.yaml", "metrics.jsonl"}
    for name in set(FILES) - {"result.json"}:
        assert found[name, 1].state == ("damaged" if name in sealed else "completed")
    assert all(name in found[name, 1].reason for name in sealed)
    if odd is not _unreadable:
        for name in set(FILES[:8]) - {"result.json"} - sealed:
            assert f"{name} is " in "; ".join(found[name, 1].notes), name
    marks = refuse_to_average(collected, allow=KINDS)
    for table in tables.tables(collected, study, marks):
        forms.write(table, tmp_path / "tables")
    with sketched():
        for drawn in figure.figures(collected, study, marks):
            figure.write(drawn, tmp_path / "figures")
    write_report(collected, tmp_path / "report.html")
    for run in collected.runs:
        json.dumps(describe(run.where, runs))


@pytest.mark.parametrize("odd", [os.mkfifo, Path.mkdir, _unreadable])
def test_without_a_result_the_status_decides_and_an_odd_one_is_named(tmp_path: Path, odd) -> None:
    study = planted_study("odd", ["a"], seeds=(0,))
    folder = plant(tmp_path, study, "a", 0, state="diverged", stop=(1, 3))
    _replace(folder.status_file, odd)
    run = collect([study], tmp_path).runs[0]
    assert run.state in ("failed", "planned")
    assert "status.json" in f"{run.reason} {run.notes}"
    shutil.rmtree(folder.path)
    odd(folder.path)  # in the place of the folder: no run
    assert collect([study], tmp_path).runs[0].state in ("failed", "planned")
