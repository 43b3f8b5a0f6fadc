"""Fair timing of two ways of doing one thing, and where it was measured."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """One case of one measurement.

    Attributes:
        ours, reference: median seconds; None where only one side is measured.
        speedup: the reference's seconds over ours.
        spread: half the distance between the quartiles of the turns' ratios, as a share of `speedup`.
        peak_mib, reference_mib: memory that each adds at its peak, where that is measured.
    """

    bench: str
    case: str
    ours: float
    reference: float | None = None
    speedup: float | None = None
    spread: float = 0.0
    peak_mib: float | None = None
    reference_mib: float | None = None


def machine(device: torch.device) -> dict[str, Any]:
    """Processor or GPU, threads and versions, on Linux."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "processor": next((x for x in lines if x.startswith("model name")), "").partition(": ")[2],
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def seconds(work: Callable[[], object], device: torch.device = CPU) -> float:
    """Processor time of `work` on one thread of a CPU; the clock's otherwise, a GPU's work included."""
    waits = device.type == "cuda"
    clock = time.perf_counter if waits or torch.get_num_threads() > 1 else time.process_time
    begun = clock()
    work()
    if waits:
        torch.cuda.synchronize(device)
    return clock() - begun


def compare(
    bench: str,
    case: str,
    ours: Callable[[], object],
    reference: Callable[[], object],
    device: torch.device = CPU,
    *,
    repeats: int,
    warmup: int = 1,
    each: int = 1,
) -> Row:
    """Medians of both, timed in turns so that other work on the machine hits both alike.

    Args:
        each: how many times a call does the work of the case.
    """
    turns = [(seconds(ours, device), seconds(reference, device)) for _ in range(warmup + repeats)]
    turns = turns[warmup:]
    mine, theirs = (statistics.median(side) / each for side in zip(*turns, strict=True))
    ratios = [r / o for o, r in turns]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (0.0, 0.0, 0.0)
    speedup = theirs / mine
    return Row(
        bench, case, mine, theirs, round(speedup, 2), spread=round((high - low) / 2 / speedup, 3)
    )
