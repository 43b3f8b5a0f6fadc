"""Forks of this process: killed at any write, or in place of a new Python without its imports."""

from __future__ import annotations

import hashlib
import importlib
import os
import runpy
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# See sdtps.training.attempt.prepare.
TRAINING = ("torch._dynamo", "sdtps.training.loop", "sdtps.training.reid")


class Copies:
    """What a kill leaves is what the files hold, so a copy of them stands for a killed process.

    Copies lie in `to`, each named by the number of the first write before which it was taken.
    """

    def __init__(self, folder: Path, to: Path) -> None:
        self.folder, self.to = folder, to
        self.taken: set[str] = set()
        self.unread: set[tuple[str, bool]] = set()

    def take(self, number: int) -> None:
        """Copy the folder, unless a copy shows it.

        What nothing is read from to go on, logs and temporary files, counts empty and written once.
        """
        found, unread = hashlib.sha256(), set[tuple[str, bool]]()
        for path in sorted(self.folder.rglob("*")):
            if path.suffix in (".tmp", ".log"):
                name = path.name if path.suffix == ".log" else Path(path.stem).stem
                unread.add((name, path.stat().st_size > 0))
                continue
            found.update(f"\n{path} {path.is_symlink() and path.readlink()}\n".encode())
            if path.is_file() and not path.is_symlink():
                found.update(path.read_bytes())
        if found.hexdigest() not in self.taken or unread - self.unread:
            self.taken.add(found.hexdigest())
            self.unread |= unread
            shutil.copytree(self.folder, self.to / f"{number:04}", symlinks=True)

    def put_back(self, copy: Path) -> str:
        """Replace the folder by one of the copies; says where the process was killed."""
        shutil.rmtree(self.folder)
        copy.rename(self.folder)
        return f"killed before write {int(copy.name)}"


def fork(work: Callable[[], object]) -> int:
    """The id of a fork that does `work`, and ends with what it returns."""
    child = os.fork()
    if child == 0:
        _end_with(work)
    return child


def ends(*children: int) -> list[int]:
    """The exit codes of forks."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def in_process(work: Callable[[], object]) -> None:
    """Do `work` in a process of its own."""
    assert ends(fork(work)) == [0], "the run or the submission itself failed"


def _end_with(work: Callable[[], object]) -> None:
    code: Any = 1
    try:
        code = work() or 0
    except SystemExit as end:
        code = end.code or 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def fork_modules(monkeypatch: pytest.MonkeyPatch, *needed: str) -> None:
    """`python -m` of a module of ours is a fork of this process: it imports nothing anew.

    Local queues and their runs, `analysis rounds` and imports of logs take a tenth of the time. It runs
    the code here, and none that was frozen.

    Args:
        needed: modules that are imported here, such as `TRAINING`.
    """
    for module in needed:
        importlib.import_module(module)
    start = subprocess.Popen.__init__

    def started(self: Any, words: Any, **options: Any) -> None:
        if words[0] == sys.executable and "-m" in words:  # its own fork, after files and groups are set
            module, environment = words[words.index("-m") + 1 :], dict(options.get("env") or os.environ)
            options["preexec_fn"] = lambda: _become(module, environment)
        start(self, words, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", started)


def _become(words: list[str], environment: dict[str, str]) -> None:
    """Do in this fork what `python -m WORDS` does, and end."""
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(environment)
    os.environ.pop("SDTPS_SNAPSHOT", None)
    sys.path += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = words
    sys.stdout, sys.stderr = (os.fdopen(handle, "w", 1, closefd=False) for handle in (1, 2))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _end_with(lambda: runpy.run_module(words[0], run_name="__main__") and None)
