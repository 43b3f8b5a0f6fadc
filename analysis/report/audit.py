"""audit.json as tables of text: what was found, then the gradient of every part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WHEN = {"initial": "at initialisation", "after": "after training steps"}


def audit_parts(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Parts with title, notes, columns and rows, as the page shows them.

    Raises:
        KeyError, TypeError: not an audit.
    """
    study = str(document["study"]) or "audit"
    parts = [
        {
            "title": f"{study}: findings",
            "notes": [] if document["findings"] else ["Nothing was found."],
            "columns": ["Variant", "Severity", "Finding"],
            "rows": [[str(f["variant"]), f["severity"], f["text"]] for f in document["findings"]],
        }
    ]
    parts += [
        _gradients(document, when, words)
        for when, words in WHEN.items()
        if any(row["when"] == when for row in document["gradients"])
    ]
    return parts


def _gradients(document: Mapping[str, Any], when: str, words: str) -> dict[str, Any]:
    rows: Sequence[Mapping[str, Any]] = [r for r in document["gradients"] if r["when"] == when]
    names = list(dict.fromkeys(str(row["part"]) for row in rows))
    variants = list(dict.fromkeys(str(row["variant"]) for row in rows))
    cells = {(str(row["variant"]), str(row["part"])): _cell(row) for row in rows}
    return {
        "title": f"{document['study']}: gradients {words}",
        "notes": [
            "Gradient norm of each part on the same batch with the same weights; in brackets, times "
            f"that of {document['baseline']}."
        ],
        "columns": ["Variant", *names],
        "rows": [[v, *(cells.get((v, name), "–") for name in names)] for v in variants],
    }


def _cell(row: Mapping[str, Any]) -> str:
    if row["state"] != "finite":
        return {"none": "no path", "zero": "exactly 0", "nonfinite": "not finite"}[row["state"]]
    norm, ratio = row["norm"], row.get("ratio")
    return f"{norm:.2g}" if ratio is None else f"{norm:.2g} (×{ratio:.2g})"
