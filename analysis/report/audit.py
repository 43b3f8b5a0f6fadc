"""audit.json as tables of text: what was found, then the gradient of every part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdtps.audit.table import gradient_table

WHEN = {"initial": "at initialisation", "after": "after training steps"}


def audit_parts(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Parts with title, notes, columns and rows, as the page shows them.

    Raises:
        KeyError, TypeError: not an audit.
    """
    study = str(document["study"]) or "audit"
    parts: list[dict[str, Any]] = [
        {
            "title": f"{study}: findings",
            "notes": [] if document["findings"] else ["Nothing was found."],
            "columns": ["Variant", "Severity", "Finding"],
            "rows": [[str(f["variant"]), f["severity"], f["text"]] for f in document["findings"]],
        }
    ]
    for when, words in WHEN.items():
        if any(row["when"] == when for row in document["gradients"]):
            found = gradient_table(document, when)
            parts.append(
                {
                    "title": f"{study}: gradients {words}",
                    "notes": list(found.notes),
                    "columns": ["Variant", *found.columns.values()],
                    "rows": [
                        [name, *(row[key] or "–" for key in found.columns)]
                        for name, row in found.rows.items()
                    ],
                }
            )
    return parts
