"""Which process wrote something, and whether it lives. A process id alone is reused after a reboot."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any


@cache
def host() -> str:
    return socket.gethostname().split(".")[0]


@cache
def boot() -> str:
    """Changes with each boot of this machine; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def started(pid: int) -> int:
    """Clock ticks from boot to the start of process `pid`; 0 where it is gone or nobody says."""
    try:
        # The second field is the program's name in brackets, which may hold blanks and brackets itself.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


@dataclass(frozen=True)
class Process:
    """A process of some host, for good."""

    host: str
    pid: int
    boot: str = ""
    started: int = 0

    @classmethod
    def this(cls) -> Process:
        return cls(host(), os.getpid(), boot(), started(os.getpid()))

    @classmethod
    def read(cls, value: Any) -> Process | None:
        """From JSON; None where it is no process."""
        try:
            return cls(str(value["host"]), int(value["pid"]), str(value["boot"]), int(value["started"]))
        except (KeyError, TypeError, ValueError):
            return None

    def json(self) -> dict[str, Any]:
        return asdict(self)

    def alive(self) -> bool | None:
        """Whether it still runs; None where only its own host can tell."""
        if self.host != host():
            return None
        if self.boot and self.boot != boot():
            return False
        if self.started:
            return started(self.pid) == self.started
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
