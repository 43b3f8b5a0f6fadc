"""Studies from Python, as submitit's jobs: what `sdtps submit` does, for a notebook or a script."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ablations.launch import submit as front
from ablations.slurm.run_job import RunJob
from ablations.store import locks
from ablations.store.equal import equal_runs
from ablations.study.arguments import filtered, read_studies
from ablations.study.model import RunSpec
from sdtps.system.commandline import verb_parser
from sdtps.system.errors import SubmissionError
from sdtps.system.files import share

_queues: list[subprocess.Popen[bytes]] = []  # of local runs: they end by themselves


def submit(
    study: str | Path, variants: Iterable[str] = (), seeds: Iterable[int] = (), **options: Any
) -> list[RunJob]:
    """Submit what is missing of a study; returns a job for each run, also for those that are there.

    Plans, looks at the inputs and audits as the command does. A process of its own works through local
    runs, and goes on when this one ends.

    Args:
        study: name or manifest.
        variants: names or patterns; none: all.
        seeds: none: all.
        options: those of `sdtps submit`, such as executor="local", slots=2, retry=["failed"].

    Raises:
        SdtpsError: as the command: mistakes in the manifest, a refused submission.
        TypeError: an option that the command does not have.
    """
    words = [str(study)]
    for name, value in {"variant": list(variants), "seed": list(seeds), **options}.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            for one in value if isinstance(value, (list, tuple)) else [value]:
                words += [option, str(one)]
    verbs = {"submit": ("ablations.launch.submit", "submit every run that is missing", "submit")}
    try:
        arguments = verb_parser("sdtps", "submit", verbs).parse_intermixed_args(words)
    except SystemExit:  # its message is printed
        raise TypeError("submit takes the options of `sdtps submit --help`") from None
    runs_dir: Path = arguments.runs_dir.resolve()
    share(runs_dir)
    studies = [filtered(one, arguments.variant, arguments.seed) for one in read_studies(arguments)]
    runs = [run for one in studies for run in one.runs()]
    if front.choose_executor(arguments.executor) == "local":
        _start_queue([*words, "--executor", "local"], runs_dir / studies[0].name)
    else:
        front.submit(arguments)
    return [RunJob(folder) for folder in _folders(runs, runs_dir)]


def _folders(runs: list[RunSpec], runs_dir: Path) -> list[Path]:
    """Where each run is: its own folder, or that of the run of equal hash that waits or runs."""
    folders = [run.folder(runs_dir) for run in runs]
    equal = equal_runs([folder for folder in folders if not folder.exists()], runs_dir)
    stand_ins = {f: next((one.folder for one in ones if one.may_run), f) for f, ones in equal.items()}
    return [stand_ins.get(folder, folder) for folder in folders]


def _start_queue(words: list[str], study_folder: Path) -> None:
    """Start the command in a process of its own; returns once it has locked its runs, or has ended."""
    with tempfile.TemporaryFile() as output:
        queue = subprocess.Popen(
            [sys.executable, "-m", "ablations", "submit", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _queues.append(queue)
        while queue.poll() is None and not _locked_by(queue.pid, study_folder):
            time.sleep(0.1)
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    if queue.returncode not in (None, 0, 1, front.PARTIAL):
        raise SubmissionError(text)
    print(text)


def _locked_by(pid: int, study_folder: Path) -> bool:
    for file in study_folder.glob(f"{locks.JOBS}/*/submission.json"):
        lock = locks.read(file.parent)
        if lock is not None and lock.submitter is not None and lock.submitter.pid == pid:
            return lock.submitter.host == locks.host()
    return False
