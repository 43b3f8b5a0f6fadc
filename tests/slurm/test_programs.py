"""Any program at its time limit and when it is cancelled, alone and two on a GPU, on a real SLURM."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.launch import dispatch
from ablations.store import cancel
from ablations.study.manifest import load_study
from sdtps.run.folder import RunFolder
from tests.slurm.cluster import Cluster, until
from tests.slurm.test_states import Look

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]

PROGRAM = """\
import pathlib, signal, sys, time
from sdtps.log import log
kind, place = sys.argv[1], pathlib.Path(sys.argv[2]) / "place.txt"
first = len(place.read_text().split()) + 1 if place.exists() else 1
def save(*_):
    with place.open("a") as stream:
        stream.write("saved ")
    time.sleep(1)
    sys.exit(75)
if kind != "rude":
    signal.signal(signal.SIGTERM, save)
log(epoch=first, step=first, loss=1.0)
if first == 1 and not (kind == "rude" and int(sys.argv[3]) > 1):
    time.sleep(600)
log("eval", epoch=2, step=2, accuracy=0.5)
"""
MANIFEST = """\
study: programs
task: command
seeds: [0]
baseline: polite
varies: [settings, command]
overrides:
  command: "{{python}} p.py {{settings.kind}} {{run}} $SDTPS_ATTEMPT {{seed}}"
  settings: {{kind: polite}}
variants:
  polite: {{}}
  rude: {{settings.kind: rude}}
  pipe:
    settings.kind: pipe
    command: "{{python}} p.py {{settings.kind}} {{run}} 1 {{seed}} | cat; true"
resources: {{partition: gpu, cpus: 1, mem_gb: 0.2, max_requeues: 3, timeout_min: {minutes}{more}}}
metrics: {{accuracy: {{direction: up}}}}
"""
PACKED = ", gpus: 1, runs_per_gpu: 2"


def _begun(tmp_path: Path, minutes: int, more: str = "") -> tuple[Look, list[str]]:
    """A study whose programs have begun, and the ids of its jobs."""
    (tmp_path / "p.py").write_text(PROGRAM)
    (tmp_path / "programs.yaml").write_text(MANIFEST.format(minutes=minutes, more=more))
    study = load_study(tmp_path / "programs.yaml")
    look = Look(study, tmp_path / "runs")
    (first,) = dispatch.submit(study.runs(), look.runs).jobs
    folders = [RunFolder(run.folder(look.runs)) for run in study.runs()]
    until(lambda: all(any(folder.metrics()) for folder in folders), look)
    return look, [f"{first}_{element}" for element in range(2 if more else 3)]


@pytest.mark.parametrize("more", ["", PACKED], ids=["alone", "two on a GPU"])
def test_at_its_time_limit_a_program_saves_and_goes_on(
    slurm: Cluster, tmp_path: Path, more: str
) -> None:
    look, jobs = _begun(tmp_path, 1, more)
    for job in jobs:
        slurm.end_soon(job, 45)
    found = look.wait(lambda s: all(r.state == "requeued" for r in s.values()))
    places = {v: r.run.folder(look.runs) / "place.txt" for v, r in found.items()}
    assert {v: p.read_text() if p.exists() else "" for v, p in places.items()} == {
        "polite": "saved ",
        "rude": "",
        "pipe": "saved ",
    }
    for job in jobs:
        slurm.start_now(job)
    found = look.wait(lambda s: all(r.state == "completed" for r in s.values()))
    assert {r.attempt for r in found.values()} == {2}
    logs = {v: (r.run.folder(look.runs) / "train.log").read_text() for v, r in found.items()}
    assert {v for v, text in logs.items() if "again from the beginning" in text} == {"rude"}


@pytest.mark.parametrize("more", ["", PACKED], ids=["alone", "two on a GPU"])
def test_a_program_that_is_cancelled_is_cancelled(slurm: Cluster, tmp_path: Path, more: str) -> None:
    look, _ = _begun(tmp_path, 10, more)
    cancel.cancel(list(look().values()), look.runs)
    found = look.wait(lambda s: not any(r.active for r in s.values()))
    assert {r.state for r in found.values()} == {"cancelled"}
    folder = found["polite"].run.folder(look.runs)
    assert (folder / "place.txt").read_text() == "saved "


def test_a_program_that_is_preempted_is_requeued(slurm: Cluster, tmp_path: Path) -> None:
    look, jobs = _begun(tmp_path, 10)
    for job in jobs[:2]:
        slurm.run("scontrol", "requeue", job)
    found = look.wait(lambda s: s["polite"].state == s["rude"].state == "requeued")
    assert (found["polite"].run.folder(look.runs) / "place.txt").read_text() == "saved "
