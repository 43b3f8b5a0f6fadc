"""For programs that are variants: log numbers of the run that this process is. Imports no torch.

    from sdtps.log import log

    log(epoch=1, step=10, loss=0.3)
    log("eval", epoch=1, step=10, accuracy=0.91)

Outside of a run it does nothing, so that the program also works alone.
"""

from __future__ import annotations

import os
from typing import Any, Literal

RUN, SEED, ATTEMPT = "SDTPS_RUN", "SDTPS_SEED", "SDTPS_ATTEMPT"  # set for the program


def log(kind: Literal["train", "eval"] = "train", *, epoch: int, step: int, **values: Any) -> None:
    """Add one row to the run's metrics.jsonl: `epoch` from 1, `step` counts on over epochs.

    Values are numbers; fractions in [0, 1] where the study prints them in per cent.
    """
    if path := os.environ.get(RUN):
        from sdtps.run.folder import RunFolder

        attempt = int(os.environ.get(ATTEMPT, "1"))
        row = {"attempt": attempt, "kind": kind, "epoch": epoch, "step": step, **values}
        RunFolder(path).append_metrics(row)
