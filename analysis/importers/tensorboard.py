"""TensorBoard event files, read with TensorBoard's own reader. Scalars only.

Several event files in one folder are one run that was started again: a later file replaces what an
earlier one holds from its first step on. Steps are kept as they are.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.importers.mapping import Plan, plan_of
from analysis.importers.metrics import known, separate
from analysis.importers.run import ImportedRun, LogError, RunBuilder
from analysis.importers.table import Options, answer, refuse_open_questions

NAME = "tensorboard"
LOOKS_FOR = "a file name with 'tfevents'"
_EPOCH_TAGS = frozenset({"epoch", "train/epoch"})
_NO_METRICS = frozenset({"time", "data_time", "rank_data_time", "eta_seconds", "train/global_step"})

Series = dict[str, dict[int, tuple[float, float]]]  # tag -> step -> (value, wall time)


def recognises(name: str, content: bytes) -> bool:
    return "tfevents" in name or b"brain.Event:" in content[:200]


def read_folder(paths: list[Path], options: Options) -> list[ImportedRun]:
    """The run of the event files of one folder, in order of their first event.

    Raises:
        LogError: no scalar could be read, or a tag does not say enough.
    """
    builder = RunBuilder(paths[0], b"", NAME, restarts=options.restarts)
    builder.sha256 = hashlib.sha256(b"".join(p.read_bytes() for p in paths)).hexdigest()
    series, plan = _series(paths, builder, options)
    if not series:
        raise LogError(f"{paths[0]}: no scalar in it; this importer reads scalars only")
    answer(plan, options)
    plan.ask()
    refuse_open_questions(plan, paths[0])
    builder.metrics = {m.name: m for m in plan.metrics.values() if m.split != "train"}
    _add_rows(builder, series, plan)
    times = [time for values in series.values() for _, time in values.values()]
    run = builder.finish(
        variant=plan.variant_name,
        epochs_planned=plan.epochs_planned,
        select=plan.select,
        seed=plan.seed_value,
        facts={"train_seconds": round(max(times) - min(times), 3), "event_files": len(paths)},
    )
    if not _EPOCH_TAGS & {tag.lower() for tag in series}:
        run.facts["epochs"] = None
    return [run]


def propose_plan(paths: list[Path]) -> tuple[Plan, list[str]]:
    """What the tags tell, and all tags."""
    series, plan = _series(paths, RunBuilder(paths[0], b"", NAME), Options())
    return plan, list(series)


def _series(paths: list[Path], builder: RunBuilder, options: Options) -> tuple[Series, Plan]:
    series: Series = {}
    files = sorted(([*_scalars(p, builder)] for p in paths), key=lambda s: s[0][3] if s else math.inf)
    for index, scalars in enumerate(files):
        if index and scalars:
            first = min(step for _, step, _, _ in scalars)
            for values in series.values():
                for step in [s for s in values if s >= first]:
                    del values[step]
            builder.notes.append(f"event file {index + 1} of {len(files)} goes on from step {first}")
        for tag, step, value, time in scalars:
            series.setdefault(tag, {})[step] = (value, time)
    series = {tag: values for tag, values in series.items() if values}
    if options.mapping is not None:
        return series, plan_of(options.mapping, list(series), str(paths[0]))
    found = {}
    ours = all(path.name.endswith(".sdtps") for path in paths)  # our own export: fractions
    for tag, values in series.items():
        if tag.lower() in _EPOCH_TAGS or tag.lower() in _NO_METRICS:
            continue
        metric = known(tag, max((v for v, _ in values.values() if math.isfinite(v)), default=-math.inf))
        if ours and metric.split != "train":
            unit = "fraction" if metric.unit in ("unknown", "percent") else metric.unit or "raw"
            metric = type(metric)(metric.name, metric.split, metric.direction or "none", unit)
        found[tag] = metric
    return series, Plan(metrics=separate(found), step="step")


def _scalars(path: Path, builder: RunBuilder) -> Iterator[tuple[str, int, float, float]]:
    """Tag, step, value and wall time of each scalar; a torn end of the file is noted."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    events = EventFileLoader(str(path)).Load()
    while True:
        try:
            event = next(events)
        except StopIteration:
            return
        except Exception as error:
            # The reader raises types of several packages (DataLossError, DecodeError) on a torn record.
            builder.cannot_read(0, path.name, f"torn: {type(error).__name__}")
            return
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name not in ("scalars", ""):
                continue
            if not value.HasField("tensor"):
                continue
            array = tensor_util.make_ndarray(value.tensor)
            if array.size == 1 and array.dtype.kind in "fiu":
                yield value.tag, int(event.step), _shortest(array), float(event.wall_time)


def _shortest(array: Any) -> float:
    """The decimal that a 32-bit value stands for: 0.1, not 0.10000000149011612."""
    value = array.reshape(-1)[0]
    return float(str(value)) if array.dtype.itemsize == 4 else float(value)


def _add_rows(builder: RunBuilder, series: Series, plan: Plan) -> None:
    epochs = next((series[tag] for tag in series if tag.lower() in _EPOCH_TAGS), {})
    rows: dict[tuple[int, str], dict[str, float]] = {}
    times: dict[int, float] = {}
    for tag, metric in plan.metrics.items():
        for step, (value, time) in series.get(tag, {}).items():
            kind = "train" if metric.split == "train" else "eval"
            shown = value / 100 if metric.unit == "percent" else value
            rows.setdefault((step, kind), {})[metric.name] = shown
            times[step] = max(time, times.get(step, 0.0))
    for step, kind in sorted(rows, key=lambda k: (k[0], k[1] != "train")):
        epoch = (
            math.ceil(epochs[step][0]) if step in epochs and math.isfinite(epochs[step][0]) else step
        )
        stamp = datetime.fromtimestamp(times[step], UTC).isoformat(timespec="seconds")
        values: dict[str, Any] = {**rows[step, kind], "time": stamp}
        if kind == "train":
            builder.train(epoch, step, 0, **values)
        else:
            builder.evaluation(epoch, step, values)
