"""Folder names for variants, whose own names are free text."""

from __future__ import annotations

import hashlib
import re
import unicodedata

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,+=-]*")
_LONGEST = 80  # file systems allow 255 bytes; people read less


def is_safe(name: str) -> bool:
    """Whether `name` can be a folder as it is: no separators, no leading dot or dash, not too long."""
    return len(name) <= _LONGEST and _SAFE.fullmatch(name) is not None and not name.endswith(".")


def slug(name: str) -> str:
    """`name` where it is safe; else its readable part and six digits of its hash.

    A variant's folder depends on its own name alone, so adding a variant never moves another's runs.
    """
    if is_safe(name):
        return name
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    readable = re.sub(r"[^A-Za-z0-9.]+", "_", plain).strip("_.")[: _LONGEST - 7].rstrip("_.")
    digits = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{readable or 'variant'}-{digits}"
