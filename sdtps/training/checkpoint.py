"""checkpoint.pt: everything a run needs to go on as if it had never stopped.

Plain tensors, numbers and containers, so that `torch.load(weights_only=True)` reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sdtps.errors import RunError
from sdtps.files import replacing

FORMAT = 1


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
