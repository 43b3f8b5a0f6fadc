"""The verb `pull`: copy a run store here, so that tables and curves are made on this machine.

rsync does the work: what was interrupted is resumed, what is here already is not sent again, and runs
may be running meanwhile. States of the copy come from its own files; nothing is submitted from it again
unless somebody asks (see `ablations.store.states`).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from sdtps.system.commandline import add_runs_dir
from sdtps.system.errors import RunError, counted

# Made again here, of the original's machine only, or half-written.
_LEFT_OUT = (
    "/_code",
    "/_deleting",
    "/_aside",
    "/_canaries",
    "/_trials",
    ".squeue-*",
    ".lock",
    ".*.tmp",
)
_WEIGHTS = ("checkpoint.pt", "*.safetensors")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="HOST:PATH", help="the run store on another machine, or a folder here"
    )
    parser.add_argument(
        "--study", action="append", default=[], metavar="NAME", help="this study only; may be repeated"
    )
    parser.add_argument("--weights", action="store_true", help="copy weights and checkpoints too")
    add_runs_dir(parser)


def command(arguments: argparse.Namespace) -> int:
    """Raises RunError where rsync is missing or fails."""
    from ablations.store import states
    from sdtps.run.locations import run_folders

    if shutil.which("rsync") is None:
        raise RunError("pull needs rsync: install it on both machines")
    runs_dir: Path = arguments.runs_dir.resolve()
    runs_dir.mkdir(parents=True, exist_ok=True)
    source = arguments.source.rstrip("/")
    if ":" not in source and Path(source).resolve() == runs_dir:
        raise RunError(f"{source} is the store to copy to: give another --runs-dir")
    # Of rsync's rules the first that fits a name decides.
    rules = [f"--exclude={n}" for n in (*_LEFT_OUT, *(() if arguments.weights else _WEIGHTS))]
    wanted = [f"--include=/{study}/***" for study in arguments.study]
    wanted += ["--exclude=/*"] if wanted else []
    # Results last: a run is completed by its result.json, and the other files must be whole by then.
    for first in (["--exclude=result.json"], []):
        words = ["rsync", "--archive", "--partial", *rules, *first, *wanted, f"{source}/"]
        done = subprocess.run([*words, f"{runs_dir}/"], stderr=subprocess.PIPE, text=True)
        # 24: a file vanished while it was copied, which a running run does with temporary ones.
        if done.returncode not in (0, 24):
            raise RunError(
                f"rsync failed (exit {done.returncode}): {done.stderr.strip()[-1000:]}\n"
                "  The same command resumes the copy."
            )
    studies = arguments.study
    folders = [f for f in run_folders(runs_dir) if not studies or f.parts[-3] in studies]
    counts = Counter(states.from_records(folder).state for folder in folders)
    told = ", ".join(f"{counts[state]} {state}" for state in states.STATES if counts[state])
    print(f"{runs_dir}: {counted(len(folders), 'run')}: {told or 'nothing to copy'}")
    return 0
