"""A study's figures: drawn from the frames, captioned from what was drawn, and written with LaTeX, CSV
and JSON beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ablations.study.schema import FigureSpec
from analysis.figures.attribution import cells_figure
from analysis.figures.curves import Plot, curve_figure, metric_name, plot
from analysis.figures.differences import forest
from analysis.figures.style import ENDINGS, FONTS, palette, saved, styled, undrawable
from analysis.figures.sweep import sweep
from analysis.results import curves as curveframe
from analysis.results.attribution import Attributed, started
from analysis.results.frames import results
from analysis.results.outcomes import Outcome
from analysis.runs.collect import Collected
from analysis.runs.comparable import Mark, on_axis
from analysis.runs.record import Run
from analysis.tables import captions, latex
from analysis.tables.captions import sentence
from analysis.tables.forms import write_if_changed
from analysis.tables.model import file_name
from analysis.venues import VENUES
from sdtps.system.errors import SdtpsError

if TYPE_CHECKING:
    from ablations.study.model import Study


class FigureError(SdtpsError):
    """A figure that cannot be drawn, and why."""


# What the paper's sentences say that a figure of a kind shows.
SHOWS = {
    "curves": "the training curves",
    "differences": "the differences to the baseline",
    "sweep": "the results by setting",
}


@dataclass(frozen=True)
class Drawn:
    """A finished figure: its files' bytes by ending, its caption, and what it was drawn from.

    Attributes:
        runs: variant to folders below runs/. width: inches.
        problem: why there is no picture; None where there is one.
    """

    name: str
    study: str
    files: dict[str, bytes]
    caption: tuple[str, ...]
    notes: tuple[str, ...]
    origin: tuple[str, ...]
    runs: dict[str, list[str]]
    width: float
    problem: str | None = None


def figures(
    collected: Collected, study: Study, marks: Sequence[Mark] = (), venue: str = "article"
) -> list[Drawn]:
    """The manifest's figures and those of its attributions. One that cannot be drawn says so, and
    stops no other."""
    declared = [try_to_draw(collected, study, spec, marks, venue) for spec in study.figures]
    cells = (draw_cells(collected, study, found, venue) for found in started(collected, study))
    return [*declared, *cells]


def draw_cells(collected: Collected, study: Study, found: Attributed, venue: str = "article") -> Drawn:
    """The figure of an attribution's cells."""
    size = VENUES[venue]
    with styled(size):
        picture, caption = cells_figure(found, size.page)
        files = saved(picture)
    runs = {name: outcome.runs for name, outcome in found.outcomes.items()}
    return _drawn(collected, study, found.name, size.page, files, caption, runs=runs)


def try_to_draw(
    collected: Collected,
    study: Study,
    spec: FigureSpec,
    marks: Sequence[Mark] = (),
    venue: str = "article",
) -> Drawn:
    """`draw`, or a figure without a picture whose `problem` says why."""
    try:
        return draw(collected, study, spec, marks, venue)
    except Exception as error:
        why = str(error) if isinstance(error, SdtpsError) else f"{type(error).__name__}: {error}"
        width, caption = VENUES[venue].width(spec.width), (f"This figure could not be drawn: {why}",)
        drawn = _drawn(collected, study, file_name(study, spec.name), width, {}, caption)
        return replace(drawn, problem=why)


def _drawn(
    collected: Collected,
    study: Study,
    name: str,
    width: float,
    files: dict[str, bytes],
    caption: Sequence[str],
    rows: Sequence[Outcome] = (),
    runs: Mapping[str, Sequence[Run]] | None = None,
) -> Drawn:
    """A figure with what is known of its study.

    Args:
        runs: those that it shows, by variant; None: those of `rows`, which its notes are about, too.
    """
    shown = {row.key: row.runs for row in rows} if runs is None else runs
    return Drawn(
        name=name,
        study=study.name,
        files=files,
        caption=tuple(caption),
        notes=captions.notes(collected, study, rows) if rows else (),
        origin=captions.origin(collected, study),
        runs={name: [run.where for run in members] for name, members in shown.items()},
        width=width,
    )


def draw(
    collected: Collected,
    study: Study,
    spec: FigureSpec,
    marks: Sequence[Mark] = (),
    venue: str = "article",
    endings: Sequence[str] = ENDINGS,
) -> Drawn:
    """One figure, in PDF, SVG and PNG unless `endings` says less; curves with their CSV.

    Raises:
        FigureError: letters that our fonts lack.
    """
    size = VENUES[venue]
    width = size.width(spec.width)
    computed = results(collected, study)
    found = computed.outcomes
    names = list(spec.variants or found)
    labels = [found[name].label for name in names]
    _check_letters(spec, labels)
    styles = palette(study, tuple(n for n in found if n not in study.variants))
    data: dict[str, bytes] = {}
    shown_part: tuple[str, ...] = ()
    with styled(size):
        if spec.kind == "curves":
            shown = plot(collected, study, spec)
            picture, caption = curve_figure(shown, width, styles), curve_caption(shown)
            table = curveframe.frame(shown.curves)
            data = {"csv": table.to_csv(index=False, float_format="%.8g").encode()}
        elif spec.kind == "differences":
            picture, caption = forest(study, spec, computed, names, width)
        elif spec.kind == "sweep":
            on = on_axis(study, names, str(spec.axis))
            others = [found[name].label for name in names if name not in on]
            shown_part = captions.slice_of(study, [str(spec.axis)], on, others, "Not drawn")
            names = on
            picture, caption = sweep(study, spec, computed, names, width, styles)
        else:
            raise FigureError(
                f"figure {spec.name}: kind {spec.kind} has no drawing in analysis/figures"
            )
        files = {**saved(picture, endings), **data}
    warnings = captions.warnings(marks, study.name)
    said = (*caption, *shown_part, captions.data(collected, study), *warnings)
    rows = [found[name] for name in names]
    return _drawn(collected, study, file_name(study, spec.name), width, files, said, rows)


def differences_figure(study: Study) -> FigureSpec | None:
    """A study's forest plot: its manifest's, or one of the first metric; None with a single variant."""
    for spec in study.figures:
        if spec.kind == "differences":
            return spec
    if len(study.variants) < 2 or getattr(study, "imported", False) or not study.metrics:
        return None
    metric = next(iter(study.metrics))
    return FigureSpec(name="differences", kind="differences", metric=metric, width="page")


def _check_letters(spec: FigureSpec, labels: Iterable[str]) -> None:
    """Raises FigureError for letters that our fonts lack."""
    for label in (*labels, spec.title or ""):
        if letters := undrawable(label):
            raise FigureError(
                f"figure {spec.name}: {' and '.join(FONTS)} lack {', '.join(letters)} of the label "
                f"'{label}'. Write the label in letters that they have"
            )


def write(drawn: Drawn, folder: Path) -> list[Path]:
    """The figure's files, LaTeX around it and JSON beside it; unchanged files are left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    caption = " ".join(s for s in (*drawn.caption, *drawn.notes) if s)
    data = {
        "figure": drawn.name,
        "study": drawn.study,
        "caption": caption,
        "origin": list(drawn.origin),
        "runs": drawn.runs,
        "width_inches": drawn.width,
        **({"problem": drawn.problem} if drawn.problem else {}),
    }
    files = {
        **drawn.files,
        "tex": _environment(drawn, folder, caption).encode(),
        "json": (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode(),
    }
    paths = []
    for ending, content in files.items():
        paths.append(folder / f"{drawn.name}.{ending}")
        write_if_changed(paths[-1], content)
    return paths


def _environment(drawn: Drawn, folder: Path, caption: str) -> str:
    r"""A figure environment that any document with graphicx can input.

    `\generated` is where the document finds the folder above `figures/`; a document that does not say
    gets its name, as it is beside the document.
    """
    picture = (
        rf"\includegraphics{{\generated/{folder.name}/{drawn.name}.pdf}}"
        if "pdf" in drawn.files
        else r"\fbox{no picture}"
    )
    lines = [
        *(f"% {line}" for line in drawn.origin),
        rf"\providecommand{{\generated}}{{{folder.absolute().parent.name}}}%",
        r"\begin{figure}[htbp]",
        r"\centering",
        picture,
        rf"\caption{{{latex.escape(caption)}}}\label{{fig:{drawn.name}}}",
        r"\end{figure}%",
    ]
    return "\n".join(lines) + "\n"


# -- captions of curves -------------------------------------------------------------------------


BANDS = {
    "minmax": "; band: the range of all values of all seeds",
    "sd": "; band: ± one sample standard deviation (ddof 1) over seeds, also where no seed is",
    "t95": "; band: the 95 % t interval of the mean over seeds, also where no seed is",
    "none": "",
}


def curve_caption(shown: Plot) -> tuple[str, ...]:
    """Sentences of a curve figure's caption, on what is in it; the manifest's own comes first."""
    study, spec, found = shown.study, shown.spec, shown.curves
    name = metric_name(study, spec.metric)
    what = "Training" if any(c.kind == "train" for c in found) else "Evaluation"
    title = spec.caption or spec.title or f"{what} curves: {name} of the study {study.name}."
    band, several = BANDS[spec.band], any(len(curve.seeds) > 1 for curve in found)
    fewer = any((np.isfinite(c.mean) & (c.n < c.planned)).any() for c in found)
    unlogged = "; ".join(shown.unlogged())
    ends = {seed.end for curve in found for seed in curve.seeds if seed.last}
    widths = sorted({round(c.merged) for c in found if c.merged})
    steps = " to ".join(dict.fromkeys(str(width) for width in (widths[:1] + widths[-1:])))
    below = "; ".join(f"{label} ({count})" for label, count in shown.below_axis().items())
    said = {
        sentence(title): True,
        f"Thick: {name}, mean over seeds in linear space; thin: single seeds{band}.": several,
        "Dotted: mean over the seeds that are left; where a seed ends, the line of all ends and that "
        "of the others begins.": several and fewer,
        "Seeds that log at different steps are interpolated linearly between their own values.": several
        and any(c.interpolated for c in found),
        "The legend lists the curves from the highest last value to the lowest; markers only tell them "
        "apart.": not spec.panel_by and len(shown.shown) > 1,
        f"No {name} was logged for: {unlogged}.": unlogged,
        "Triangles at the upper border: steps at which a seed's value was not finite; the mean has a "
        "gap where a seed has no finite value.": any(len(s.broken) for c in found for s in c.seeds),
        f"A point of a mean is a window of {steps} steps; single seeds keep their extremes.": widths,
        "A cross marks the last finite value of a seed that diverged.": "diverged" in ends,
        "A bar marks where a seed stopped without finishing.": "stopped" in ends,
        "A bar marks the end of a seed that is shorter than the others.": "shorter" in ends,
        "k/N behind a name: k of N seeds completed.": any(
            len(c.outcome.completed) < c.planned for c in shown.shown
        ),
        "The vertical axis is logarithmic.": shown.log,
        "Zero and negative values have no place on it; triangles at the lower border mark their steps: "
        f"{below}.": below,
    }
    return tuple(text for text, holds in said.items() if holds)
