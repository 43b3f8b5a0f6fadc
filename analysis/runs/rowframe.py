"""Every value that runs have logged, as one long frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.runs.metrics import MetricRows
from analysis.runs.source import Source

ROW_COLUMNS = ("study", "variant", "seed", "kind", "attempt", "epoch", "step", "metric", "value")


def row_frame(
    logged: list[tuple[Source, MetricRows]],
) -> tuple[pd.DataFrame, dict[tuple[str, str], list[tuple[int, int]]]]:
    """The long frame, filled in place (a grid has tens of millions of values), and its spans."""
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
    names: dict[str, dict[str, int]] = {"study": {}, "variant": {}, "kind": {}, "metric": {}}

    def code(column: str, name: str) -> int:
        return names[column].setdefault(name, len(names[column]))

    count = sum(block.values.size for _, rows in logged for block in rows.blocks)
    columns: dict[str, np.ndarray] = {
        "study": np.empty(count, np.int16),
        "variant": np.empty(count, np.int16),
        "seed": np.empty(count, np.int32),
        "kind": np.empty(count, np.int8),
        "attempt": np.empty(count, np.int16),
        "epoch": np.empty(count, np.int32),
        "step": np.empty(count, np.int32),
        "metric": np.empty(count, np.int16),
        "value": np.empty(count, np.float64),
    }
    start = 0
    for source, rows in logged:
        first = start
        for block in rows.blocks:
            size, width = block.values.size, len(block.metrics)
            here = slice(start, start + size)
            columns["study"][here] = code("study", source.study)
            columns["variant"][here] = code("variant", source.variant)
            columns["seed"][here] = source.seed
            columns["kind"][here] = code("kind", block.kind)
            for name, values in (
                ("attempt", block.attempt),
                ("epoch", block.epoch),
                ("step", block.step),
            ):
                columns[name][here] = np.tile(values, width)
            columns["metric"][here] = np.repeat(
                [code("metric", m) for m in block.metrics], len(block.step)
            )
            columns["value"][here] = block.values.T.ravel()
            start += size
        spans.setdefault((source.study, source.variant), []).append((first, start))
    data: dict[str, Any] = {}
    dtype: Any
    for name in ROW_COLUMNS:
        if name in names:
            dtype = pd.CategoricalDtype(pd.Index(list(names[name]), dtype=object))
            data[name] = pd.Categorical.from_codes(columns[name], dtype=dtype)
        else:
            data[name] = columns[name]
    return pd.DataFrame(data, copy=False), spans
