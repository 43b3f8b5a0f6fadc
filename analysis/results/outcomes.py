"""What became of a variant: the values of its finished seeds, the state of the others, the cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from ablations.store.life import STATES
from analysis.runs.collect import Collected

if TYPE_CHECKING:
    from ablations.study.model import Study

Epoch = Literal["last", "best"]
# In the order in which a table's notes name them.
_WORST_LAST = tuple(dict.fromkeys(("diverged", "failed", "cancelled", *STATES[1:])))
# What result.json calls them.
_RECORDED = {"last": "final", "best": "best"}


@dataclass(frozen=True)
class Run:
    """One seed of a variant, as tables need it; `where` is its folder below runs/."""

    seed: int
    state: str
    where: str
    epoch: int | None
    step: int | None
    kind: str
    reason: str
    scores: dict[str, float]

    @property
    def word(self) -> str:
        """The state with what a reader asks next: `diverged at epoch 3`."""
        if self.state == "diverged" and self.epoch is not None:
            at = f"diverged at epoch {self.epoch}"
            return f"{at} (step {self.step})" if self.step is not None else at
        if self.state == "failed":
            return _FAILURES.get(self.kind, f"failed ({self.kind})")
        if self.state in ("interrupted", "unknown") and self.reason:
            return f"{self.state} ({self.reason})"
        return {"planned": "not run"}.get(self.state, self.state)


# Kinds of failures (`ablations.store.life`) in the words of a table's note.
_FAILURES = {
    "error": "failed",
    "exit": "failed",
    "oom": "out of memory",
    "timeout": "failed (time limit)",
    "node": "failed (its node failed)",
    "lost": "failed (its job is gone)",
    "start": "failed (Python did not start)",
    "result": "failed (result.json is damaged)",
    "unreadable": "failed (a file cannot be read)",
}


@dataclass(frozen=True)
class Outcome:
    """All seeds of one variant.

    Attributes:
        key: names it among the outcomes of its study: the variant, and ` (imported)` behind it where a
            planned variant has the same name.
        imported: these runs are other people's logs.
        dataset: the data that its runs name; several joined by `, `.
        selected_on: the split on which its best epochs were selected; several joined by ` and `.
    """

    study: str
    key: str
    variant: str
    label: str
    runs: tuple[Run, ...]
    imported: bool = False
    dataset: str = ""
    selected_on: str = ""

    @property
    def planned(self) -> int:
        """How many runs the manifest plans; of imported variants, how many were imported."""
        return len(self.runs)

    @property
    def completed(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.state == "completed")

    @property
    def whole(self) -> bool:
        """Every planned seed completed: the only variants that may be called best."""
        return len(self.completed) == self.planned > 0

    def values(self, metric: str, epoch: Epoch = "last") -> dict[int, float]:
        """Seed to value of the completed runs that have this metric."""
        key = f"{_RECORDED[epoch]}/{metric}"
        return {run.seed: run.scores[key] for run in self.completed if key in run.scores}

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
            parts += [f"{_seeds(seeds)} {word}" for word, seeds in words.items()]
        return "; ".join(parts) if parts else None


def _seeds(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def outcomes(collected: Collected, study: Study) -> dict[str, Outcome]:
    """Key to outcome: the manifest's variants in its order, then imported ones by name.

    Made once for each `collected`, and kept there.
    """
    kept = ("outcomes", study.name)
    if kept not in collected.computed:
        collected.computed[kept] = _outcomes(collected.runs_of(study.name), study)
    made: dict[str, Outcome] = collected.computed[kept]
    return made


def _outcomes(frame: pd.DataFrame, study: Study) -> dict[str, Outcome]:
    scores = [c for c in frame.columns if str(c).startswith(("best/", "final/"))]
    all_imported = bool(getattr(study, "imported", False))  # a study made of other people's logs
    own: dict[str, list[dict[Any, Any]]] = {name: [] for name in study.variants}
    strangers: dict[str, list[dict[Any, Any]]] = {}
    for record in frame.to_dict("records"):
        name = str(record["variant"])
        if record["planned"] or all_imported:
            if name in own:
                own[name].append(record)
        elif record["imported"]:
            strangers.setdefault(name, []).append(record)

    def outcome(key: str, variant: str, label: str, records: Sequence[Any], imported: bool) -> Outcome:
        return Outcome(
            study=study.name,
            key=key,
            variant=variant,
            label=label,
            runs=tuple(_run(record, scores) for record in records),
            imported=imported,
            dataset=", ".join(sorted({str(r["dataset"]) for r in records if r["dataset"]})),
            selected_on=" and ".join(
                sorted({str(r["selected_on"]) for r in records if r["selected_on"]})
            ),
        )

    found = {
        name: outcome(name, name, variant.label, own[name], all_imported)
        for name, variant in study.variants.items()
    }
    for name in sorted(strangers):
        key = name if name not in found else f"{name} (imported)"
        found[key] = outcome(key, name, name, strangers[name], True)
    return found


def _run(record: dict[Any, Any], scores: Sequence[str]) -> Run:
    return Run(
        seed=int(record["seed"]),
        state=record["state"],
        where=record["where"],
        epoch=None if pd.isna(record["epoch"]) else int(record["epoch"]),
        step=None if pd.isna(record["step"]) else int(record["step"]),
        kind=record["kind"] or "error",
        reason=record["reason"] or "",
        scores={c: float(record[c]) for c in scores if pd.notna(record[c])},
    )


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


def cost(runs: pd.DataFrame) -> Cost:
    """The cost of some rows of `Collected.runs`."""
    time, done = machine_seconds(runs), runs["state"] == "completed"
    return Cost(
        completed=int(done.sum()),
        runs=len(runs),
        seconds=float(time.sum(min_count=1)),
        wasted=float(time[~done].sum()),
        per_run=float(time[done].mean()),
        memory=float(runs["peak_memory_mib"].max()),
    )


def machine_seconds(runs: pd.DataFrame) -> pd.Series:
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
