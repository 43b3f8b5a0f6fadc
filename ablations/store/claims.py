"""Who may submit a run: exactly one submission at a time holds its claim.json.

A claim appears whole or not at all, by a hard link to the submission's own claim file: the first to
link wins, also on network file systems, and a submitter killed in between leaves nothing torn. Where
links do not work, an exclusive create takes their place. Replacing or releasing a claim needs a lock on
the very file that is replaced, so that two who both found it dead cannot both take it.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.store.processes import Process
from sdtps.files import oddity, read_bytes, write_json
from sdtps.run.folder import RunFolder

# A claim that cannot be read may be in the middle of an exclusive create; older than this, it is dead.
TORN_SECONDS = 60.0


@dataclass(frozen=True)
class Claim:
    """claim.json.

    Attributes:
        submission: the unique name of the submission, which is also its jobs' name.
        submitter: the process that made it (for local slots: the queue).
        time: when, in seconds since 1970 by the submitter's clock.
        cancelled: somebody asked for the run to be cancelled, and by this it is known even without
        accounting.
    """

    submission: str
    executor: str
    submitter: Process | None
    time: float
    cancelled: bool = False

    def json(self) -> dict[str, Any]:
        return {
            "submission": self.submission,
            "executor": self.executor,
            "submitter": self.submitter.json() if self.submitter else None,
            "time": self.time,
            "cancelled": self.cancelled,
        }

    @classmethod
    def new(cls, submission: str, executor: str) -> Claim:
        return cls(submission, executor, Process.this(), time.time())


def parse(content: bytes) -> Claim | None:
    """A claim from the bytes of its file, or None where they are torn."""
    try:
        value = json.loads(content)
        return Claim(
            str(value["submission"]),
            str(value["executor"]),
            Process.read(value.get("submitter")),
            float(value["time"]),
            bool(value.get("cancelled", False)),
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def read(folder: Path) -> Claim | None:
    """The run's claim, or None where there is none. A torn one reads as a claim of nobody.

    Raises:
        OSError: what is there cannot be read, such as a directory or a FIFO of that name.
    """
    file = RunFolder(folder).claim_file
    content = read_bytes(file)
    if content is None:
        if odd := oddity(file):
            raise OSError(errno.EINVAL, f"is {odd}", str(file))
        return None
    claim = parse(content)
    if claim is None:
        try:
            age = time.time() - file.stat().st_mtime if not content else 0.0
        except FileNotFoundError:
            return None
        return Claim("", "", None, 0.0 if age > TORN_SECONDS else time.time())
    return claim


def take(folder: Path, source: Path) -> bool:
    """Claim the unclaimed run in `folder` with the claim in `source`; False where another was first."""
    return _link(source, RunFolder(folder).claim_file)


def replace(folder: Path, held: Claim, source: Path) -> bool:
    """Take over the run from claim `held`, which has ended; False where another was first."""
    with _locked(folder, held) as file:
        if file is None:
            return False
        # A rename replaces in one step. The name is free: this process made it up.
        beside = file.with_name(f".claim.{uuid.uuid4().hex[:12]}.tmp")
        if not _link(source, beside):
            return False
        beside.replace(file)
        return True


def release(folder: Path, held: Claim) -> bool:
    """Give the run back, if `held` still is its claim."""
    with _locked(folder, held) as file:
        if file is None:
            return False
        file.unlink()
        return True


def rewrite(folder: Path, held: Claim, new: Claim) -> bool:
    """Replace the content of claim `held` by `new`, if it still is the run's claim."""
    with _locked(folder, held) as file:
        if file is None:
            return False
        write_json(file, new.json())
        return True


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV):
            raise
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "wb") as stream:
        stream.write(source.read_bytes())
    return True


@contextmanager
def _locked(folder: Path, held: Claim) -> Iterator[Path | None]:
    """The claim file, locked and still `held`; None where it is somebody else's by now."""
    file = RunFolder(folder).claim_file
    try:
        stream = file.open("r+b")
    except (FileNotFoundError, NotADirectoryError, io.UnsupportedOperation):  # or no regular file
        yield None
        return
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            same = os.path.samestat(os.fstat(stream.fileno()), file.stat())
        except FileNotFoundError:
            same = False
        claim = parse(stream.read())
        mine = same and (claim.submission if claim else "") == held.submission
        yield file if mine else None
