"""Where a figure was measured, and fair timing of two ways of doing one thing."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def machine(device: torch.device) -> dict[str, Any]:
    """Processor or GPU, threads and versions."""
    import torch

    return {
        "host": platform.node(),
        "processor": _processor(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "")


def pick_device(name: str | None) -> torch.device:
    """The named device, or a GPU where there is one."""
    import torch

    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """What is cached inside lies in `folder`."""
    before = os.environ.get("SDTPS_CACHE")
    os.environ["SDTPS_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SDTPS_CACHE"]
        else:
            os.environ["SDTPS_CACHE"] = before


def compare(
    ours: Callable[[], object],
    reference: Callable[[], object],
    device: torch.device | None = None,
    *,
    repeats: int,
    warmup: int = 2,
) -> dict[str, Any]:
    """Median seconds of both, timed in turns so that other work on the machine hits both alike.

    Returns:
        seconds (medians), fastest, repeats, `speedup` (the reference's median over ours) and `spread`:
        half the distance between the quartiles of the turns' own speedups, as a share of `speedup`.
    """
    ways = {"ours": ours, "reference": reference}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warmup + repeats):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            synchronise(device)
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    speedup = medians["reference"] / medians["ours"]
    turns = [r / o for o, r in zip(seconds["ours"], seconds["reference"], strict=True)]
    low, _, high = statistics.quantiles(turns, n=4) if len(turns) > 1 else (0.0, 0.0, 0.0)
    return {
        "seconds": medians,
        "fastest": {name: min(times) for name, times in seconds.items()},
        "repeats": repeats,
        "speedup": round(speedup, 2),
        "spread": round((high - low) / 2 / speedup, 3),
    }


def synchronise(device: torch.device | None) -> None:
    """Wait for a GPU's queued work; nothing on a CPU."""
    if device is not None and device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def seconds_now(device: torch.device | None = None) -> float:
    """The clock, once the device has finished what was queued."""
    synchronise(device)
    return time.perf_counter()
