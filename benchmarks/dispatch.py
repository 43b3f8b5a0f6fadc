"""How long it takes to expand, tell and plan a large study, beside a plain way of doing the same."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from ablations.launch import dispatch
from ablations.launch.plan import make_plan
from ablations.slurm.queue import Scheduler
from ablations.store.life import run_states
from ablations.study.manifest import load_study
from ablations.study.model import RunSpec, Study
from benchmarks.machine import compare
from sdtps.config import identity, parse_config, resolved
from sdtps.run.folder import RunFolder
from sdtps.system.errors import SubmissionError

REPEATS = 5
QUICK = Path(__file__).parents[1] / "ablations" / "quick.yaml"
SEEDS = 10
_MANIFEST = """\
study: bench
task: reid
seeds: {seeds}
baseline: v0
varies: [optim.lr]
metrics: {{mAP: {{direction: up}}}}
variants:
{variants}
"""
_RESULT = {
    "attempt": 1,
    "best": {"epoch": 3, "mAP": 0.5},
    "final": {"mAP": 0.4},
    "select_metric": "mAP",
}
_FAILED = {"state": "failed", "kind": "error", "reason": "ValueError: no", "attempt": 1, "epoch": 2}


def bench(folders: int, compared: int, expanded: int) -> Iterator[dict[str, Any]]:
    """One result each for status, plan and expand.

    Args:
        folders: planted run folders that ours is timed on.
        compared: run folders that both ways are timed on; the plain one would take minutes on more.
        expanded: runs of the manifest that is read.
    """
    with tempfile.TemporaryDirectory() as temporary:
        large, small = (_planted(Path(temporary) / str(n), n) for n in (folders, compared))
        yield {"bench": "status", **_compare(_status, _status_plainly, small, large)}
        yield {"bench": "plan", **_compare(_plan, _plan_plainly, small, large)}
        study = _study(Path(temporary) / "expand", expanded)
        timed = compare(
            lambda: load_study(study.path).runs(), lambda: _expand_plainly(study), repeats=REPEATS
        )
        yield {"bench": "expand", "runs": len(study.runs()), **timed}


# -- what is timed --------------------------------------------------------------------------------


Planted = tuple[Study, Path]


def _status(planted: Planted) -> list[str]:
    study, runs = planted
    return [s.state for s in run_states(study.runs(), runs, Scheduler(runs))]


def _status_plainly(planted: Planted) -> list[str]:
    """Every file of every folder is read by its library: what one would write first."""
    study, runs = planted
    return [_state_plainly(run.folder(runs)) for run in study.runs()]


def _state_plainly(folder: Path) -> str:
    if not folder.is_dir():
        return "planned"
    if (folder / "config.yaml").exists():
        yaml.safe_load((folder / "config.yaml").read_text())
    read = {p.name: json.loads(p.read_text()) for p in folder.glob("*.json")}
    if "result.json" in read:
        return "completed"
    return str(read.get("status.json", {}).get("state", "planned"))


def _plan(planted: Planted) -> int:
    study, runs = planted
    return len(make_plan(study, runs, run_states(study.runs(), runs, Scheduler(runs))).submitted)


def _plan_plainly(planted: Planted) -> int:
    """As `_status_plainly`, and each configuration is compared with the one that is planned."""
    study, runs = planted
    missing = 0
    for run in study.runs():
        folder = run.folder(runs)
        state = _state_plainly(folder)
        missing += state == "planned" or RunFolder(folder).config() != run.config
    return missing


def _expand_plainly(study: Study) -> list[str]:
    """Each run's configuration is merged, checked and hashed by itself."""
    tree = yaml.safe_load(study.path.read_text())
    named = []
    for variant, override in tree["variants"].items():
        for seed in tree["seeds"]:
            config = parse_config({"task": tree["task"], "optim": {"lr": float(override["optim.lr"])}})
            named.append(f"{variant}/seed{seed}-{identity(config, seed)}")
    return named


# -- how it is timed ------------------------------------------------------------------------------


def _compare(
    ours: Callable[[Planted], object],
    plain: Callable[[Planted], object],
    small: Planted,
    large: Planted,
) -> dict[str, Any]:
    assert ours(small) == plain(small), "the two ways disagree"
    timed = compare(lambda: ours(small), lambda: plain(small), repeats=REPEATS, warmup=0)
    seconds = [_seconds(lambda: ours(large)) for _ in range(REPEATS)]
    return {
        "folders": len(large[0].runs()),
        "seconds": round(statistics.median(seconds), 4),
        "compared": {"folders": len(small[0].runs()), **timed},
    }


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# -- what it is timed on --------------------------------------------------------------------------


def _study(folder: Path, runs: int) -> Study:
    folder.mkdir(parents=True)
    path = folder / "bench.yaml"
    variants = "\n".join(f"  v{n}: {{optim.lr: {n + 1}e-6}}" for n in range(max(1, runs // SEEDS)))
    path.write_text(_MANIFEST.format(seeds=list(range(SEEDS)), variants=variants))
    return load_study(path)


def _planted(folder: Path, count: int) -> Planted:
    """Run folders as runs leave them, one half completed and one half failed."""
    study = _study(folder, count)
    texts: dict[str, str] = {}
    for number, run in enumerate(study.runs()):
        files = RunFolder(run.folder(folder))
        files.path.mkdir(parents=True)
        files.config_file.write_text(_config(run, texts))
        files.run_file.write_text(json.dumps({"seed": run.seed, "code": {"digest": "0" * 12}}))
        if number % 2:
            files.result_file.write_text(json.dumps(_RESULT))
            files.status_file.write_text(json.dumps({**_FAILED, "state": "completed"}))
        else:
            files.status_file.write_text(json.dumps(_FAILED))
    return study, folder


def _config(run: RunSpec, texts: dict[str, str]) -> str:
    if run.variant not in texts:
        texts[run.variant] = yaml.dump(resolved(run.config), sort_keys=False)
    return texts[run.variant]


# -- several runs at once -------------------------------------------------------------------------


def packing(together: int) -> dict[str, Any]:
    """Seconds of `together` runs of the quick study, one after the other and all at once.

    The runs are of different variants with one seed. A run before them writes the images, so that
    neither way pays for it; starting Python is part of both.

    Raises:
        SubmissionError: more runs than the study has variants, or only one.
    """
    study = load_study(QUICK)
    runs = [run for run in study.runs() if run.seed == study.seeds[0]]
    if not 2 <= together < len(runs):
        raise SubmissionError(f"--together {together}: give 2 to {len(runs) - 1} runs of {QUICK.name}")
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(sys.stderr):
        folder = Path(name)
        _work(study, runs[together : together + 1], folder / "before", 1)
        alone, _ = _work(study, runs[:together], folder / "alone", 1)
        packed, steps = _work(study, runs[:together], folder / "packed", together)
    return {
        "bench": "packing",
        "together": together,
        "cpus": os.cpu_count(),
        "seconds": {"ours": round(packed, 2), "reference": round(alone, 2)},
        "steps": steps,
        "speedup": round(alone / packed, 2),
    }


def _work(study: Study, runs: Sequence[RunSpec], runs_dir: Path, slots: int) -> tuple[float, int]:
    """Seconds until the last of `runs` has ended, and the steps that they trained."""
    begun = time.perf_counter()
    report = dispatch.submit(study, runs, runs_dir, executor="local", slots=slots)
    seconds = time.perf_counter() - begun
    bad = [f"{path}: {how}" for path, how in report.outcomes.items() if how == "failed"]
    if bad or len(report.outcomes) < len(runs):
        raise RuntimeError("runs failed, so their seconds say nothing:\n  " + "\n  ".join(bad))
    results = (RunFolder(path).result() or {} for path in report.outcomes)
    return seconds, sum(int(result.get("steps") or 0) for result in results)
