"""Hugging Face `trainer_state.json`: the log history of a Trainer and the best checkpoint it chose."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from analysis.importers.builder import RunBuilder
from analysis.importers.columns import canonical, is_share
from analysis.importers.naming import variant_name
from analysis.importers.record import ImportedRun, LogError
from analysis.importers.text import decode

NAME = "huggingface"
LOOKS_FOR = "a JSON object with log_history"
_NAMES = {"learning_rate": "lr"}
_SUMMARY = frozenset(
    {"train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"}
)
_CHECKPOINT = re.compile(r"checkpoint-(\d+)/?$")


def recognises(name: str, text: str) -> bool:
    return text.lstrip("\ufeff \n\r\t").startswith("{") and '"log_history"' in text


def read(path: Path, content: bytes) -> list[ImportedRun]:
    """The run of one state file. Raises LogError where the file is torn: JSON has no readable half."""
    try:
        state = json.loads(decode(content))
    except json.JSONDecodeError as error:
        raise LogError(
            f"{path}: line {error.lineno}: not JSON ({error.msg}); the file is torn?"
        ) from None
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise LogError(f"{path}: log_history is not a list")
    builder = RunBuilder(path, content, NAME)
    facts: dict[str, Any] = {}
    for index, entry in enumerate(history, start=1):
        if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
            builder.cannot_read(0, str(entry), f"entry {index} of log_history has no step")
            continue
        _entry(builder, entry, facts)
    steps, planned_steps = state.get("global_step"), state.get("max_steps")
    epochs = state.get("num_train_epochs")
    finished = "train_seconds" in facts or (
        isinstance(steps, int) and isinstance(planned_steps, int) and 0 < planned_steps <= steps
    )
    run = builder.finish(
        variant=variant_name(path),
        epochs_planned=math.ceil(epochs) if isinstance(epochs, int | float) else None,
        finished=finished,
        facts=facts,
    )
    _use_chosen_checkpoint(run, state)
    run.open_units = {name for row in run.rows for name in row if is_share(name)}
    return [run]


def _entry(builder: RunBuilder, entry: dict[str, Any], facts: dict[str, Any]) -> None:
    step, epoch = entry["step"], math.ceil(entry.get("epoch") or 0)
    numbers = {
        k: float(v)
        for k, v in entry.items()
        if isinstance(v, int | float) and k not in ("step", "epoch")
    }
    if "train_runtime" in numbers:  # the closing summary is no training row
        facts["train_seconds"] = numbers["train_runtime"]
        return
    evaluation = {
        canonical(k): v
        for k, v in numbers.items()
        if k.startswith("eval_") and not k.endswith(("_runtime", "_per_second"))
    }
    training = {
        _NAMES.get(k, k): v
        for k, v in numbers.items()
        if not k.startswith("eval_") and k not in _SUMMARY
    }
    if training:
        builder.train(epoch, step, 0, **training)
    if evaluation:
        builder.evaluation(epoch, step, evaluation)


def _use_chosen_checkpoint(run: ImportedRun, state: dict[str, Any]) -> None:
    """The evaluation of the checkpoint that the Trainer called its best, where it is in the history."""
    match = _CHECKPOINT.search(str(state.get("best_model_checkpoint") or ""))
    step = state.get("best_global_step") or (int(match.group(1)) if match else None)
    chosen = next((r for r in run.rows if r["kind"] == "eval" and r["step"] == step), None)
    if chosen is not None:
        run.best, run.select = chosen, f"the Trainer's best checkpoint (step {step})"
