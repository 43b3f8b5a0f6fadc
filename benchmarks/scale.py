"""Processor time and peak memory of the verbs that read large studies, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from ablations.study.manifest import load_study
from benchmarks.timing import Row
from sdtps.run.folder import RunFolder, config_text

SEEDS = 10
EPOCHS = 100  # rows of a run's metrics
VERBS = {
    "status": ("ablations.cli", ()),
    "plan": ("ablations.cli", ()),
    "tables": ("analysis.cli", ("--out",)),
    "report": ("analysis.cli", ("--output",)),
    "paper": ("analysis.cli", ("--out",)),
}
# Linux counts the memory of the process that started another into what getrusage tells of that one.
_CHILD = """
import importlib, re, sys, time
code = importlib.import_module(sys.argv[1]).main(sys.argv[2:])
print(time.process_time(), re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
sys.exit(code)
"""
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


def verbs(device: torch.device, sizes: tuple[int, ...] = (500, 5_000)) -> Iterator[Row]:
    """Each verb on a study of so many completed runs."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            manifest = write_runs(folder, size)
            for verb, (module, options) in VERBS.items():
                outputs = [word for option in options for word in (option, str(folder / verb))]
                place = ["--runs-dir", str(folder / "runs")]
                used, peak = _measure(module, [verb, str(manifest), *place, *outputs])
                yield Row("scale", f"{verb}, runs {size}", used, peak_mib=peak)


def _measure(module: str, words: list[str]) -> tuple[float, float]:
    """Processor seconds and peak MiB of a verb.

    Raises:
        subprocess.CalledProcessError: it failed; its own messages went to standard error.
    """
    command = [sys.executable, "-c", _CHILD, module, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    used, kib = done.stdout.split()[-2:]
    return float(used), int(kib) / 1024


def write_runs(folder: Path, count: int) -> Path:
    """A manifest of `count` runs, and run folders as completed runs leave them in `folder`/runs."""
    path = folder / "bench.yaml"
    variants = "\n".join(f"  v{n}: {{optim.lr: {n + 1}e-6}}" for n in range(max(1, count // SEEDS)))
    path.write_text(_MANIFEST.format(seeds=list(range(SEEDS)), variants=variants))
    texts: dict[str, str] = {}
    for number, run in enumerate(load_study(path).runs()):
        files = RunFolder(run.folder(folder / "runs"))
        files.path.mkdir(parents=True)
        if run.variant not in texts:
            texts[run.variant] = config_text(run.config)
        files.config_file.write_text(texts[run.variant])
        about = {"study": run.study, "variant": run.variant, "seed": run.seed}
        files.run_file.write_text(json.dumps({**about, "code": {"digest": "0" * 12}}))
        rows = []
        for epoch in range(1, EPOCHS + 1):
            row = {"attempt": 1, "kind": "train", "epoch": epoch, "step": epoch, "lr": 1e-3}
            loss = 2.0 / epoch + 0.01 * (number % 7)
            rows.append({**row, "loss": loss, "epoch_loss": loss})
        score = {"epoch": EPOCHS, "step": EPOCHS, "mAP": 0.4 + 0.001 * (number % 37)}
        rows.append({"attempt": 1, "kind": "eval", **score})
        files.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        result = {"attempt": 1, "best": score, "final": score, "select_metric": "mAP"}
        files.write_result({**result, "selected_on": "test"})
    return path
