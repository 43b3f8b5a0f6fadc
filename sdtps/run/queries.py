"""What is known of each query: the values whose mean a metric is, by our evaluations and by others.

Evaluations of ours keep arrays: AP, rank (of the first hit, from 1) and identity; of retrieval
i2t_rank, i2t_identity, t2i_rank, t2i_identity. Other programs write lists of the last evaluation, in
the same order in every run, into a file of JSON:

    {"identity": ["cat 1", "cat 2", ...], "accuracy": [1, 0, ...], "AP": [...], "rank": [...]}

A list is called as the metric whose mean it is; AP gives mAP, and rank gives rank1, rank5 ... The
identity is what a query looks for, or its own name: a number or a text. Runs whose identities are not
the same, in the same order, are not compared by query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sdtps.run.folder import is_finite
from sdtps.system.errors import RunError, did_you_mean
from sdtps.system.files import digest, read_bytes

FILE = "queries.json"
_HIT = re.compile(r"(?:(i2t|t2i)_r|rank)(\d+)")


def values_of(known: Mapping[str, np.ndarray], metric: str) -> tuple[np.ndarray, np.ndarray] | None:
    """A metric's value for each query [Q], whose mean it is, and the identity that each looks for [Q].

    None where nothing is known of it, or it is no mean over queries.
    """
    name, identity, most = _lists(metric)
    values, identities = known.get(name), known.get(identity)
    if values is None or identities is None or values.shape != identities.shape:
        return None
    return (values <= most if most else values).astype(np.float64), identities


def read_queries(file: Path, last: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The lists of `file`, as `RunFolder.write_queries` takes them.

    Args:
        last: the last evaluation. Its metrics must be the means, within half a per cent: logs round.

    Raises:
        RunError: it is torn, or wrong: every mistake by the name of its list.
    """
    try:
        given = json.loads(read_bytes(file) or b"")
        arrays = {name: _array(name, values) for name, values in given.items()}
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        text = f'{file}: torn, or not lists such as {{"identity": [7, 9], "accuracy": [1, 0]}}'
        raise RunError(text) from None
    metrics = {k: v for k, v in last.items() if is_finite(v) and k not in ("epoch", "step")}
    means = {m: by_query[0].mean() for m in metrics if (by_query := values_of(arrays, m))}
    found = [
        f"{_lists(metric)[0]}: gives {metric} {mean:g}, the evaluation {metrics[metric]:g}"
        for metric, mean in means.items()
        if not abs(mean - metrics[metric]) <= 0.0051 * max(1.0, abs(metrics[metric]))
    ]
    known = {_lists(metric)[0] for metric in metrics}
    used = {_lists(metric)[0] for metric in means}
    for name in (name for name in arrays if name not in used and not name.endswith("identity")):
        text = f"{name}: of no metric of the last evaluation, or not as long as its identities"
        found.append(f"{text}. {did_you_mean(name, known)}")
    if found:
        raise RunError("\n  ".join([f"{file}: not the queries of this run:", *found]))
    return arrays


def _array(name: str, values: Any) -> np.ndarray:
    """A list as numbers; of texts among identities 31 bits of their digest."""
    if not name.endswith("identity"):
        return np.array(values, dtype=np.float64)
    texts = (str(value).encode() for value in values)
    return np.array([int(t) if t.isdigit() else int(digest(t)[:8], 16) >> 1 for t in texts])


def _lists(metric: str) -> tuple[str, str, int]:
    """The list that a metric is the mean of, or (with a rank) the share of ranks up to that one; and
    the list of its identities."""
    if hit := _HIT.fullmatch(metric):
        way = f"{hit[1]}_" if hit[1] else ""
        return f"{way}rank", f"{way}identity", int(hit[2])
    return "AP" if metric == "mAP" else metric, "identity", 0
