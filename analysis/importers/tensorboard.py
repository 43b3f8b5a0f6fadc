"""TensorBoard event files, read with TensorBoard's own reader. Scalars only.

Several event files in one folder are one run that was restarted: later files supersede earlier ones
from their first step on. Steps count from 0 in most writers; they are kept as they are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.importers.builder import RunBuilder
from analysis.importers.columns import canonical, is_share, kind_of, says_per_cent
from analysis.importers.naming import variant_name
from analysis.importers.record import ImportedRun, LogError

NAME = "tensorboard"
LOOKS_FOR = "a file name with 'tfevents'"
_EPOCH_TAGS = frozenset({"epoch"})


def recognises(name: str, text: str) -> bool:
    return "tfevents" in name or "brain.Event:" in text[:200]


def read(path: Path, content: bytes) -> list[ImportedRun]:
    """The run of one event file."""
    return read_folder([path])


def read_folder(paths: list[Path]) -> list[ImportedRun]:
    """The run of the event files of one folder, in order of their first event.

    Raises:
        LogError: no scalar could be read.
    """
    series: dict[str, dict[int, tuple[float, float]]] = {}  # tag -> step -> (value, wall time)
    builder = RunBuilder(paths[0], b"".join(p.read_bytes() for p in paths), NAME)
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
    if not any(series.values()):
        raise LogError(f"{paths[0]}: no scalar in it; this importer reads scalars only")
    _add_rows(builder, series)
    times = [time for values in series.values() for _, time in values.values()]
    run = builder.finish(
        variant=variant_name(paths[0]),
        finished=True,  # event files do not say what was planned
        facts={"train_seconds": round(max(times) - min(times), 3), "event_files": len(paths)},
    )
    run.open_units = {canonical(tag) for tag in series if _unsure(tag)}
    return [run]


def _unsure(tag: str) -> bool:
    return is_share(canonical(tag)) and not says_per_cent(tag)


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


def _add_rows(builder: RunBuilder, series: dict[str, dict[int, tuple[float, float]]]) -> None:
    epochs = next((series[tag] for tag in series if tag.lower() in _EPOCH_TAGS), {})
    per_cent = {tag for tag in series if says_per_cent(tag)}
    rows: dict[tuple[int, str], dict[str, float]] = {}
    times: dict[int, float] = {}
    for tag, values in series.items():
        if tag.lower() in _EPOCH_TAGS:
            continue
        for step, (value, time) in values.items():
            shown = value / 100 if tag in per_cent else value
            rows.setdefault((step, kind_of(tag)), {})[canonical(tag)] = shown
            times[step] = max(time, times.get(step, 0.0))
    for step, kind in sorted(rows, key=lambda k: (k[0], k[1] != "train")):
        values_here = rows[step, kind]
        epoch = int(epochs[step][0]) if step in epochs else step
        stamp = datetime.fromtimestamp(times[step], UTC).isoformat(timespec="seconds")
        if kind == "train":
            builder.train(epoch, step, 0, **values_here, time=stamp)
        else:
            builder.evaluation(epoch, step, {**values_here, "time": stamp})
    if per_cent:
        builder.notes.append(f"read as per cent: {', '.join(sorted(per_cent))}")
