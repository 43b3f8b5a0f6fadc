"""Studies for dispatch's tests: their variants are named after how their runs end (see standin.py)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ablations.launch import dispatch
from ablations.slurm.scheduler import Scheduler
from ablations.store import attempts
from ablations.store.states import RunStatus, run_states
from ablations.study.manifest import load_study
from ablations.study.model import Study
from tests.ablations.fakes import Fakes


def study(
    folder: Path,
    variants: list[str],
    *,
    name: str = "endings",
    seeds: int = 1,
    resources: str = "{partition: gpu, gpus: 0, cpus: 1, mem_gb: 0.2, timeout_min: 5}",
    own: dict[str, str] | None = None,
) -> Study:
    """A checked study; each variant differs from the base by a number that nothing reads here.

    Args:
        own: variant to resources of its own.
    """
    lines = [
        f"study: {name}",
        "task: reid",
        f"seeds: {list(range(seeds))}",
        f"baseline: {variants[0]}",
        "varies: [optim.lr]",
        f"resources: {resources}",
        "metrics: {mAP: {direction: up}}",
        "variants:",
    ]
    for number, variant in enumerate(variants, start=1):
        extra = f", resources: {own[variant]}" if own and variant in own else ""
        lines.append(f"  {variant}: {{optim.lr: {number}e-6{extra}}}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return load_study(path)


class Queued:
    """A submitted study of some runs, what becomes of their jobs, and a fresh look at them."""

    def __init__(self, folder: Path, fakes: Fakes, count: int = 1) -> None:
        self.fakes = fakes
        self.study = study(folder, ["ok"], seeds=count)
        self.runs = folder / "runs"
        dispatch.submit(self.study.runs(), self.runs)
        self.name: str = fakes.arrays()[-1]["name"]
        self.folders = [run.folder(self.runs) for run in self.study.runs()]
        self.folder = self.folders[0]
        self.jobs = self.runs / "endings/_jobs" / self.name
        self.scheduler = Scheduler(self.runs, refresh_s=0)

    def look(self, runs: Path | None = None, index: int = 0, refresh_s: float = 0) -> RunStatus:
        scheduler = Scheduler(runs or self.runs, refresh_s) if runs or refresh_s else self.scheduler
        return run_states(self.study.runs(), runs or self.runs, scheduler)[index]

    def begin(self, beat: float | None = None, *, job: str = "1_0", restart: int = 0) -> None:
        """Started, and heard of `beat` seconds ago."""
        attempts.write_start(self.folder, self.name, job, restart)
        attempts.write_began(self.folder, self.name, job, restart)
        if beat is not None:
            status = {"state": "running", "attempt": 1, "epoch": 2, "progress": 0.4}
            status["heartbeat"] = time.time() - beat
            (self.folder / "status.json").write_text(json.dumps(status))

    def end(self, code: int, *, job: str = "1_0", restart: int = 0, terminated: bool = False) -> None:
        attempts.write_end(self.folder, self.name, job, restart, code, terminated=terminated)

    def log(self, text: str, index: int = 0) -> None:
        (self.jobs / f"1_{index}.log").write_text(text)

    def edit(self, name: str, **fields: Any) -> None:
        file = self.jobs / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    def forget(self) -> None:
        """As a controller does after MinJobAge; only two answers without the job are believed."""
        self.fakes.set("1_0", gone=True)
        self.edit("receipt.json", time=time.time() - 600)
        self.look()
        self.look()

    def submit(self) -> list[Path]:
        return dispatch.submit(self.study.runs(), self.runs).submitted
