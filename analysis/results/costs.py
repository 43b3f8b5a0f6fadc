"""What a study cost: time on a machine, with failed and repeated attempts."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Cost:
    """What some runs took; NaN where it was not recorded.

    Attributes:
        seconds: for which all attempts held a machine. wasted: the part of it in runs without a result.
        per_run: mean of the finished runs. memory: peak of all runs, in MiB.
    """

    completed: int
    runs: int
    seconds: float
    wasted: float
    per_run: float
    memory: float


def cost(runs: pd.DataFrame) -> Cost:
    """The cost of some rows of `Collected.runs`."""
    time, done = seconds(runs), runs["state"] == "completed"
    return Cost(
        completed=int(done.sum()),
        runs=len(runs),
        seconds=float(time.sum(min_count=1)),
        wasted=float(time[~done].sum()),
        per_run=float(time[done].mean()),
        memory=float(runs["peak_memory_mib"].max()),
    )


def seconds(runs: pd.DataFrame) -> pd.Series:
    """Machine seconds of each run; the training time stands in where attempts were not recorded."""
    return runs["wall_seconds"].fillna(runs["train_seconds"])


def machines(runs: pd.DataFrame) -> str:
    """The accelerators that the runs saw, or CPUs."""
    if len(runs) and runs["imported"].all():
        return "machines that the logs do not name"
    started = runs[runs["attempts"].notna()]
    names = sorted({str(gpu) for gpu in started["gpu"] if gpu})
    if started["gpu"].isna().any() or not names:
        names.append("CPU cores")
    return " and ".join(names)
