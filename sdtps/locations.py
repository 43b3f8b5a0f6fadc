"""Where data and caches lie when the configuration does not say."""

from __future__ import annotations

import os
from pathlib import Path

from sdtps.errors import DataError


def data_root(configured: str | None) -> Path:
    """The folder of the benchmarks: `data.root`, or the environment's SDTPS_DATA_ROOT.

    Raises:
        DataError: neither is given.
    """
    root = configured or os.environ.get("SDTPS_DATA_ROOT")
    if not root:
        raise DataError(
            "no data root: set data.root, pass --data-root when submitting, or set SDTPS_DATA_ROOT to "
            "the folder that contains the data set's folder"
        )
    return Path(root).expanduser()


def cache_root() -> Path:
    """For what can be made again: SDTPS_CACHE, or sdtps/ in the user's cache folder."""
    if "SDTPS_CACHE" in os.environ:
        return Path(os.environ["SDTPS_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sdtps"
