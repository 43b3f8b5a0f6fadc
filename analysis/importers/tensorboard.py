"""TensorBoard event files, read with TensorBoard's own reader. Scalars only.

The event files of one folder are one run, in the order of their first event: a table with a column for
each tag, and `step` as it is there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.importers.run import LogError
from analysis.importers.table import Table

Event = tuple[str, int, float, float]  # tag, step, value, wall time


def recognises(name: str, content: bytes) -> bool:
    return "tfevents" in name or b"brain.Event:" in content[:200]


def open_events(paths: list[Path], *, folders: bool = False) -> Table:
    """The scalars of some event files.

    Args:
        folders: each file's folder is a part of its tags, as `add_scalars` writes them.

    Raises:
        LogError: no scalar, or folders that `add_scalars` made and `folders` does not say so.
    """
    unread: dict[int, tuple[str, str]] = {}
    files = [(path, [*_scalars(path, unread)]) for path in paths]
    files = sorted(((p, e) for p, e in files if e), key=lambda file: file[1][0][3])
    if not files:
        raise LogError(f"{paths[0]}: no scalar in it; this importer reads scalars only")
    for path, events in files:
        tags = {tag for tag, *_ in events}
        if not folders and len(tags) == 1 and path.parent.name.startswith(f"{next(iter(tags))}_"):
            raise LogError(
                f"{path}: its only tag '{next(iter(tags))}' is in a folder of its own, as add_scalars "
                "writes them: say `tag_folders: true` in a mapping, so that the tag is "
                f"{path.parent.name}/{next(iter(tags))}"
            )
    rows: list[dict[str, str]] = []
    for path, events in files:
        row: dict[str, str] = {}
        for tag, step, value, _ in events:
            name = f"{path.parent.name}/{tag}" if folders else tag
            if row.get("step") != str(step) or row.get(name, repr(value)) != repr(value):
                row = {"step": str(step)}
                rows.append(row)
            row[name] = repr(value)
    content = b"".join(path.read_bytes() for path, _ in files)
    first = files[0][0]
    path = first.parent.parent / first.name if folders else first
    table = Table(path, content, lambda: ((0, row) for row in rows))
    table.columns = list(dict.fromkeys(name for row in rows for name in row))
    times = [time for _, events in files for *_, time in events]
    table.document = {"train_seconds": repr(round(max(times) - min(times), 3))}
    table.unread = unread
    return table


def _scalars(path: Path, unread: dict[int, tuple[str, str]]) -> Iterator[Event]:
    """The scalars in their order; a torn end of the file is noted."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    try:
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                plugin = value.metadata.plugin_data.plugin_name
                if plugin not in ("scalars", "") or not value.HasField("tensor"):
                    continue
                array = tensor_util.make_ndarray(value.tensor)
                if array.size == 1 and array.dtype.kind in "fiu" and not math.isnan(event.wall_time):
                    yield value.tag, int(event.step), _shortest(array), float(event.wall_time)
    except Exception as error:
        # The reader raises types of several packages (DataLossError, DecodeError) on a torn record.
        unread[0] = (path.name, f"torn: {type(error).__name__}")


def _shortest(array: Any) -> float:
    """The decimal that a 32-bit value stands for: 0.1, not 0.10000000149011612."""
    value = array.reshape(-1)[0]
    return float(str(value)) if array.dtype.itemsize == 4 else float(value)
