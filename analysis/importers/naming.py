"""What an imported run is called: the variant and the seed that its path and configuration tell."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

# File names that say nothing; the folder's name does.
_GENERIC = frozenset(
    {"train", "train_log", "log", "logs", "metrics", "metric", "output", "stdout", "result", "results"}
    | {"trainer_state", "progress", "history", "scalars", "training"}
)
_GENERIC_FOLDER = re.compile(
    r"^(?:version_\d+|checkpoint-\d+|logs?|tensorboard|tb|csv|lightning_logs)$"
)
_SEED = re.compile(r"[-_. ]?seed[-_=]?\d+", re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9._+=-]+")


def variant_name(path: Path) -> str:
    """The file's name, or its folder's where the file's says nothing, without a seed."""
    stem = (
        path.stem
        if path.suffix in {".log", ".txt", ".csv", ".json", ".jsonl", ".tsv", ".out"}
        else path.name
    )
    if stem.lower() in _GENERIC or "tfevents" in path.name:
        folder = next(
            (p for p in path.absolute().parents if p.name and not _GENERIC_FOLDER.match(p.name)), None
        )
        stem = folder.name if folder else stem
    return _SEED.sub("", stem) or stem


def seed_of(text: str | None) -> int | None:
    """A printed seed, or None where there is none."""
    text = (text or "").strip()
    return int(text) if re.fullmatch(r"\d+", text) else None


def slug(name: str) -> str:
    """`name` as a folder's name; a hash is added where characters had to be replaced."""
    safe = _UNSAFE.sub("_", name).strip("_.") or "run"
    if safe == name:
        return safe
    return f"{safe[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
