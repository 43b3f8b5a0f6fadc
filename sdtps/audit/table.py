"""The gradient audit as rows of text: terminal, paper and report print this one. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Parts as columns, in the order of the signal: heads to encoder.
PARTS = {
    "heads": "Heads",
    "aggregation": "Aggregation",
    "extra_token": "Extra token",
    "score_mlp": "Score MLP",
    "relevance": "Relevance",
    "guide_weights": "Guide weights",
    "guides": "Guides",
    "selected_patches": "Patches",
    "class_token": "Class token",
    "encoder": "Encoder",
    "words": "Words",
    "dense_words": "Dense words",
    "text_encoder": "Text encoder",
}
STATES = {"none": "no path", "zero": "zero", "nonfinite": "not finite"}
_MEANINGS = {
    "no path": "no gradient can reach the part",
    "zero": "a gradient reaches it and is exactly zero",
    "not finite": "infinite or NaN",
    "finite": "finite, where the baseline has none to compare with",
}
_WHEN = {"initial": "at initialisation", "after": "after the training steps"}


@dataclass(frozen=True)
class GradientTable:
    """The audit as rows of text; terminal, paper and report print this one.

    Attributes:
        columns: heading by key: parts, then `cosine`, `untrained` and, with fp16, `skipped`.
        labels: what readers call each variant.
        rows: text of each cell by column, for each variant; empty = nothing to say.
        notes: sentences that explain the cells.
    """

    columns: dict[str, str]
    labels: dict[str, str]
    rows: dict[str, dict[str, str]]
    notes: tuple[str, ...]


def gradient_table(
    document: Mapping[str, Any], when: str = "initial", parts: Iterable[str] = PARTS
) -> GradientTable:
    """Gradient norms as multiples of the baseline's, one row a variant, of an `audit.json`.

    Args:
        when: `initial` or `after`.
        parts: the columns; those that no variant has are left out.

    Raises:
        KeyError, TypeError: not an audit.
    """
    variants = document["variants"]
    labels = {v["variant"]: str(v["label"]) for v in variants}
    found = {(g["variant"], g["part"]): g for g in document["gradients"] if g["when"] == when}
    columns = {p: PARTS[p] for p in parts if any(part == p for _, part in found)}
    initial = when == "initial"
    scaled = any(v["scaler_skipped"] is not None for v in variants)
    rows = {}
    for variant in variants:
        name = variant["variant"]
        row = {part: _gradient_text(found.get((name, part))) for part in columns}
        if initial:
            row["cosine"] = _text(variant["patch_cosine"], 2)
            row["untrained"] = _text(100 * variant["without_gradient"], 1)
        if initial and scaled:
            skipped = variant["scaler_skipped"]
            row["skipped"] = "" if skipped is None else f"{skipped}/{document['steps']}"
        rows[name] = row
    baseline = labels[document["baseline"]]
    notes = [
        f"Gradient norm of each part {_WHEN[when]}, on the same batch"
        f"{' with the same weights' if initial else ''}, as a multiple of that of {baseline}."
    ]
    if initial:
        columns |= {"cosine": "Patch cosine", "untrained": "Untrained (%)"}
        notes.append(f"Patch cosine: of the gradient at the patches with that of {baseline}.")
        notes.append("Untrained: share of the parameters that get no gradient.")
        if scaled:
            columns["skipped"] = "Steps skipped"
    cells = {text for row in rows.values() for text in row.values()}
    words = [f"{word}: {meaning}" for word, meaning in _MEANINGS.items() if word in cells]
    if "" in cells:
        words.append("empty: the variant has no such part, or no gradient to compare")
    if words:
        notes.append(f"In the cells, {'; '.join(words)}.")
    return GradientTable(columns, labels, rows, tuple(notes))


def _gradient_text(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return ""
    if record["state"] in STATES:
        return STATES[record["state"]]
    return "finite" if record["ratio"] is None else factor(record["ratio"])


def factor(value: float) -> str:
    """0.59, 1.0, 36, 264 or 5.4e9: at least two figures, so that prose can quote it."""
    if 0.01 <= value < 999.5:
        return f"{value:.{0 if value >= 9.95 else 1 if value >= 0.995 else 2}f}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _text(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def terminal_table(found: GradientTable, title: str) -> Any:
    """`found` as a table of rich."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("variant", no_wrap=True)
    for heading in found.columns.values():
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    for name, row in found.rows.items():
        table.add_row(escape(name), *(row[key] for key in found.columns))
    return table
