"""A scripted scheduler: sbatch, squeue, sacct, scancel and scontrol on PATH, answering as a test says.

Each command logs its call, then takes the next answer scripted for it; without one it does what the
real one does to a small queue kept in a JSON file. Unless something is scripted, or another program
calls it, it is called in this process: a new one takes longer than all else in most tests. See `Fakes`.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ablations.slurm import commands as slurm
from ablations.store import snapshot
from tests.ablations.fakes import scheduler

COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "scontrol")
RUN = subprocess.run


class Fakes:
    """The scheduler's state and script, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        program = Path(__file__).with_name("scheduler.py")
        for command in COMMANDS:
            file = self.bin / command
            # -I -S: nothing of the tested environment, and a quick start.
            file.write_text(
                f'#!/bin/sh\nexec "{sys.executable}" -I -S "{program}" "{folder}" {command} "$@"\n'
            )
            file.chmod(file.stat().st_mode | stat.S_IXUSR)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put the commands first on PATH. No job runs, so the code frozen for them is three files."""
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        for package in snapshot.PACKAGES:
            (self.folder / "code" / package).mkdir(parents=True)
            (self.folder / "code" / package / "__init__.py").touch()
        monkeypatch.setattr(snapshot, "ROOT", self.folder / "code")
        monkeypatch.setattr(slurm.subprocess, "run", self._run)

    def _run(self, words: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """In place of `subprocess.run`."""
        environment = options.get("env") or dict(os.environ)
        found = Path(shutil.which(words[0], path=environment.get("PATH")) or "")
        script = self.folder / f"{found.name}.script"
        if found.parent != self.bin or (script.exists() and script.read_text()):
            return RUN(words, **options)
        sys.audit("subprocess.Popen", str(found), words, None, environment)
        out, err, code = scheduler.call(self.folder, found.name, words[1:], environment)
        return subprocess.CompletedProcess(words, code, out, err)

    def answer(self, command: str, *answers: dict[str, Any] | None) -> None:
        """Script the next calls of `command`; None stands for the ordinary answer.

        Keys: stdout, stderr, exit, sleep (seconds before all else), act (also do the ordinary thing).
        """
        with (self.folder / f"{command}.script").open("a") as stream:
            stream.writelines(json.dumps(a) + "\n" for a in answers)

    def calls(self, command: str) -> list[dict[str, Any]]:
        """Arguments (`argv`), environment (`env`) and script (`text`) of each call so far."""
        file = self.folder / "calls.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [row for row in rows if row["command"] == command]

    # -- the queue ------------------------------------------------------------------------------

    def arrays(self) -> list[dict[str, Any]]:
        """Every array ever accepted: id, name, count, folder of the submission."""
        file = self.folder / "queue.json"
        arrays: list[dict[str, Any]] = json.loads(file.read_text())["arrays"] if file.exists() else []
        return arrays

    def submitted_runs(self) -> list[str]:
        """The run folder of every array element ever accepted."""
        runs: list[str] = []
        for array in self.arrays():
            lines = (Path(array["folder"]) / "runs.txt").read_text().splitlines()
            assert len(lines) == array["count"], "runs.txt and the array disagree"
            study = Path(array["folder"]).parent.parent
            runs += [str(study / line) for line in lines]
        return runs

    def set(self, element: str, **fields: Any) -> None:
        """What squeue says of an element `A_i`: state, reason, restarts, status, node; gone: none."""
        file = self.folder / "queue.json"
        queue = json.loads(file.read_text()) if file.exists() else {"next": 1, "arrays": [], "jobs": {}}
        queue["jobs"].setdefault(element, {}).update(fields)
        file.write_text(json.dumps(queue))


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """A scripted scheduler, first on PATH."""
    made = Fakes(tmp_path / "fakes")
    made.install(monkeypatch)
    return made
