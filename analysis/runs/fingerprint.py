"""A digest of what a study's runs came to; it changes when any result, state or curve does."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sdtps.files import read_bytes


def fingerprint(study_folder: Path) -> str:
    """Digest of results, of how unfinished runs ended, and of the length of their logs."""
    digest = hashlib.sha256()
    for folder in sorted(study_folder.glob("*/seed*")):
        digest.update(folder.name.encode())
        metrics = folder / "metrics.jsonl"
        ended = _content(folder / "result.json")
        digest.update(ended if ended is not None else _content(folder / "status.json") or b"")
        if metrics.is_file():
            digest.update(str(metrics.stat().st_size).encode())
    return digest.hexdigest()[:16]


def _content(path: Path) -> bytes | None:
    try:
        return read_bytes(path)
    except OSError as error:  # not to be read is a state, too, and may end
        return str(error.errno).encode()
