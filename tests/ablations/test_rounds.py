"""Seeds in rounds, end to end on local slots: a program as variants, killed within a round."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ablations.cli import main
from ablations.store.submissions import put_aside
from ablations.study.attribution import design
from ablations.study.manifest import load_study
from ablations.study.schema import AttributionSpec
from tests.ablations.copies import fork_modules
from tests.analysis.planted import plant

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """\
import random, sys
from sdtps.log import log
level, seed = float(sys.argv[1]), int(sys.argv[2])
if str(seed) in sys.argv[3:]:
    sys.exit(3)
shared = random.Random(seed).gauss(0, 0.01)
own = random.Random(1000 * level + seed).gauss(0, 0.004)
log("eval", epoch=1, step=1, accuracy=level + shared + own)
"""
MANIFEST = """\
study: small
task: command
overrides:
  command: "{{python}} p.py {{settings.level}} {{seed}}"
  settings: {{level: 0.5}}
seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
baseline: base
varies: [settings, command]
metrics: {{accuracy: {{direction: up}}}}
resources: {{cpus: 1, timeout_min: 2}}
rounds: {{looks: [3, 6, 12], margin: 1.0}}
variants:
  base: {{}}
  far: {{settings.level: 0.7}}
  near: {{settings.level: 0.5001}}
{more}
"""


def write(folder: Path, more: str = "") -> Path:
    (folder / "p.py").write_text(PROGRAM)
    path = folder / "small.yaml"
    path.write_text(MANIFEST.format(more=more))
    return path


def submit(folder: Path, *words: str) -> int:
    return _call(folder, "submit", "--executor", "local", "--slots", "2", *words)


def _call(folder: Path, verb: str, *words: str) -> int:
    return main([verb, str(folder / "small.yaml"), "--runs-dir", str(folder / "runs"), *words])


def completed(folder: Path, study: str = "small") -> dict[str, int]:
    files = (folder / "runs" / study).glob("*/seed*/result.json")
    names = [file.parent.parent.name for file in files]
    return {name: names.count(name) for name in sorted(set(names))}


@pytest.fixture(autouse=True)
def _forks(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_modules(monkeypatch, "analysis.questions.rounds")


Answer = Callable[..., Any]


@pytest.fixture
def answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Answer:
    """What a verb says with --json."""

    def call(verb: str, *words: str) -> Any:
        capsys.readouterr()
        assert _call(tmp_path, verb, "--json", *words) != 2
        return json.loads(capsys.readouterr().out)

    return call


def test_rounds_train_open_variants_only_and_go_on_after_a_kill(
    tmp_path: Path, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    command = [sys.executable, "-m", "ablations", "submit", "small.yaml", "--executor", "local"]
    command += ["--slots", "1", "--runs-dir", str(tmp_path / "runs")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.time() + 120
    while sum(completed(tmp_path).values()) < 2 and time.time() < deadline:
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()

    assert submit(tmp_path, "--retry", "unknown") == 0
    assert completed(tmp_path) == {"base": 3, "far": 3, "near": 3}
    assert answer("rounds")["seeds_of"] == {"base": 6, "far": 3, "near": 6}
    assert submit(tmp_path) == 0
    assert completed(tmp_path) == {"base": 6, "far": 3, "near": 6}
    states = {v["variant"]: v["state"] for v in answer("rounds")["verdicts"]}
    assert states == {"far": "starred", "near": "equivalent"}
    assert submit(tmp_path) == 0
    assert "Nothing to submit" in capsys.readouterr().out


def test_a_budget_is_kept_with_failing_runs_and_named_with_exit_code_5(
    tmp_path: Path, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = "budget: {gpu_hours: 0.2}\n"  # twelve minutes: six runs at their limit of two
    failing = (
        "  broken: {command: '{python} p.py {settings.level} {seed} 0', settings.level: 0.6}\n" + budget
    )
    write(tmp_path, more=f"{failing}attributions: [{{good: base, broken: broken, seeds: [0, 1]}}]\n")
    whole, cells = answer("plan")
    sent = [(run["variant"], run["seed"]) for run in whole["runs"] if run["action"] == "submit"]
    assert sent == [("base", 0), ("base", 1), ("far", 0), ("far", 1), ("near", 0), ("broken", 0)]
    assert cells["submit"] == 0 and cells["budget"]["left"] == pytest.approx(0)
    assert submit(tmp_path) == 5
    assert "beyond the budget" in capsys.readouterr().out
    assert sum(completed(tmp_path).values()) <= 6
    assert completed(tmp_path, "small.base.broken").keys() <= {"base"}  # links; its own runs wait
    assert submit(tmp_path) in (0, 1)  # measured runs take seconds, so the rest fits now
    assert completed(tmp_path) == {"base": 3, "broken": 2, "far": 3, "near": 3}
    cells = completed(tmp_path, "small.base.broken")
    assert cells == {"base": 2, "base+command": 1, "base+level": 2, "broken": 1}
    documents = [*answer("plan"), answer("plan", "-v", "far")]
    (spent,) = {document["budget"]["spent"] for document in documents}  # whatever is asked about
    assert 0 < spent < 0.2


def test_a_search_stops_at_the_budget_and_says_what_it_could_not_decide(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Six runs of two minutes are spent; base took twelve minutes a run, so others are to, too."""
    command = "'{python} p.py {settings.level} {seed} 0 1 2'"
    variant = f"  broken: {{command: {command}, settings.level: 0.6}}\n"
    path = write(tmp_path, more=f"{variant}budget: {{gpu_hours: 0.31}}\n")
    spec = AttributionSpec(good="base", broken="broken", seeds=(0, 1, 2))
    cells = design(load_study(path), spec).study
    for seed in cells.seeds:
        plant(tmp_path / "runs", cells, "base", seed, train_seconds=720.0)
        plant(tmp_path / "runs", cells, "broken", seed, state="diverged", stop=(1, 3))
    words = ("attribute", "base", "broken", "--explodes", "--submit", "--executor", "local")
    assert _call(tmp_path, *words) == 1
    printed = capfd.readouterr()
    assert "2 cells to run (base+" in printed.out and "6 runs beyond the budget" in printed.err
    assert "as far as the budget of 0.31 GPU-hours goes" in printed.out
    path.write_text(path.read_text().replace("0.31", "0.65"))  # two fit, and are shorter than expected
    assert _call(tmp_path, *words) == 0
    assert "command make training explode" in capfd.readouterr().out


def test_attempts_of_failed_and_requeued_runs_count_in_the_budget(
    tmp_path: Path, answer: Answer
) -> None:
    study = load_study(write(tmp_path, more="budget: {gpu_hours: 0.55}\n"))
    quarters = ("00:00:00Z", "00:15:00Z", "00:30:00Z")
    attempts = [
        {"attempt": n, "started": f"2026-01-01T{a}", "ended": f"2026-01-01T{b}"}
        for n, (a, b) in enumerate(pairwise(quarters), start=1)
    ]
    failed = plant(
        tmp_path / "runs", study, "base", 0, state="failed", stop=(1, 2), attempts=attempts[:1]
    )
    plant(tmp_path / "runs", study, "far", 0, state="requeued", stop=(1, 2), attempts=attempts[1:])
    document = answer("plan")
    budget, runs = document["budget"], document["runs"]
    assert len(answer("status")["runs"]) == len(runs) == 9, "not the seeds that rounds have come to"
    assert budget["spent"] == pytest.approx(0.5)
    # Two minutes are left: one run at its limit fits, and every other one waits.
    assert budget["planned"] == pytest.approx(2 / 60)
    assert sum(run["action"] == "submit" for run in runs) == 1
    put_aside(failed.path, tmp_path / "runs")
    assert answer("plan")["budget"]["spent"] == pytest.approx(0.5)
