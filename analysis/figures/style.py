"""How figures look: venues' widths, fonts, colours, and files that do not change with the clock."""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ablations.study.model import Study


# matplotlib is imported where it draws: `sdtps curves --help` reads the venues without it.
@dataclass(frozen=True)
class Venue:
    """Column and text block in inches, the font of the text, the type size of a figure in points."""

    column: float
    page: float
    font: Literal["Times", "Latin Modern"] = "Times"
    text: float = 8.0

    def width(self, kind: Literal["column", "page"]) -> float:
        return self.column if kind == "column" else self.page


# From the venues' own style files (one-column styles: both widths are the text block's). `article` is
# this project's paper. acmart sets Libertine where it is installed; Times is nearest to it.
VENUES = {
    "article": Venue(5.5, 5.5, "Latin Modern"),
    "iclr": Venue(5.5, 5.5),
    "neurips": Venue(5.5, 5.5),
    "icml": Venue(3.25, 6.75),
    "cvpr": Venue(3.25, 6.875),
    "ieee": Venue(3.5, 7.16),
    "acm": Venue(3.33, 7.0),
}

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


def styled(venue: Venue, *texts: str) -> AbstractContextManager[None]:
    """Draw and save inside this: our settings and the venue's type size, nothing global afterwards.

    Args:
        texts: what will be written; fonts of this machine are added for letters that ours lack.
    """
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
    look: Any = sns.axes_style("whitegrid")
    times = venue.font == "Times"
    text = () if times else (_text_font(),)
    families: Any = [*text, *FALLBACKS, *_more_fonts("".join(texts))]
    fonts = {"font.family": families, "mathtext.fontset": "stix" if times else "cm"}
    spines = {"axes.spines.top": False, "axes.spines.right": False}
    settings: Any = {**look, **STYLE, **spines, **size, **fonts}
    return mpl.rc_context(settings)


def saved(picture: Figure, endings: Iterable[str] = ENDINGS) -> dict[str, bytes]:
    """A figure's files by ending, at its exact size and without dates."""
    files = {}
    for ending in endings:
        stream = io.BytesIO()
        picture.savefig(stream, format=ending, metadata=NO_DATES[ending])
        files[ending] = stream.getvalue()
    return files


# -- fonts --------------------------------------------------------------------------------------

# Latin Modern, the paper's font, is Computer Modern with more letters. matplotlib comes with Computer
# Modern (cmr10), so every machine draws the same. Its table of letters follows TeX's old encoding, in
# which `_` is an accent and `±` a ligature: `_text_font` corrects the table. STIX, a Times, and DejaVu
# come with matplotlib, too: STIX is the venues' font, and both bring what Computer Modern lacks.
FALLBACKS = ("STIXGeneral", "DejaVu Sans")
FAMILY = "SDTPS Computer Modern"
# The font's glyph names -> the characters that they show (it has the two dashes exchanged).
_GLYPHS = {
    **{"Gamma": "Γ", "Delta": "Δ", "Theta": "Θ", "Lambda": "Λ", "Xi": "Ξ", "Pi": "Π", "Sigma": "Σ"},
    **{"Upsilon": "Υ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω", "germandbls": "ß", "ae": "æ", "oe": "œ"},
    **{"oslash": "ø", "AE": "Æ", "OE": "Œ", "Oslash": "Ø", "dotlessi": "ı"},
    **{
        "endash": "—",
        "emdash": "–",
        "quotedblleft": "“",
        "quotedblright": "”",
        "quoteleft": "‘",
        "quoteright": "’",
    },
    **{"exclamdown": "¡", "questiondown": "¿"},
}
SECONDS_FROM_1904_TO_2000 = 3_029_529_600
_WRONG = '"<>\\^_`{|}~'  # ASCII places at which cmr10 has another glyph


@cache
def _text_font() -> str:
    """The family name of the corrected Computer Modern, made once and kept in matplotlib's cache."""
    import matplotlib as mpl
    from matplotlib import font_manager

    source = Path(mpl.get_data_path()) / "fonts" / "ttf" / "cmr10.ttf"
    made_from = source.read_bytes() + repr((_GLYPHS, _WRONG, FAMILY)).encode()
    digest = hashlib.sha256(made_from).hexdigest()
    target = Path(mpl.get_cachedir()) / f"sdtps-{digest[:16]}.ttf"
    if not target.is_file():
        part = target.with_suffix(f".{os.getpid()}")
        part.write_bytes(_corrected(source))
        part.replace(target)
    font_manager.fontManager.addfont(str(target))
    return FAMILY


def _corrected(source: Path) -> bytes:
    from fontTools.ttLib import TTFont
    from fontTools.ttLib.tables._c_m_a_p import CmapSubtable

    logging.getLogger("fontTools.ttLib").setLevel(logging.ERROR)  # it complains of the font's date
    font = TTFont(source, recalcTimestamp=False)
    font["head"].created = font["head"].modified = SECONDS_FROM_1904_TO_2000
    wrong = {ord(c) for c in _WRONG}
    letters = {
        code: name
        for code, name in font.getBestCmap().items()
        if 0x20 <= code < 0x7F and code not in wrong
    }
    glyphs = set(font.getGlyphOrder())
    letters |= {ord(char): name for name, char in _GLYPHS.items() if name in glyphs}
    letters[ord("'")] = "quoteright"
    table = CmapSubtable.newSubtable(4)
    table.platformID, table.platEncID, table.language = 3, 1, 0
    table.cmap = letters
    font["cmap"].tables = [table]
    for record in font["name"].names:
        if record.nameID in (1, 4, 16):
            record.string = FAMILY
        elif record.nameID == 6:
            record.string = FAMILY.replace(" ", "")
    stream = io.BytesIO()
    font.save(stream)
    return stream.getvalue()


def undrawable(text: str) -> str:
    """The letters of `text` for which no font of this machine has a glyph, each once."""
    missing = [c for c in dict.fromkeys(text) if not c.isspace() and not _drawn_by(c)]
    return "".join(missing)


def _more_fonts(text: str) -> list[str]:
    found = [_drawn_by(c) for c in dict.fromkeys(text) if ord(c) > 0x7F]
    return [name for name in dict.fromkeys(found) if name and name not in (FAMILY, *FALLBACKS)]


@cache
def _drawn_by(char: str) -> str | None:
    """The family that draws a character: ours, or the first by name of this machine's."""
    from matplotlib import font_manager

    families = (_text_font(), *FALLBACKS)
    entries = font_manager.fontManager.ttflist
    ours = [next(e for e in entries if e.name == name and e.weight == 400) for name in families]
    others = sorted((e for e in entries if e.name not in families), key=lambda e: (e.name, e.fname))
    for entry in (*ours, *others):
        if "LastResort" in entry.fname:  # it draws a box with the code point for everything
            continue
        try:
            font = font_manager.get_font(entry.fname)
        except (OSError, RuntimeError):
            continue
        if font.get_char_index(ord(char)):
            return entry.name
    return None


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
_SALT = "7874"


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
