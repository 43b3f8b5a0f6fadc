"""Who may submit a run: exactly one submission at a time holds its lock, the run's lock.json.

A lock appears whole or not at all, by a hard link to the submission's own lock.json: the first to
link wins, also on network file systems, and a submitter killed in between leaves nothing torn. Where
links do not work, an exclusive create takes their place. A lock is replaced or released while the
study's file lock (`file_lock`) is held, so that two who both found it dead cannot both take it.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import time
import uuid
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from sdtps.run.folder import RunFolder
from sdtps.system import files

# It falls back to a lock file of its own where the file system has no flock (Lustre), and says so.
warnings.filterwarnings("ignore", "flock not supported", UserWarning)

JOBS = "_jobs"
# A lock that cannot be read may be in the middle of an exclusive create; older than this, it is dead.
TORN_SECONDS = 60.0


@cache
def host() -> str:
    return socket.gethostname().split(".")[0]


@cache
def user() -> str:
    """By the user id: LOGNAME may be that of the person who became somebody else."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user id without a name
        return str(os.getuid())


@cache
def _boot() -> str:
    """Changes with each boot of this machine; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> int:
    """Clock ticks from boot to the start of process `pid`; 0 where it is gone or unknown."""
    try:
        # The second field is the program's name in brackets, which may hold blanks and brackets itself.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


@dataclass(frozen=True)
class Process:
    """A process of some host. A process id alone is used again after a reboot."""

    host: str
    pid: int
    boot: str = ""
    started: int = 0

    @classmethod
    def this(cls) -> Process:
        return cls(host(), os.getpid(), _boot(), _started(os.getpid()))

    def alive(self) -> bool | None:
        """Whether it still runs; None where only its own host can tell."""
        if self.host != host():
            return None
        if self.boot and self.boot != _boot():
            return False
        if self.started:
            return _started(self.pid) == self.started
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


@dataclass(frozen=True)
class Lock:
    """lock.json.

    Attributes:
        submission: the unique name of the submission, which is also its jobs' name. The job's id and
            cluster are in its receipt (see `ablations.store.submissions`).
        submitter: the process that made it (for local slots: the queue).
        user: who submitted it. A scheduler may hide other people's jobs.
        time: when, in seconds since 1970 by the submitter's clock.
        cancelled: somebody asked for the run to be cancelled, and by this it is known even without
            accounting.
    """

    submission: str
    executor: str
    submitter: Process | None
    time: float
    cancelled: bool = False
    user: str = ""

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def mine(self) -> bool:
        """Made by this user, or before locks named their user."""
        return self.user in ("", user())

    @classmethod
    def new(cls, submission: str, executor: str) -> Lock:
        return cls(submission, executor, Process.this(), time.time(), user=user())


_FORMAT = TypeAdapter(Lock)


def parse(content: bytes) -> Lock | None:
    """A lock from the bytes of its file, or None where they are torn."""
    try:
        return _FORMAT.validate_json(content)
    except ValidationError:
        return None


def read(folder: Path) -> Lock | None:
    """The run's lock, or None where there is none. A corrupt one counts as unowned.

    Raises:
        OSError: what is there cannot be read, such as a directory of that name.
    """
    file = RunFolder(folder).lock_file
    content = files.read_bytes(file)
    if content is None:
        if odd := files.oddity(file):
            raise OSError(errno.EINVAL, f"is {odd}", str(file))
        return None
    if (lock := parse(content)) is None:
        try:
            age = time.time() - file.stat().st_mtime if not content else 0.0
        except FileNotFoundError:
            return None
        return Lock("", "", None, 0.0 if age > TORN_SECONDS else time.time())
    return lock


def holds(folder: Path, submission: str) -> bool:
    """The run still is this submission's, and nobody has cancelled it."""
    lock = read(folder)
    return lock is not None and lock.submission == submission and not lock.cancelled


def take(folder: Path, source: Path, earlier: Lock | None = None) -> bool:
    """Lock the run in `folder` with the lock in `source`; False where another was first.

    Args:
        earlier: the lock that it has, and whose submission has ended.
    """
    if earlier is None:
        return _link(source, RunFolder(folder).lock_file)

    def replace(file: Path) -> None:
        # A rename replaces in one step. The name is free: this process made it up.
        beside = file.with_name(f".lock.{uuid.uuid4().hex[:12]}.tmp")
        _link(source, beside)
        beside.replace(file)

    return _change(folder, earlier, replace)


def release(folder: Path, held: Lock) -> bool:
    """Give the run back, if `held` still is its lock."""
    return _change(folder, held, Path.unlink)


def rewrite(folder: Path, held: Lock, new: Lock) -> bool:
    """Replace the content of lock `held` by `new`, if it still is the run's lock."""
    return _change(folder, held, lambda file: files.write_json(file, new.json()))


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
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o664)
    except FileExistsError:
        return False
    with os.fdopen(handle, "wb") as stream:
        stream.write(source.read_bytes())
    return True


def _change(folder: Path, held: Lock, change: Callable[[Path], object]) -> bool:
    """Change lock.json under the study's file lock; False where it is somebody else's by now."""
    file = RunFolder(folder).lock_file
    if not file.is_file():
        return False
    with file_lock(folder.parent.parent / JOBS):
        try:
            lock = parse(files.read_bytes(file) or b"")
        except OSError:
            lock = None
        if not file.is_file() or (lock.submission if lock else "") != held.submission:
            return False
        change(file)
        return True


def file_lock(jobs: Path, *, nested: bool = True) -> FileLock:
    """The study's file lock. `nested`: who holds it may take it again, so that many runs cost one."""
    jobs.mkdir(parents=True, exist_ok=True)
    return FileLock(jobs / ".lock", mode=0o664, is_singleton=nested)
