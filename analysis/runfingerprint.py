"""A digest of what a study's runs came to; it changes when any result, state or curve does."""

from __future__ import annotations

import hashlib
from pathlib import Path


def fingerprint(study_folder: Path) -> str:
    """Digest of results, of how unfinished runs ended, and of the length of their logs."""
    digest = hashlib.sha256()
    for folder in sorted(study_folder.glob("*/seed*")):
        digest.update(folder.name.encode())
        result, status = folder / "result.json", folder / "status.json"
        metrics = folder / "metrics.jsonl"
        if result.is_file():
            digest.update(result.read_bytes())
        elif status.is_file():
            digest.update(status.read_bytes())
        if metrics.is_file():
            digest.update(str(metrics.stat().st_size).encode())
    return digest.hexdigest()[:16]
