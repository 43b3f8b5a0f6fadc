"""How figures look: fonts, colours, and files that do not change with the clock."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.venues import Venue

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ablations.study.model import Study


# matplotlib is imported where it draws: `sdtps curves --help` needs none of it.
SMALLEST = 7.0  # points: no text is smaller
# Embedded TrueType (42) instead of Type 3. seaborn sets the rest of the look.
STYLE: dict[str, Any] = {
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "sdtps",
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#333333",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.4,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "xtick.bottom": True,
    "ytick.left": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
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
    import matplotlib as mpl
    import seaborn as sns

    size = {
        "font.size": venue.text,
        "axes.labelsize": venue.text,
        "axes.titlesize": venue.text,
        "legend.fontsize": max(SMALLEST, venue.text - 0.5),
        "xtick.labelsize": max(SMALLEST, venue.text - 1),
        "ytick.labelsize": max(SMALLEST, venue.text - 1),
    }
    fonts = {"font.family": [*FONTS], "mathtext.fontset": "stix"}
    spines = {"axes.spines.top": False, "axes.spines.right": False}
    settings: Any = {**sns.axes_style("whitegrid"), **STYLE, **spines, **size, **fonts}
    return mpl.rc_context(settings)


def saved(picture: Figure, endings: Iterable[str] = ENDINGS) -> dict[str, bytes]:
    """A figure's files by ending, at its exact size and without dates.

    Parts are placed anew for each form: letters are wider in PNG's pixels than in PDF, and were cut.
    """
    files = {}
    for ending in endings:
        stream = io.BytesIO()
        picture.savefig(stream, format=ending, metadata=NO_DATES[ending])
        files[ending] = stream.getvalue()
    return files


# -- fonts --------------------------------------------------------------------------------------

# STIX, a Times, and DejaVu come with matplotlib, so that every machine draws the same.
# Venues set papers in Times, and so does this project.
FONTS = ("STIXGeneral", "DejaVu Sans")


def undrawable(text: str) -> str:
    """The letters of `text` for which neither font has a glyph, each once."""
    from matplotlib.font_manager import findfont, get_font

    fonts = [get_font(findfont(name)) for name in FONTS]
    letters = (c for c in dict.fromkeys(text) if not c.isspace())
    return "".join(c for c in letters if not any(font.get_char_index(ord(c)) for font in fonts))


# -- colours ------------------------------------------------------------------------------------

# Okabe and Ito's colours without black (the baseline's) and yellow (too light for thin lines), and a
# dark one of Paul Tol's. With black, any two are apart by 16 units of CIELAB in every form of colour
# blindness; an eighth would halve that. Grey print keeps markers and dashes.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#882255", "#56B4E9"),
)
MARKERS = ("s", "^", "D", "v", "P", "*", "<")  # one a colour
BASELINE_MARKER = "o"
# The baseline is dashed and dashed lines are drawn last: over a curve that it equals, both are seen.
BASELINE, BASELINE_DASHES = "#000000", (3.0, 2.0)
# Solid first; after each round of colours the next pattern. On, off, ... in line widths.
DASHES: tuple[tuple[float, ...] | None, ...] = (
    None,
    (4.0, 1.5),
    (1.2, 1.2),
    (5.0, 1.2, 1.2, 1.2),
    (8.0, 2.0),
)
FILLS = ("full", "none", "left", "bottom", "right")  # how much of a marker is filled, by round


@dataclass(frozen=True)
class Style:
    """How a variant is drawn; `marker` and `fill` are matplotlib's names."""

    colour: str
    dashes: tuple[float, ...] | None = None
    marker: str = BASELINE_MARKER
    fill: str = "full"


# Begins the digest of a name. With it no two names of a shipped study but flickr30k ask for the same
# style, and their figures repeat the fewest colours.
_SALT = "27281"


def palette(study: Study, others: tuple[str, ...] = ()) -> dict[str, Style]:
    """Variant to style, the same in every figure and in the report. The manifest's `color` wins.

    The rest take colour, dashes and marker by their names, so that a variant that is dropped or added
    leaves the others as they are. Only where two names ask for the same style does one take the next.

    Args:
        others: variants outside the manifest (imported).
    """
    pinned = {name: v.color for name, v in study.variants.items() if v.color}
    looks = [
        Style(colour, dashes, marker, fill)
        for dashes in DASHES
        for fill in FILLS
        for colour, marker in zip(COLOURS, MARKERS, strict=True)
    ]
    named = dict.fromkeys((*study.variants, *others))
    styles = {name: Style(colour, None, _of_name(name, MARKERS)) for name, colour in pinned.items()}
    styles.setdefault(study.baseline, Style(BASELINE, BASELINE_DASHES))
    left = list(looks)
    for name in sorted(named.keys() - styles.keys(), key=_digest):
        first = _digest(name) % len(looks)
        left = left or list(looks)
        style = next(look for look in looks[first:] + looks[:first] if look in left)
        left.remove(style)
        styles[name] = style
    return {name: styles[name] for name in named}


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{_SALT}{name}".encode(), digest_size=16).digest(), "big")


def _of_name(name: str, choices: Sequence[str]) -> str:
    return choices[_digest(name) % len(choices)]
