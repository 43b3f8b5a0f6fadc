"""Programs whose tables are recognised by their columns: what these columns mean there.

A family is asked in order; the first that recognises a table gives the plan by which it is read. Its
metrics carry the split and the unit that the program documents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from analysis.importers.mapping import Plan
from analysis.importers.metrics import Metric, Unit, best_of, known, separate, split_of
from analysis.importers.run import ImportedRun, LogError, RunBuilder, is_number, number, seed_of
from analysis.importers.table import Records, Table, count_from, infer, long_to_wide
from analysis.importers.text import decode


@dataclass(frozen=True)
class Family:
    """A program's tables. `plan` may reshape the table; None where it is not this program's."""

    name: str
    looks_for: str
    plan: Callable[[Table], tuple[Table, Plan] | None]


def _ours(table: Table) -> tuple[Table, Plan] | None:
    """metrics.jsonl of a run of ours, and values.csv of our export: fractions, epochs from 1."""
    if not {"kind", "attempt", "epoch", "step"} <= table.columns.keys():
        return None
    table = long_to_wide(table)
    plan = Plan(epoch="epoch", step="step", split="kind", attempt="attempt")
    plan.variant = "variant" if "variant" in table.columns else None
    plan.seed = "seed" if "seed" in table.columns else None
    places = {"epoch", "step", "kind", "attempt", "variant", "seed", "study", "superseded_rows", "time"}
    for name, column in table.columns.items():
        if name not in places and column.numbers:
            found = known(name)
            unit: Unit = "fraction" if found.unit == "unknown" else "raw"
            plan.metrics[name] = Metric(name, "row", found.direction or "none", unit)
    return table, plan


def _ultralytics(table: Table) -> tuple[Table, Plan] | None:
    """results.csv of Ultralytics' YOLO: fractions; epochs from 0 in older versions."""
    if "epoch" not in table.columns or not any(n.startswith("metrics/") for n in table.columns):
        return None
    plan = Plan(epoch="epoch")
    for name, column in table.columns.items():
        if not column.numbers or name in ("epoch", "time"):
            continue
        if name.startswith("metrics/"):
            short = re.sub(r"\([A-Z]\)$", "", name.removeprefix("metrics/"))
            plan.metrics[name] = Metric(
                short, "val", "up", "fraction" if short.startswith("mAP") else "raw"
            )
        elif name.startswith("lr/"):
            plan.metrics[name] = Metric("lr" if name == "lr/pg0" else name, "train", "none", "raw")
        else:
            plan.metrics[name] = known(name)
    count_from(plan, table)
    return table, plan


def _lightning(table: Table) -> tuple[Table, Plan] | None:
    """metrics.csv of Lightning's CSVLogger: epochs and steps from 0, sparse rows."""
    names = set(table.columns)
    if table.format != "csv" or not {"epoch", "step"} <= names or {"variant", "seed", "kind"} & names:
        return None
    sparse = any(
        c.numbers and c.numbers < table.columns["step"].numbers for c in table.columns.values()
    )
    suffixed = any(name.endswith(("_step", "_epoch")) for name in names)
    if not (
        table.path.name == "metrics.csv" or (sparse and table.columns["epoch"].least == 0) or suffixed
    ):
        return None
    plan = Plan(epoch="epoch", step="step", epoch_from=0, step_from=0)
    plan.metrics = {
        name: replace(metric, name=re.sub(r"_(?:step|epoch)$", "", metric.name))
        for name, metric in infer(table).metrics.items()
    }
    return table, plan


def _wandb_history(table: Table) -> tuple[Table, Plan] | None:
    """A run's history as Weights & Biases exports it."""
    if "_step" not in table.columns or "kind" in table.columns:
        return None
    names = table.columns
    step = next(
        (n for n in ("train/global_step", "global_step", "trainer/global_step") if n in names), "_step"
    )
    epoch = next((n for n in ("train/epoch", "epoch") if n in names), None)
    plan = infer(table)
    plan.epoch, plan.step = epoch, step
    for name in (epoch, step):
        plan.metrics.pop(name or "", None)
    count_from(plan, table)
    return table, plan


_SERIES = re.compile(r"^(.+) - ([^-]+?)(__MIN|__MAX)?$")


def _wandb_chart(table: Table) -> tuple[Table, Plan] | None:
    """A chart's data as Weights & Biases exports it: columns `RUN - METRIC`, with __MIN and __MAX."""
    series = {n: m for n in table.columns if (m := _SERIES.match(n))}
    x = next(iter(table.columns), "")
    if not series or len(series) != len(table.columns) - 1 or x in series:
        return None
    main = {name: match for name, match in series.items() if not match.group(3)}
    inner = table.records

    def records() -> Records:
        for line, cells in inner():
            for name, match in main.items():
                if cells.get(name, ""):
                    yield line, {x: cells[x], "variant": match.group(1), match.group(2): cells[name]}

    long = replace(table, records=records, columns={})
    long.profile()
    plan = infer(long)
    plan.variant = "variant"
    plan.epoch, plan.step = (x, None) if x.lower() == "epoch" else (None, x)
    plan.metrics = {
        name: known(name, long.columns[name].most)
        for name in long.columns
        if name not in (x, "variant")
    }
    return long, plan


def _llama_factory(table: Table) -> tuple[Table, Plan] | None:
    """trainer_log.jsonl of LLaMA-Factory."""
    if not {"current_steps", "total_steps"} <= table.columns.keys():
        return None
    plan = Plan(epoch="epoch" if "epoch" in table.columns else None, step="current_steps")
    plan.steps_planned = "total_steps"
    plan.metrics = {
        name: known(name)
        for name, column in table.columns.items()
        if column.numbers and (name in ("loss", "lr", "learning_rate") or split_of(name) == "eval")
    }
    return table, plan


def _mmengine(table: Table) -> tuple[Table, Plan] | None:
    """scalars.json of mmengine: an evaluation's `step` is an epoch, or an iteration."""
    names = table.columns
    if table.format != "jsonl" or not {"step", "iter", "loss"} <= names.keys() or "mode" in names:
        return None
    inner = table.records
    epochs, iterations = [], []
    trained: tuple[str, str] = ("", "")
    for _, cells in inner():
        if "loss" in cells:
            trained = (cells.get("epoch", ""), cells.get("iter", ""))
        else:
            epochs.append(cells.get("step") == trained[0])
            iterations.append(cells.get("step") == trained[1])
    by_epoch = bool(epochs) and all(epochs)
    plan = Plan(epoch="epoch", step="iter")
    if epochs and not by_epoch and not all(iterations):
        plan.questions.append("whether an evaluation's `step` is an epoch or an iteration")

    def records() -> Records:
        last: dict[str, str] = {}
        for line, cells in inner():
            if "loss" in cells:
                last = {k: cells[k] for k in ("epoch", "iter") if k in cells}
                yield line, {k: v for k, v in cells.items() if k != "step"}
            else:
                yield line, {**{k: v for k, v in cells.items() if k != "step"}, **last}

    rows = replace(table, records=records, columns={})
    rows.profile()
    for name, column in rows.columns.items():
        if name in ("epoch", "iter", "time", "data_time", "memory") or not column.numbers:
            continue
        # Rows with a loss are training rows; a column that only other rows hold is evaluated.
        evaluated = not any(name in cells and "loss" in cells for _, cells in inner())
        found = known(name.replace("/", "_") if evaluated else name, column.most)
        if evaluated:
            plan.metrics[name] = replace(
                found, split="val", direction=found.direction or "none", unit=found.unit or "raw"
            )
        else:
            plan.metrics[name] = replace(found, split="train", direction="none", unit="raw")
    return rows, plan


def _mmcv(table: Table) -> tuple[Table, Plan] | None:
    """*.log.json of mmcv: `mode` is train or val, iterations count within each epoch."""
    if table.format != "jsonl" or not {"mode", "epoch", "iter"} <= table.columns.keys():
        return None
    plan = Plan(epoch="epoch", step="iter", step_within_epoch=True, split="mode")
    places = {"mode", "epoch", "iter", "time", "data_time", "memory", "seed", "step"}
    for name, column in table.columns.items():
        if name not in places and column.numbers:
            found = known(name, column.most)
            plan.metrics[name] = replace(
                found, split="row", direction=found.direction or "none", unit=found.unit or "raw"
            )
    inner = table.records

    def records() -> Records:
        for line, cells in inner():
            if cells.get("mode") == "train":
                yield line, cells
            elif "mode" in cells:  # a validation prints its own length as `iter`
                yield line, {k: v for k, v in cells.items() if k not in ("iter", "lr")}

    return replace(table, records=records), plan


def _detectron2(table: Table) -> tuple[Table, Plan] | None:
    """metrics.json of detectron2: iterations from 0; scores of DATASETS.TEST as `bbox/AP`, 0 to 100."""
    if table.format != "jsonl" or not {"iteration", "total_loss"} <= table.columns.keys():
        return None
    plan = Plan(step="iteration", step_from=0)
    for name, column in table.columns.items():
        if (
            name in ("iteration", "eta_seconds", "time", "data_time", "rank_data_time")
            or not column.numbers
        ):
            continue
        if re.match(r"^(?:bbox|segm|keypoints|sem_seg|panoptic_seg)/", name):
            plan.metrics[name] = Metric(name.replace("/", "_"), "test", "up", "raw")
        else:
            plan.metrics[name] = replace(known(name), split="train", direction="none", unit="raw")
    return table, plan


def _openclip(table: Table) -> tuple[Table, Plan] | None:
    """results.jsonl of OpenCLIP: evaluations alone, scores as fractions."""
    zero_shot = [n for n in table.columns if re.search(r"-top[15]$|_to_\w+_R@\d+$", n)]
    if table.format != "jsonl" or not zero_shot or "epoch" not in table.columns:
        return None
    plan = Plan(epoch="epoch")
    for name, column in table.columns.items():
        if name == "epoch" or not column.numbers:
            continue
        if name in zero_shot:
            plan.metrics[name] = Metric(name.replace("@", ""), "val", "up", "fraction")
        else:
            down = "loss" in name or name.endswith(("_rank", "_samples"))
            plan.metrics[name] = Metric(name.replace("@", ""), "val", "down" if down else "none", "raw")
    return table, plan


FAMILIES = (
    Family("ours", "columns kind, attempt, epoch and step", _ours),
    Family("wandb-chart", "columns such as 'amber-3 - val/mAP' and its __MIN and __MAX", _wandb_chart),
    Family("wandb-history", "a column _step", _wandb_history),
    Family("llama-factory", "columns current_steps and total_steps", _llama_factory),
    Family("mmengine", "JSON lines with step, iter and loss", _mmengine),
    Family("mmcv", "JSON lines with mode, epoch and iter", _mmcv),
    Family("detectron2", "JSON lines with iteration and total_loss", _detectron2),
    Family("openclip", "JSON lines with epoch and imagenet-zeroshot-val-top1", _openclip),
    Family("ultralytics", "columns epoch and metrics/mAP50(B)", _ultralytics),
    Family("lightning", "metrics.csv, or columns epoch and step and empty cells", _lightning),
)  # fmt: skip


def complete(run: ImportedRun, family: str) -> None:
    """Add what lies beside the table: Lightning's hparams.yaml tells settings and planned length."""
    if family != "lightning":
        return
    run.config = _hyperparameters(run.source.parent / "hparams.yaml")
    run.seed = run.seed if run.seed is not None else seed_of(run.config.get("seed"))
    planned = run.config.get("max_epochs", "")
    if planned.isdigit() and run.state == "ended":
        run.facts["epochs_planned"] = int(planned)
        last = run.facts["epochs"]
        done = last >= int(planned)
        run.state = "completed" if done else "incomplete"
        run.reason = "" if done else f"the log ends at epoch {last} of {planned}"


def _hyperparameters(path: Path) -> dict[str, str]:
    """Flat hyper-parameters as text; an unreadable file is no reason to lose the metrics."""
    try:
        loaded: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return {str(k): str(v) for k, v in loaded.items()} if isinstance(loaded, dict) else {}


# -- files that are no tables ---------------------------------------------------------------------

_CHECKPOINT = re.compile(r"checkpoint-(\d+)/?$")


def is_trainer_state(text: str) -> bool:
    """Hugging Face's trainer_state.json."""
    return text.lstrip("\ufeff \n\r\t").startswith("{") and '"log_history"' in text


def read_trainer_state(path: Path, content: bytes, unit: Unit | None) -> list[ImportedRun]:
    """The run of a Trainer's state file: its log history and the best checkpoint that it chose.

    Raises:
        LogError: the file is torn (JSON has no readable half), or a score's unit cannot be told.
    """
    try:
        state = json.loads(decode(content))
    except json.JSONDecodeError as error:
        raise LogError(
            f"{path}: line {error.lineno}: not JSON ({error.msg}); the file is torn?"
        ) from None
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise LogError(f"{path}: log_history is not a list")
    builder = RunBuilder(path, content, "huggingface")
    facts: dict[str, Any] = {}
    most: dict[str, float] = {}
    for entry in history:
        for name, value in entry.items() if isinstance(entry, dict) else ():
            if isinstance(value, int | float):
                most[name] = max(most.get(name, value), value)
    metrics = {name: known(name, most[name]) for name in most if split_of(name) == "eval"}
    metrics = {
        n: replace(m, unit=unit if m.unit == "unknown" else m.unit or "raw") for n, m in metrics.items()
    }
    if asked := sorted(name for name, metric in metrics.items() if metric.unit is None):
        raise LogError(
            f"{path}: cannot be told: unit of {', '.join(asked)}: say --unit fraction or --unit percent"
        )
    metrics = {n: replace(m, direction=m.direction or "none") for n, m in metrics.items()}
    for index, entry in enumerate(history, start=1):
        if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
            builder.cannot_read(0, str(entry), f"entry {index} of log_history has no step")
            continue
        epoch = entry.get("epoch") or 0
        epoch = -int(-epoch // 1) if isinstance(epoch, int | float) and epoch < 2**31 else 0
        numbers = {
            k: float(v)
            for k, v in entry.items()
            if isinstance(v, int | float) and k not in ("step", "epoch")
        }
        if "train_runtime" in numbers:  # the closing summary is no training row
            facts["train_seconds"] = numbers["train_runtime"]
            continue
        rate = {"learning_rate": "lr"}
        training = {
            rate.get(k, k): v for k, v in numbers.items() if split_of(k) is None and k != "total_flos"
        }
        evaluation = {}
        for name, value in numbers.items():
            if name in metrics and not name.endswith(("_runtime", "_per_second")):
                metric = metrics[name]
                builder.metrics[metric.name] = metric
                evaluation[metric.name] = value / 100 if metric.unit == "percent" else value
        if training:
            builder.train(epoch, entry["step"], index, **training)
        if evaluation:
            builder.evaluation(epoch, entry["step"], evaluation, index)
    steps, planned_steps = state.get("global_step"), state.get("max_steps")
    epochs = state.get("num_train_epochs")
    finished = "train_seconds" in facts or (
        isinstance(steps, int) and isinstance(planned_steps, int) and 0 < planned_steps <= steps
    )
    run = builder.finish(
        epochs_planned=-int(-epochs // 1) if isinstance(epochs, int | float) else None,
        finished=finished,
        facts=facts,
    )
    match = _CHECKPOINT.search(str(state.get("best_model_checkpoint") or ""))
    step = state.get("best_global_step") or (int(match.group(1)) if match else None)
    chosen = next((r for r in run.rows if r["kind"] == "eval" and r["step"] == step), None)
    if chosen is not None:
        run.best, run.select = chosen, f"the Trainer's best checkpoint (step {step})"
        run.selected_on = "eval"
    return [run]


def is_wandb_runs(table: Table) -> bool:
    """A project's table of runs as Weights & Biases exports it: one row a run."""
    return {"Name", "State"} <= table.columns.keys()


_WANDB_STATES = {
    "finished": "completed",
    "crashed": "failed",
    "failed": "failed",
    "killed": "cancelled",
}


def read_wandb_runs(table: Table, unit: Unit | None) -> list[ImportedRun]:
    """One run a row: its state, its settings, and the last value of each metric that names its split.

    Raises:
        LogError: a score's unit cannot be told.
    """
    metrics = {
        n: known(n, c.most, c.per_cent) for n, c in table.columns.items() if c.numbers and split_of(n)
    }
    metrics = {n: replace(m, direction=m.direction or "none") for n, m in separate(metrics).items()}
    metrics = {
        n: replace(m, unit=unit if m.unit == "unknown" else m.unit or "raw") for n, m in metrics.items()
    }
    if asked := sorted(n for n, m in metrics.items() if m.unit is None and m.split != "train"):
        raise LogError(
            f"{table.path}: cannot be told: unit of {', '.join(asked)}: "
            "say --unit fraction or --unit percent"
        )
    runs = []
    for line, cells in table.records():
        builder = RunBuilder(table.path, table.content, "wandb-runs")
        values = {}
        for name, metric in metrics.items():
            if metric.split != "train" and is_number(cells.get(name, "")):
                value = number(cells[name])
                values[metric.name] = value / 100 if metric.unit == "percent" else value
                builder.metrics[metric.name] = metric
        step = cells.get("_step", cells.get("Step", ""))
        at = int(number(step)) if is_number(step) else 0
        if values:
            builder.evaluation(at, at, values, line)
        state = cells.get("State", "").lower()
        run = builder.finish(finished=state == "finished", variant=cells["Name"])
        run.state = _WANDB_STATES.get(state, "incomplete")  # type: ignore[assignment]
        run.reason = "" if run.state == "completed" else f"Weights & Biases says {state or 'nothing'}"
        run.failure = "error" if run.state == "failed" else ""
        run.config = {
            n: t for n, t in cells.items() if n not in metrics and t and n not in ("Name", "State")
        }
        run.seed = seed_of(run.config.get("seed"))
        run.facts["epochs"] = None
        run.notes.append("the export holds each metric's last value; its best is not known")
        run.best, run.select = best_of(
            [r for r in run.rows if r["kind"] == "eval"], builder.metrics, None
        )
        runs.append(run)
    return runs
