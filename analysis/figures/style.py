"""How figures look and how they are saved: the same bytes whenever they show the same."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from analysis.figures.venues import Venue

# Embedded TrueType instead of Type 3; fonts that come with matplotlib, so that every machine agrees.
STYLE: dict[str, Any] = {
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "sdtps",
    "font.family": ["STIXGeneral", "DejaVu Sans"],
    "mathtext.fontset": "stix",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.4,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "savefig.dpi": 200,
}
NO_DATES = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


ENDINGS = tuple(NO_DATES)


def styled(venue: Venue) -> AbstractContextManager[None]:
    """Draw and save inside this: our settings and the venue's type size, nothing global afterwards."""
    settings: Any = {
        **STYLE,
        "font.size": venue.text,
        "axes.labelsize": venue.text,
        "axes.titlesize": venue.text,
        "legend.fontsize": venue.text - 0.5,
        "xtick.labelsize": venue.text - 1,
        "ytick.labelsize": venue.text - 1,
    }
    return mpl.rc_context(settings)


def saved(picture: Figure, endings: Iterable[str] = ENDINGS) -> dict[str, bytes]:
    """A figure's files by ending, at its exact size and without dates."""
    files = {}
    for ending in endings:
        stream = io.BytesIO()
        picture.savefig(stream, format=ending, metadata=NO_DATES[ending])
        files[ending] = stream.getvalue()
    return files
