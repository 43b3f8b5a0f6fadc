"""The process that trains: device, threads, determinism, random states, memory."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import random
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sdtps.config import Config
from sdtps.run.locations import cache_root
from sdtps.system.errors import RunError

# glibc's mallopt: larger blocks than M_MMAP_THRESHOLD go back to the system at once, and so does the
# top of the heap beyond M_TRIM_THRESHOLD. Every tensor of tens of megabytes then costs its page faults
# anew: six times the time of filling it, for a batch of images.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BLOCKS_UP_TO = 1 << 30
_KEEP_IN_ALL = (1 << 31) - 1


def prepare_torch(config: Config) -> torch.device:
    """Device, threads and determinism of this process; returns the device.

    On a CPU every operation is deterministic. On a GPU that would cost speed and is not promised.
    """
    settings = config.train
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    if settings.compile:  # what one run has compiled, the next of this machine loads
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_root() / "compiled"))
    wants_gpu = settings.device == "cuda" or (settings.device == "auto" and torch.cuda.is_available())
    torch.use_deterministic_algorithms(not wants_gpu)
    # Deterministic mode also fills new memory, against reads of what nobody wrote; we have none.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if not wants_gpu:
        keep_freed_memory()
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RunError("train.device is cuda, but torch sees no GPU; set train.device to auto or cpu")
    torch.backends.cuda.matmul.allow_tf32 = settings.tf32
    torch.backends.cudnn.allow_tf32 = settings.tf32
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.cuda.reset_peak_memory_stats(device)
    return device


def for_machine(config: Config, device: torch.device) -> tuple[Config, list[str]]:
    """`config` with `auto` as it is meant on `device`, and what a reader of the log must know.

    bf16 is computed by GPUs from Ampere on and emulated, slowly, by older ones; torch.compile needs
    Triton and a GPU from Volta on. A compilation that fails under `auto` falls back to plain calls. So
    does the fused cross-net where it cannot run: a trained run is evaluated on any machine.
    """
    amp, compiled, notes = config.train.amp, config.train.compile, []
    gpu = device.type == "cuda"
    has_triton = importlib.util.find_spec("triton") is not None
    emulated = gpu and not torch.cuda.is_bf16_supported(including_emulation=False)
    if emulated and amp in ("auto", "bf16"):
        name = torch.cuda.get_device_name(device)
        notes.append(f"{name} only emulates bf16, which is slow: train.amp auto means fp16 here")
    if amp == "auto":
        amp = "fp16" if emulated else "bf16" if gpu else "off"
    if compiled == "auto":
        compiled = gpu and has_triton and torch.cuda.get_device_capability(device) >= (7, 0)
        if compiled:
            from torch import _dynamo

            _dynamo.config.suppress_errors = True
    changes: dict[str, Any] = {
        "train": config.train.model_copy(update={"amp": amp, "compile": compiled})
    }
    can_fuse = gpu and has_triton and torch.cuda.get_device_capability(device) >= (8, 0)
    if config.task == "retrieval" and config.matching.kernel == "fused" and not can_fuse:
        needs = "Triton and a GPU of compute capability 8.0 or newer"
        notes.append(f"matching.kernel fused needs {needs}: plain is used here, with equal results")
        changes["matching"] = config.matching.model_copy(update={"kernel": "plain"})
    return config.model_copy(update=changes), notes


def random_states() -> dict[str, Any]:
    """States of torch's generators. Nothing draws from Python's or NumPy's: see `sdtps.data`."""
    states: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Inverse of `random_states`."""
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


def resume_random_states(states: Sequence[dict[str, Any]], rank: int, seed: int) -> None:
    """Go on from a checkpoint's states, one for each process that wrote it.

    A process that was not there, as more go on than stopped, starts from a seed of its own: with
    another's state it would draw that one's dropout.
    """
    if rank < len(states):
        set_random_states(states[rank])
    else:
        seed_everything(seed, rank)


def seed_everything(seed: int, rank: int = 0) -> None:
    """Seed every generator; processes that train together draw differently from each other."""
    seed = seed + 1_000_003 * rank
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # CUDA's too


def keep_freed_memory() -> None:
    """Let this process reuse freed memory instead of giving it back, where libc can."""
    with suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _KEEP_BLOCKS_UP_TO)
        mallopt(_M_TRIM_THRESHOLD, _KEEP_IN_ALL)


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
