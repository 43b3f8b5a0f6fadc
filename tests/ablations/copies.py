"""Forks of this process: killed at any write, or a local queue without the imports of a new process."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablations.launch import local
from ablations.store.submissions import Submission


class Copies:
    """What a kill leaves is what the files hold, so a copy of them stands for a killed process.

    Copies lie in `to`, each named by the number of the first write before which it was taken.
    """

    def __init__(self, folder: Path, to: Path) -> None:
        self.folder, self.to = folder, to
        self.last = ""

    def take(self, number: int) -> None:
        """Copy the folder, unless it is as the copy before shows it."""
        found = hashlib.sha256()
        for path in sorted(self.folder.rglob("*")):
            found.update(f"\n{path} {path.is_symlink() and path.readlink()}\n".encode())
            if path.is_file() and not path.is_symlink():
                found.update(path.read_bytes())
        if found.hexdigest() != self.last:
            self.last = found.hexdigest()
            shutil.copytree(self.folder, self.to / f"{number:04}", symlinks=True)

    def put_back(self, copy: Path) -> str:
        """Replace the folder by one of the copies; says where the process was killed."""
        shutil.rmtree(self.folder)
        copy.rename(self.folder)
        return f"killed before write {int(copy.name)}"


def in_process(work: Callable[[], object]) -> None:
    """Do `work` in a process of its own, which leaves this one's hooks and modules as they are."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the run or the submission itself failed"


def fork_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local queues are forks of this process: none imports torch and the code anew."""
    import torch._dynamo  # noqa: F401  # see sdtps.training.attempt.prepare

    from sdtps.training import loop, reid  # noqa: F401

    def run_queue(submission: Submission, _: Any, slots: int | None) -> dict[Path, str]:
        in_process(lambda: local.Queue(submission, slots or 0).work())
        folders = [submission.study_folder / key for key in submission.runs]
        return {folder: local._outcome(submission, folder) for folder in folders}

    monkeypatch.setattr(local, "run_queue", run_queue)
