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
    "status": "",
    "plan": "",
    "tables": "--out",
    "report": "--output",
    "paper": "--no-pdf --no-evidence --out",
}  # and options, the last of them for its output
# Linux counts the memory of the process that started another into what getrusage tells of that one.
_CHILD = """
import re, sys, time
from ablations.cli import main
code = main(sys.argv[1:])
print(time.process_time(), re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
sys.exit(code)
"""


def verbs(device: torch.device, sizes: tuple[int, ...] = (500, 5_000)) -> Iterator[Row]:
    """Each verb on a study of so many completed runs."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            manifest = write_runs(folder, size)
            for verb, options in VERBS.items():
                words = [verb, str(manifest), "--runs-dir", str(folder / "runs"), *options.split()]
                used, peak = _measure([*words, str(folder / verb)] if options else words)
                yield Row("scale", f"{verb}, runs {size}", used, peak_mib=peak)


def _measure(words: list[str]) -> tuple[float, float]:
    """Processor seconds and peak MiB of a verb.

    Raises:
        subprocess.CalledProcessError: it failed; its own messages went to standard error.
    """
    command = [sys.executable, "-c", _CHILD, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    used, kib = done.stdout.split()[-2:]
    return float(used), int(kib) / 1024


def write_runs(folder: Path, count: int) -> Path:
    """A manifest of `count` runs, and run folders as completed runs leave them in `folder`/runs."""
    path = folder / "bench.yaml"
    variants = {f"v{n}": {"optim.lr": (n + 1) * 1e-6} for n in range(max(1, count // SEEDS))}
    study = {"study": "bench", "task": "reid", "baseline": "v0", "varies": ["optim.lr"]}
    seeds = {"seeds": list(range(SEEDS)), "metrics": {"mAP": {"direction": "up"}}}
    path.write_text(json.dumps({**study, **seeds, "variants": variants}))
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
