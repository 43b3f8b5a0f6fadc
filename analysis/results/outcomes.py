"""What became of a variant: the values of its finished seeds, and the state of every other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from analysis.runs.collect import Collected
from analysis.runs.record import STATES

if TYPE_CHECKING:
    from ablations.study.model import Study

Epoch = Literal["last", "best"]
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
    reason: str
    scores: dict[str, float]

    @property
    def word(self) -> str:
        """The state with what a reader asks next: `diverged at epoch 3`."""
        if self.state == "diverged" and self.epoch is not None:
            at = f"diverged at epoch {self.epoch}"
            return f"{at} (step {self.step})" if self.step is not None else at
        if self.state == "failed":
            return "out of memory" if out_of_memory(self.reason) else "failed"
        if self.state == "interrupted" and self.reason:
            return f"interrupted ({self.reason})"
        return {"missing": "not run"}.get(self.state, self.state)


def out_of_memory(reason: str) -> bool:
    return "out of memory" in reason.lower() or reason.lower().split(":")[0] in ("oom", "out_of_memory")


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
        found = {state: [r for r in self.runs if r.state == state] for state in STATES[1:]}
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
            return "OOM" if all(out_of_memory(r.reason) for r in runs) else "failed"
        return {"missing": "--", "requeued": "running"}.get(state, state)

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
    """Key to outcome: the manifest's variants in its order, then imported ones by name."""
    frame = collected.runs_of(study.name)
    all_imported = bool(getattr(study, "imported", False))  # a study made of other people's logs
    own = frame["planned"] | all_imported
    found = {
        name: _outcome(name, name, variant.label, frame[(frame["variant"] == name) & own], all_imported)
        for name, variant in study.variants.items()
    }
    strangers = frame[frame["imported"] & ~own]
    for name in sorted(set(strangers["variant"])):
        key = name if name not in found else f"{name} (imported)"
        found[key] = _outcome(key, name, name, strangers[strangers["variant"] == name], True)
    return {key: replace(outcome, study=study.name) for key, outcome in found.items()}


def _outcome(key: str, variant: str, label: str, frame: pd.DataFrame, imported: bool) -> Outcome:
    scores = [c for c in frame.columns if str(c).startswith(("best/", "final/"))]
    return Outcome(
        study="",
        key=key,
        variant=variant,
        label=label,
        runs=tuple(_run(record, scores) for record in frame.to_dict("records")),
        imported=imported,
        dataset=", ".join(sorted({str(name) for name in frame["dataset"] if name})),
        selected_on=" and ".join(sorted({str(split) for split in frame["selected_on"] if split})),
    )


def _run(record: dict[Any, Any], scores: Sequence[str]) -> Run:
    return Run(
        seed=int(record["seed"]),
        state=record["state"],
        where=record["where"],
        epoch=None if pd.isna(record["epoch"]) else int(record["epoch"]),
        step=None if pd.isna(record["step"]) else int(record["step"]),
        reason=record["reason"] or "",
        scores={c: float(record[c]) for c in scores if pd.notna(record[c])},
    )
