"""What became of a variant: the values of its finished seeds, the state of the others, the cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from ablations.store.states import STATES
from analysis.runs.collect import Collected
from analysis.runs.record import Epoch, Run

if TYPE_CHECKING:
    from ablations.study.model import Study

# In the order in which a table's notes name them.
_WORST_LAST = tuple(dict.fromkeys(("diverged", "failed", "damaged", "cancelled", *STATES[1:])))


@dataclass(frozen=True)
class Outcome:
    """All seeds of one variant.

    Attributes:
        key: names it among the outcomes of its study: the variant, and ` (imported)` behind it where a
            planned variant has the same name.
        imported: these runs are other people's logs.
    """

    study: str
    key: str
    variant: str
    label: str
    runs: tuple[Run, ...]
    imported: bool = False

    @cached_property
    def dataset(self) -> str:
        """The data that its runs name; several joined by `, `."""
        return ", ".join(sorted({run.dataset for run in self.runs if run.dataset}))

    @cached_property
    def selected_on(self) -> str:
        """The split on which its best epochs were selected; several joined by ` and `."""
        return " and ".join(sorted({run.selected_on for run in self.runs if run.selected_on}))

    @property
    def planned(self) -> int:
        """How many runs the manifest plans; of imported variants, how many were imported."""
        return len(self.runs)

    @property
    def completed(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.state == "completed")

    def values(self, metric: str, epoch: Epoch = "last") -> dict[int, float]:
        """Seed to value of the completed runs that have this metric."""
        scores = {run.seed: run.scores(epoch) for run in self.completed}
        return {seed: found[metric] for seed, found in scores.items() if metric in found}

    def others(self) -> dict[str, list[Run]]:
        """State to runs that are not completed, worst last."""
        found = {state: [r for r in self.runs if r.state == state] for state in _WORST_LAST}
        return {state: runs for state, runs in found.items() if runs}

    def glyph(self) -> str:
        """What a cell says where no seed completed."""
        others = self.others()
        if not others:
            return "--"
        if len(others) > 1:
            return f"0/{self.planned}"
        ((state, runs),) = others.items()
        if state == "diverged":
            epochs = sorted({run.epoch for run in runs if run.epoch is not None})
            if not epochs:
                return "div."
            span = f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]}–{epochs[-1]}"
            return f"div. (ep. {span})"
        if state == "failed":
            return "OOM" if all(run.kind == "oom" for run in runs) else "failed"
        return {"planned": "--", "requeued": "running"}.get(state, state)

    def explanation(self) -> str | None:
        """One sentence on the seeds that are not completed; None where all are."""
        parts = []
        for runs in self.others().values():
            words: dict[str, list[int]] = {}
            for run in runs:
                words.setdefault(run.word, []).append(run.seed)
            parts += [f"{seed_list(seeds)} {word}" for word, seeds in words.items()]
        return "; ".join(parts) if parts else None


def seed_list(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def outcomes(collected: Collected, study: Study) -> dict[str, Outcome]:
    """Key to outcome: the manifest's variants in its order, then imported ones by name.

    Made once for each `collected`, and kept there.
    """
    runs = collected.runs_of(study.name)
    return collected.once(("outcomes", study.name), lambda: _outcomes(runs, study))


def _outcomes(runs: Sequence[Run], study: Study) -> dict[str, Outcome]:
    all_imported = bool(getattr(study, "imported", False))  # a study made of other people's logs
    own: dict[str, list[Run]] = {name: [] for name in study.variants}
    strangers: dict[str, list[Run]] = {}
    for run in runs:
        if run.planned or all_imported:
            if run.variant in own:
                own[run.variant].append(run)
        elif run.imported:
            strangers.setdefault(run.variant, []).append(run)

    found = {
        name: Outcome(study.name, name, name, variant.label, tuple(own[name]), all_imported)
        for name, variant in study.variants.items()
    }
    for name in sorted(strangers):
        key = name if name not in found else f"{name} (imported)"
        found[key] = Outcome(study.name, key, name, name, tuple(strangers[name]), True)
    return found


# -- costs --------------------------------------------------------------------------------------


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


def cost(runs: Sequence[Run]) -> Cost:
    """The cost of some runs."""
    spent = {run: seconds for run in runs if (seconds := run.machine_seconds) is not None}
    done = [seconds for run, seconds in spent.items() if run.state == "completed"]
    peaks = [run.peak_memory_mib for run in runs if run.peak_memory_mib is not None]
    return Cost(
        completed=sum(run.state == "completed" for run in runs),
        runs=len(runs),
        seconds=sum(spent.values()) if spent else math.nan,
        wasted=sum(spent.values()) - sum(done),
        per_run=fmean(done) if done else math.nan,
        memory=max(peaks, default=math.nan),
    )


def machines(runs: Sequence[Run]) -> str:
    """The accelerators that the runs saw, or CPUs."""
    if runs and all(run.imported for run in runs):
        return "machines that the logs do not name"
    started = {run.gpu for run in runs if run.attempts}
    names = sorted(gpu for gpu in started if gpu)
    return " and ".join(names if names and None not in started else [*names, "CPU cores"])
