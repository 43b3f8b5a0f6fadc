"""1,002 runs of a second where MaxArraySize is 1001: few sbatch calls, soon submitted, no stray files.

Takes many minutes on two cores, so that its name hides it from `make test`; `make slurm-large` runs it.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from ablations.launch import dispatch
from ablations.slurm.queue import Scheduler
from ablations.store.life import run_states
from tests.ablations import plant, standin

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(3600),
]
COUNT = 1002


@pytest.mark.usefixtures("slurm")
def test_1002_runs_all_complete_after_at_most_three_sbatch_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", standin.PATH)
    begun = time.monotonic()
    study = plant.study(tmp_path, ["second"], seeds=COUNT, resources="{cpus: 1, mem_gb: 0.2}")
    runs = tmp_path / "runs"
    report = dispatch.submit(study.runs(), runs, entry=standin.ENTRY)
    submitted = time.monotonic() - begun
    print(f"planned and submitted in {submitted:.1f} s, {report.sbatch_calls} sbatch calls", flush=True)
    assert report.sbatch_calls <= 3
    assert submitted < 10
    scheduler = Scheduler(runs, refresh_s=5)
    deadline = time.monotonic() + 3000
    while True:
        states = run_states(study.runs(), runs, scheduler)
        counted = Counter(s.state for s in states)
        print(f"{time.monotonic() - begun:.0f} s: {dict(counted)}", flush=True)
        if counted == {"completed": COUNT}:
            break
        wrong = [s for s in states if s.state not in {"queued", "running", "completed"}]
        assert not wrong, "\n".join(f"{s.run.name}: {s.reason}\n{s.log_tail}" for s in wrong)
        assert time.monotonic() < deadline
        time.sleep(15)
    folders = [run.folder(runs) for run in study.runs()]
    assert max(sum(not p.is_dir() for p in f.rglob("*")) for f in folders) <= 12
    logs = sum(1 for p in (runs / study.name / "_jobs").rglob("*.log"))
    others = sum(1 for p in (runs / study.name / "_jobs").rglob("*") if p.suffix != ".log")
    assert logs <= COUNT
    assert others <= 6 * report.sbatch_calls
