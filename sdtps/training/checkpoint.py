"""checkpoint.pt: everything a run needs to go on as if it had never stopped.

Plain tensors, numbers and containers, so that `torch.load(weights_only=True)` reads it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sdtps.errors import RunError
from sdtps.files import replacing

FORMAT = 1


def random_states() -> dict[str, Any]:
    """States of Python's, NumPy's and torch's generators (and CUDA's where there is one)."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # a tuple
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Inverse of `random_states`."""
    version, keys, gauss = states["python"]
    random.setstate((version, tuple(keys), gauss))
    kind, words, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, words.cpu().numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


def seed_everything(seed: int, rank: int = 0) -> None:
    """Seed every generator; processes that train together draw differently from each other."""
    seed = seed + 1_000_003 * rank
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # CUDA's too


def save(path: Path, content: dict[str, Any]) -> None:
    """Write `content` whole or not at all.

    Raises:
        OSError: disk full, permission; the checkpoint before it is untouched.
    """
    with replacing(path) as stream:
        try:
            torch.save({"format": FORMAT, **content}, stream)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # torch hides why a write failed
                raise error.__context__ from None
            raise


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """The checkpoint at `path`, or None where there is none.

    Raises:
        RunError: a file that is no checkpoint of this format.
    """
    if not path.exists():
        return None
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # the unpickler raises whatever a broken byte leads it to
        raise RunError(
            f"{path}: not a readable checkpoint ({type(error).__name__}: {error}). "
            "Delete it to start anew."
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RunError(
            f"{path}: checkpoint of another format, expected {FORMAT}. Delete it to start anew."
        )
    return content
