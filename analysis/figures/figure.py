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
from analysis.figures.style import ENDINGS, palette, saved, styled, undrawable
from analysis.figures.sweep import sweep
from analysis.results import curves as curveframe
from analysis.results.cells import Attributed, started
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
from sdtps.system.errors import SdtpsError, counted

if TYPE_CHECKING:
    from ablations.study.model import Study


class FigureError(SdtpsError):
    """A figure that cannot be drawn, and why."""


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
        FigureError: letters that no font of this machine has.
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
    with styled(size, *labels, *study.variants):
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
    """Raises FigureError for letters that no font of this machine has."""
    for label in (*labels, spec.title or ""):
        if letters := undrawable(label):
            raise FigureError(
                f"figure {spec.name}: no font of this machine has {', '.join(letters)} of the label "
                f"'{label}'. Install one that does, or write the label in letters that it has"
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
    "minmax": "the range of all values of all seeds",
    "sd": "± one sample standard deviation (ddof 1) over seeds, also where no seed is",
    "t95": "the 95 % t interval of the mean over seeds, also where no seed is",
    "none": "",
}


def curve_caption(shown: Plot) -> tuple[str, ...]:
    """Sentences of a curve figure's caption; the manifest's own comes first."""
    study, spec, found = shown.study, shown.spec, shown.curves
    name = metric_name(study, spec.metric)
    train = any(c.kind == "train" for c in found)
    what = "Training" if train else "Evaluation"
    title = spec.caption or spec.title or f"{what} curves: {name} of the study {study.name}."
    said = [sentence(title)]
    if any(len(curve.seeds) > 1 for curve in found):
        said += _seeds(shown, name)
    if not spec.panel_by and len(shown.shown) > 1:
        said.append(
            "The legend lists the curves from the highest last value to the lowest; markers only tell "
            "them apart."
        )
    if unlogged := shown.unlogged():
        said.append(f"No {name} was logged for: {'; '.join(unlogged)}.")
    if any(len(seed.broken) for curve in found for seed in curve.seeds):
        said.append(
            "Triangles at the upper border: steps at which a seed's value was not finite; the mean has "
            "a gap where a seed has no finite value."
        )
    said += _points(shown)
    ends = {seed.end for curve in found for seed in curve.seeds if seed.last}
    if "diverged" in ends:
        said.append("A cross marks the last finite value of a seed that diverged.")
    if "stopped" in ends:
        said.append("A bar marks where a seed stopped without finishing.")
    if "shorter" in ends:
        said.append("A bar marks the end of a seed that is shorter than the others.")
    if any(len(c.outcome.completed) < c.planned for c in shown.shown):
        said.append("k/N behind a name: k of N seeds completed.")
    return (*said, *_axes(shown))


def _seeds(shown: Plot, name: str) -> list[str]:
    """What thick, thin and dotted lines are."""
    band = BANDS[shown.spec.band]
    fewer = any((np.isfinite(c.mean) & (c.n < c.planned)).any() for c in shown.curves)
    said = [
        f"Thick: {name}, mean over seeds in linear space; thin: single seeds"
        f"{f'; band: {band}' if band else ''}."
    ]
    if fewer:
        said.append(
            "Dotted: mean over the seeds that are left; where a seed ends, the line of all ends and "
            "that of the others begins."
        )
    if any(c.interpolated for c in shown.curves):
        said.append(
            "Seeds that log at different steps are interpolated linearly between their own values."
        )
    return said


def _points(shown: Plot) -> list[str]:
    """How steps became points of the thick line."""
    said = []
    if widths := {round(c.merged) for c in shown.curves if c.merged}:
        few, many = min(widths), max(widths)
        steps = counted(few, "step") if few == many else f"{few} to {many} steps"
        said.append(f"A point of a mean is a window of {steps}; single seeds keep their extremes.")
    return said


def _axes(shown: Plot) -> list[str]:
    said = ["The vertical axis is logarithmic."] if shown.log else []
    if below := shown.below_axis():
        listed = "; ".join(f"{label} ({count})" for label, count in below.items())
        said.append(
            "Zero and negative values have no place on it; triangles at the lower border mark their "
            f"steps: {listed}."
        )
    return said
