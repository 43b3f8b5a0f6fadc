"""The process's memory: how high it went, and keeping what was freed."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

import torch

# glibc's mallopt: larger blocks than M_MMAP_THRESHOLD go back to the system at once, and so does the
# top of the heap beyond M_TRIM_THRESHOLD. Every tensor of tens of megabytes then costs its page faults
# anew: six times the time of filling it, for a batch of images.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BLOCKS_UP_TO = 1 << 30
_KEEP_IN_ALL = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Let this process reuse freed memory instead of giving it back; False where libc cannot."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _KEEP_BLOCKS_UP_TO)) and bool(
        mallopt(_M_TRIM_THRESHOLD, _KEEP_IN_ALL)
    )


def process_peak_mib() -> float:
    """`peak_memory_mib` of the GPU if this process has used one, else of its own memory."""
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return peak_memory_mib(torch.device("cuda" if on_gpu else "cpu"))


def peak_memory_mib(device: torch.device) -> float:
    """Highest memory so far: of the GPU's allocator, or of this process on a CPU."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:  # getrusage's number survives exec: it may be that of the process that started us
        lines = Path("/proc/self/status").read_text().splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kib / 2**10, 1)
